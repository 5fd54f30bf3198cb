# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus capsule create --redact``: what is refused, before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kcensus.commands.capsule import COMMAND


def _create(directory: Path, *options: str) -> tuple[int, str]:
    arguments = ["create", "no-such-vmcore", str(directory / "out.capsule"), *options]
    done = CliRunner().invoke(COMMAND, arguments)
    return done.exit_code, done.output


def test_only_names_can_be_redacted(tmp_path: Path) -> None:
    status, said = _create(tmp_path, "--redact", "numbers")
    assert status == 2
    assert "'names'" in said


@pytest.mark.parametrize(
    ("key", "options", "expected"),
    [
        (None, ["--redact", "names"], "no such file"),
        (b"x" * 15, ["--redact", "names"], "it takes 16 bytes"),
        (b"x" * 16, [], "is for --redact names"),
    ],
)
def test_keys(tmp_path: Path, key: bytes | None, options: list[str], expected: str) -> None:
    path = tmp_path / "key"
    if key is not None:
        path.write_bytes(key)
    status, said = _create(tmp_path, "--redact-key", str(path), *options)
    assert status == 2
    assert expected in " ".join(said.split())
    assert not (tmp_path / "out.capsule").exists()
