# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes that run Python: nothing of the current directory, which may be hostile, is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcensus.fleets.apart import Nurse
from kcensus.fleets.split import Order
from kcensus.fleets.split.follower import Follower
from kcensus.limits.children import connected


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("drgn", "kcensus", "msgspec"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()\nraise SystemExit")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_nurse_imports_nothing_from_the_directory(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kcensus.fleets.apart._PROGRAM", "from kcensus.fleets import apart; apart.serve({})"
    )
    Nurse().close()
    assert not (directory / "imported").exists()


def test_a_follower_imports_nothing_from_the_directory(directory: Path) -> None:
    follower = Follower(Order("a", str(directory / "missing")))
    assert "no such file" in follower.opened().error
    follower.close()
    assert not (directory / "imported").exists()


def test_output_of_a_child_is_not_ours(capfd: pytest.CaptureFixture[str]) -> None:
    process, connection = connected("print('something', flush=True)")
    with connection:
        assert process.wait(30) == 0
    assert capfd.readouterr().out == ""
