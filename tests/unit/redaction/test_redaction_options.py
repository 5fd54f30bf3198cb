# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus capsule create --redact``: what is refused, before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kcensus.commands.capsule import COMMAND


@pytest.mark.parametrize(
    ("key", "options", "expected"),
    [
        (None, ["--redact", "numbers"], "'names'"),
        (None, ["--redact", "names", "--redact-key", "key"], "no such file"),
        (b"x" * 15, ["--redact", "names", "--redact-key", "key"], "of 16 bytes or more"),
        (b"x" * 16, ["--redact-key", "key"], "add --redact names"),
    ],
)
def test_options(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: bytes | None,
    options: list[str],
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if key is not None:
        Path("key").write_bytes(key)
    done = CliRunner().invoke(COMMAND, ["create", "no-such-vmcore", "out.capsule", *options])
    assert done.exit_code == 2
    assert expected in " ".join(done.output.split())
    assert not Path("out.capsule").exists()
