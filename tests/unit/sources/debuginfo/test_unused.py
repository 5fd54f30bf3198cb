# SPDX-License-Identifier: LGPL-2.1-or-later
"""A sentence says what places of debug info hold if they have nothing for a kernel."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kcensus.sources.debuginfo import unused as room
from kcensus.sources.debuginfo.packs.file import encode
from kcensus.sources.debuginfo.unused import foreign_modules, unused
from tests.unit.fakekernel import FakeKernel
from tests.unit.sources.packs.synthetic import head, symbols
from tests.unit.sources.test_open import BUILD_ID, OTHER_ID, vmlinux

KERNEL = "6.1.0", "build ID 00ff"


def pack(path: Path, build_id: str) -> None:
    path.write_bytes(encode(head(build_id), {}, {"": symbols()}))


def test_what_a_directory_holds(tmp_path: Path) -> None:
    assert unused("-s", [], *KERNEL) == ""
    sentence = unused("-s", [tmp_path], *KERNEL)
    assert sentence.startswith(
        f"-s {tmp_path}: has nothing for kernel 6.1.0 (build ID 00ff), neither a type"
    )
    pack(tmp_path / "aa.kctypes", "aa")
    vmlinux(tmp_path / "vmlinux", OTHER_ID)
    sentence = unused("-s", [tmp_path], *KERNEL)
    assert "only 1 type pack and 1 vmlinux (0.0.0-synthetic, build ID aa; " in sentence
    assert f"build ID {OTHER_ID}" in sentence
    # Three are named, and no other one is read.
    for name in ("bb", "cc", "dd"):
        pack(tmp_path / f"{name}.kctypes", name)
    (tmp_path / "ee.kctypes").write_bytes(b"no pack")
    sentence = unused("-s", [tmp_path], *KERNEL)
    assert "only 5 type packs and 1 vmlinux" in sentence
    assert "build ID cc; and 3 more)" in sentence


def test_modules_serve_later(tmp_path: Path) -> None:
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "dm-mod.ko.debug").touch()
    assert unused("-s", [tmp_path], *KERNEL) == ""
    assert unused("-s", [tmp_path / "kernel" / "dm-mod.ko.debug"], *KERNEL) == ""
    own, other = tmp_path / "lib/modules/6.1.0/kernel", tmp_path / "lib/modules/6.2.0/kernel"
    for folder in (own, other):
        folder.mkdir(parents=True)
        (folder / "dm-mod.ko").touch()
    assert unused("-s", [own], *KERNEL) == ""
    assert "neither a type pack nor a vmlinux" in unused("-s", [other], *KERNEL)


def test_files_for_many_kernels(tmp_path: Path) -> None:
    pack(tmp_path / "one", "aa")
    (tmp_path / "two").write_bytes(b"")
    file = vmlinux(tmp_path / "vmlinux", OTHER_ID)
    sentence = unused("KCENSUS_SYMBOLS", [tmp_path / "one", tmp_path / "two", file], *KERNEL)
    assert "only 1 type pack and 1 vmlinux (" in sentence


def test_an_error_does_not_say_it_twice(tmp_path: Path) -> None:
    file = vmlinux(tmp_path / "vmlinux", OTHER_ID)
    error = f"{file} (build ID {OTHER_ID}): does not belong to this kernel"
    assert unused("-s", [tmp_path], *KERNEL, error) == ""
    pack(tmp_path / "aa.kctypes", "aa")
    held = f"-s {tmp_path} has only 1 type pack (0.0.0-synthetic, build ID aa)"
    assert unused("-s", [tmp_path], *KERNEL, error) == held


def test_modules_of_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("own", "other"):
        (tmp_path / folder).mkdir()
    own = vmlinux(tmp_path / "own" / "dm-mod.ko", BUILD_ID)
    other = vmlinux(tmp_path / "other" / "dm-mod.ko.debug", OTHER_ID)
    absent = vmlinux(tmp_path / "other" / "xfs.ko", OTHER_ID)
    loaded = [SimpleNamespace(name="dm_mod", build_id=bytes.fromhex(BUILD_ID))]
    monkeypatch.setattr(room, "loaded_modules", lambda *_: (loaded, []))
    prog = FakeKernel().prog
    assert foreign_modules(prog, [], []) == {}
    assert foreign_modules(prog, [own, other, absent], []) == {}
    found = foreign_modules(prog, [other, absent], [other])
    assert [*found] == [other]
    assert found[other].startswith(f"KCENSUS_SYMBOLS {other}: ")
    assert BUILD_ID in found[other]
    compressed = tmp_path / "dm-mod.ko.xz"
    compressed.write_bytes(b"\xfd7zXZ\0")
    assert foreign_modules(prog, [compressed], []) == {}
    loaded[0].build_id = None
    assert foreign_modules(prog, [other], []) == {}
