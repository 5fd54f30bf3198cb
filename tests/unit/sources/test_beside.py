# SPDX-License-Identifier: LGPL-2.1-or-later
"""Places of modules, by the place of their vmlinux."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcensus.sources.debuginfo.finder import beside

RELEASE = "6.1.0-18-amd64"


def made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize(
    ("vmlinux", "modules", "root"),
    [
        ("usr/lib/debug/boot/vmlinux-{0}", "usr/lib/debug/lib/modules/{0}", "usr/lib/debug"),
        ("usr/lib/debug/boot/vmlinux-{0}", "usr/lib/debug/usr/lib/modules/{0}", "usr/lib/debug"),
        ("usr/lib/debug/lib/modules/{0}/vmlinux", "usr/lib/debug/lib/modules/{0}", "usr/lib/debug"),
        ("debug/lib/modules/{0}/vmlinux", "debug/lib/modules/{0}", "debug"),
    ],
)
def test_a_debug_tree(tmp_path: Path, vmlinux: str, modules: str, root: str) -> None:
    path = made(tmp_path / vmlinux.format(RELEASE))
    folder = tmp_path / modules.format(RELEASE)
    made(folder / "kernel" / "fs" / "xfs.ko.debug")
    found = beside([path], RELEASE)
    assert found.roots == (tmp_path / root,)
    assert found.folders == (folder,)


def test_the_directory_of_the_vmlinux(tmp_path: Path) -> None:
    path = made(tmp_path / "case 7" / "vmlinux")
    for name in ("xfs.ko", "dm-mod.ko.xz", "xfs.ko.debug", "notes"):
        made(path.parent / name)
    made(path.parent / "below" / "other.ko")
    link = tmp_path / "vmlinux-link"
    link.symlink_to(path)
    found = beside([link, path], RELEASE)
    assert (found.roots, found.folders) == ((), ())
    assert [file.name for file in found.files] == ["xfs.ko.debug", "dm-mod.ko.xz", "xfs.ko"]


@pytest.mark.parametrize("release", ["", ".", "..", "../../secret", "/etc"])
def test_a_release_of_a_dump_is_no_path(tmp_path: Path, release: str) -> None:
    (tmp_path / "lib" / "modules").mkdir(parents=True)
    path = made(tmp_path / "boot" / "vmlinux")
    assert beside([path], release).folders == ()
