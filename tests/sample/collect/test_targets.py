# SPDX-License-Identifier: LGPL-2.1-or-later
"""The dumps that ``kcensus collect`` takes below a directory."""

from __future__ import annotations

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
    assert _targets(str(tmp_path)) == [str(tmp_path / name / "vmcore") for name in "edc"]


def test_a_file_and_nothing() -> None:
    assert _targets(None) == [None]
    assert _targets("vmcore") == ["vmcore"]


def test_a_directory_without_dumps(tmp_path: Path) -> None:
    with pytest.raises(TargetError):
        _targets(str(tmp_path))
