# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that the user passes are told by their content."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcensus.sources.debuginfo.given import Given, in_directories, split_given
from kcensus.sources.debuginfo.packs.choice import split_packs
from kcensus.sources.model import TargetError

_SYMBOL = b"ffffffff81000000 T _stext\n"


def test_files_by_content(tmp_path: Path) -> None:
    contents = {"map": _SYMBOL, "types": b"\x9f\xeb\1\0" + bytes(20), "vmlinux": b"\x7fELF"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    paths = [tmp_path / name for name in contents]
    given, others = split_given([tmp_path, *paths])
    assert given == Given(tmp_path / "types", tmp_path / "map")
    assert others == (tmp_path, tmp_path / "vmlinux")
    (tmp_path / "other").write_bytes(_SYMBOL)
    with pytest.raises(TargetError, match="another file of this kind"):
        split_given([*paths, tmp_path / "other"])


def test_the_symbols_of_the_running_kernel() -> None:
    # Its size is 0.
    path = Path("/proc/kallsyms")
    packs, files = split_packs([path])
    assert (packs, *split_given(files)) == ((), Given(symbols=path), ())


def test_files_in_a_directory(tmp_path: Path) -> None:
    (tmp_path / "boot").mkdir()
    names = ["System.map-6.1.0", "vmlinux.btf", "boot/System.map", "boot/6.1.0.btf.tar.xz"]
    for name in (*names, "System.map-6.1.1", "6.1.1.btf", "boot/config-6.1.0"):
        (tmp_path / name).touch()
    paths = [tmp_path, tmp_path / "System.map-6.1.1", tmp_path / "none"]
    assert in_directories(paths, "6.1.0") == [tmp_path / name for name in names]
    assert in_directories(paths, "../6.1.0") == [tmp_path / names[1], tmp_path / names[2]]
