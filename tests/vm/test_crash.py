# SPDX-License-Identifier: LGPL-2.1-or-later
"""The census of slabs against crash's ``kmem -s``, on the kernels that crash can read."""

from __future__ import annotations

import subprocess

import pytest

from kcensus.sources import open_target
from tests.lab import build
from tests.running import on, runner

run = runner("slab")


def kmem_s(vmlinux: str, vmcore: str) -> dict[str, tuple[int, int, int, int]]:
    """Return (object size, allocated objects, slots, slabs) by cache."""
    done = subprocess.run(
        ["crash", "-s", vmlinux, vmcore],
        input="set scroll off\nkmem -s\nquit\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = {}
    for line in done.stdout.splitlines():
        fields = line.split(maxsplit=6)
        if len(fields) == 7 and fields[0] != "CACHE" and fields[1].isdigit():
            size, allocated, total, slabs = map(int, fields[1:5])
            found[fields[6].strip()] = (size, allocated, total, slabs)
    return found


@pytest.mark.parametrize("release", ["5.10", "6.1"])
def test_kmem_s(release: str) -> None:
    dump = build(release, "mixed")
    target = open_target(str(dump.formats["elf"]), dump.debug)
    frame = run(on(target.prog)).tables["caches"].frame
    expected = kmem_s(str(dump.vmlinux), str(dump.formats["elf"]))
    assert len(expected) > 100
    columns = frame[["object_size", "objects_active", "objects_total", "slabs"]]
    found = dict(zip(frame["cache"], columns.itertuples(index=False, name=None), strict=True))
    assert found == expected
