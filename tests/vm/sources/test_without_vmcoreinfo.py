# SPDX-License-Identifier: LGPL-2.1-or-later
"""A raw image, and a dump without the note, give what the dump with VMCOREINFO gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcensus.analyses import analyses
from kcensus.sources import TargetError, open_target
from kcensus.sources.vmcoreinfo import memory
from tests.lab import Dump, build
from tests.vm import cases
from tests.vm.elf_edit import copy

_NOTE = b"VMCOREINFO\0\0OSRELEASE="
_STRETCH = 1 << 20
_END = 3 << 30
"""The end of RAM below the devices of a small machine."""


def raw(dump: Dump, path: Path) -> Path:
    """Write the memory of a dump as QEMU's ``pmemsave`` does, sparse."""
    stored = memory.of_elf(dump.core)
    with path.open("wb") as file:
        for start, size in stored.ranges:
            for at in range(start, min(start + size, _END), _STRETCH):
                data = stored.read(at, min(_STRETCH, start + size - at))
                if data.strip(b"\0"):
                    file.seek(at)
                    file.write(data)
        file.truncate(-(-file.tell() // 4096) * 4096)
    return path


def without_note(dump: Dump, path: Path) -> Path:
    """Copy a dump, but give the note another owner."""
    copy(dump.core, path)
    with path.open("r+b") as file:
        place = file.read(1 << 20).index(_NOTE)
        file.seek(place)
        file.write(b"X" * 10)
    return path


def document(dump: Dump, path: Path, **options: Any) -> Any:
    target = open_target(str(path), dump.debug, **options)
    return json.loads(cases.document(target, analyses()["slab"]))


def test_vmcoreinfo_is_found_in_memory(mixed_dump: Dump, tmp_path: Path) -> None:
    expected = document(mixed_dump, mixed_dump.core)
    image = raw(mixed_dump, tmp_path / "memory.raw")
    assert document(mixed_dump, image) == expected
    assert open_target(str(image), mixed_dump.debug).format == (
        "raw image, VMCOREINFO from its memory"
    )
    dump = without_note(mixed_dump, tmp_path / "vmcore")
    assert document(mixed_dump, dump) == expected
    # Given by another dump of the same boot.
    target = open_target(str(dump), mixed_dump.debug, vmcoreinfo=mixed_dump.core)
    assert f"--vmcoreinfo {mixed_dump.core}" in (target.words or "")
    for path in (image, dump):
        assert document(mixed_dump, path, vmcoreinfo=mixed_dump.core) == expected


@pytest.mark.newest
def test_vmcoreinfo_of_another_boot_is_refused(mixed_dump: Dump) -> None:
    other = build(mixed_dump.kernel, "one").core
    with pytest.raises(TargetError, match="same boot"):
        open_target(str(mixed_dump.core), mixed_dump.debug, vmcoreinfo=other)
