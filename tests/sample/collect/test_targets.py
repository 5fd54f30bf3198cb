# SPDX-License-Identifier: LGPL-2.1-or-later
"""The dumps that ``kcensus collect`` takes below a directory."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from kcensus import samples
from kcensus.commands.collect import _targets
from kcensus.sources import TargetError

_CORE = b"\x7fELF\2\1\1" + bytes(9) + b"\4\0"


def test_the_newest_three(tmp_path: Path) -> None:
    for number, name in enumerate("abcde"):
        path = tmp_path / name / "vmcore"
        path.parent.mkdir()
        path.write_bytes(_CORE)
        os.utime(path, (1000 + number, 1000 + number))
    (tmp_path / "e" / "vmcore-dmesg.txt").write_text("panic\n")
    capsule = samples.capsule("sample-waits")
    assert capsule is not None
    shutil.copy(capsule, tmp_path / "e" / "case.capsule")
    newest = [str(tmp_path / name / "vmcore") for name in "edc"]
    assert _targets(str(tmp_path)) == (newest, False)


def test_a_file_and_nothing() -> None:
    assert _targets(None) == ([None], False)
    assert _targets("vmcore") == (["vmcore"], False)


def test_a_directory_without_dumps(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no dumps below it;"):
        _targets(str(tmp_path))
    capsule = samples.capsule("sample-waits")
    assert capsule is not None
    shutil.copy(capsule, tmp_path / "case.capsule")
    with pytest.raises(TargetError, match="only capsules"):
        _targets(str(tmp_path))


def test_a_directory_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vmcore").write_bytes(_CORE)
    newest = tmp_path / "newest"
    newest.mkdir()
    scandir = os.scandir

    def refuse(path: str) -> object:
        if os.fspath(path) == str(newest):  # root may read all
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)
    assert _targets(str(tmp_path)) == ([str(tmp_path / "vmcore")], True)
    assert str(newest) in capsys.readouterr().err
    (tmp_path / "vmcore").unlink()
    with pytest.raises(TargetError, match="no readable dumps"):
        _targets(str(tmp_path))
