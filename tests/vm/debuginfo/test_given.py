# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types and symbols in files of their own: BTF and System.map."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kcensus.sources import TargetError, open_target
from tests.lab import Dump, build
from tests.vm.cases import analyzed

pytestmark = pytest.mark.newest


def _btf(dump: Dump, folder: Path) -> Path:
    path = folder / f"{dump.kernel}.btf"
    command = ["objcopy", "--dump-section", f".BTF={path}", str(dump.vmlinux), "/dev/null"]
    subprocess.run(command, check=True, capture_output=True)
    return path


def _map(dump: Dump, folder: Path) -> Path:
    listed = subprocess.run(["nm", str(dump.vmlinux)], check=True, capture_output=True, text=True)
    lines = [line for line in listed.stdout.splitlines(True) if line.split()[1] not in "aUN"]
    path = folder / "System.map"
    folder.mkdir(exist_ok=True)
    path.write_text("".join(lines))
    return path


def test_files_serve_in_place_of_memory(mixed_dump: Dump, tmp_path: Path) -> None:
    files = [_btf(mixed_dump, tmp_path), _map(mixed_dump, tmp_path)]
    target = open_target(str(mixed_dump.core), files)
    assert target.types == "BTF"
    assert target.modules is not None
    ((_, place),) = target.modules.places()
    assert all(str(path) in place for path in files)
    bare = open_target(str(mixed_dump.core))
    assert analyzed(target, "slab").summary == analyzed(bare, "slab").summary


def test_files_of_another_kernel_are_refused(mixed_dump: Dump, tmp_path: Path) -> None:
    other = build("6.1", "mixed")
    for path in (_btf(other, tmp_path), _map(other, tmp_path), other.vmlinux):
        with pytest.raises(TargetError, match=r"another kernel|does not belong"):
            open_target(str(mixed_dump.core), [path])
    with pytest.raises(TargetError, match="another file of this kind"):
        open_target(str(mixed_dump.core), [_btf(other, tmp_path), _btf(mixed_dump, tmp_path)])


def test_files_in_a_directory(mixed_dump: Dump, tmp_path: Path) -> None:
    release = open_target(str(mixed_dump.core)).kernel
    other = _map(build("6.1", "mixed"), tmp_path)
    types, symbols = _btf(mixed_dump, tmp_path), _map(mixed_dump, tmp_path / "boot")
    types = types.rename(tmp_path / "vmlinux.btf")
    symbols = symbols.rename(symbols.with_name(f"System.map-{release}"))
    target = open_target(str(mixed_dump.core), [tmp_path])
    assert target.modules is not None
    ((_, place),) = target.modules.places()
    assert all(str(path) in place for path in (types, symbols))
    (note,) = target.notes
    assert note.startswith(f"-s {other}: belongs to another kernel")


def test_a_module_of_another_kernel_is_refused() -> None:
    dump, other = build("5.10", "mixed"), build("6.1", "mixed")
    own, foreign = (
        next(path for path in each.debug if path.name == "dm_mod.ko") for each in (dump, other)
    )
    with pytest.raises(TargetError, match="another build of the module dm_mod"):
        open_target(str(dump.core), [foreign])
    # Files may be for several dumps.
    assert open_target(str(dump.core), [foreign, own]).notes == ()
