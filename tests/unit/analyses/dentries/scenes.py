# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directory trees of *synthetic* kernels, and what ``kcensus dentries`` says of them."""

from __future__ import annotations

from typing import Any

from drgn import Object

from kcensus.results import Result
from tests.running import on, runner
from tests.unit.fakekernel.dcache import FakeDcache, Made

run = runner("dentries")
LONG = b"a name that is too long for the dentry itself %d"


def mounted() -> tuple[FakeDcache, Object]:
    dcache = FakeDcache()
    super_block = dcache.super_block("sda")
    dcache.files.mount(super_block, None)
    return dcache, super_block.s_root[0]


def populated() -> tuple[FakeDcache, dict[str, Made]]:
    dcache = FakeDcache()
    return dcache, populate(dcache)[1]


def watch(dcache: FakeDcache, directory: Made) -> None:
    k = dcache.machine
    inode = k.alloc("struct inode")
    k.set(inode.i_fsnotify_mask, 2)
    k.set(inode.i_fsnotify_marks, inode)
    k.set(directory.object.d_inode, inode)


def census(dcache: FakeDcache, **params: Any) -> Result:
    return run(on(dcache.machine.prog), **params)


def figures(result: Result, *names: str) -> tuple[Any, ...]:
    return tuple(result.summary[name].value for name in names)


def populate(dcache: FakeDcache, flood: int = 30) -> tuple[Object, dict[str, Made]]:
    """Files, names that do not exist, and dentries that are neither."""
    super_block = dcache.super_block("sda")
    root = super_block.s_root[0]
    dcache.files.mount(super_block, None)
    made = {"dir": dcache.dentry(b"dir", root, directory=True, count=1, bucket=1)}
    above = made["dir"].object
    for number in range(flood):
        made[f"n{number}"] = dcache.dentry(b"tmp.%03d" % number, above, "lru", bucket=2)
    for number in range(5):
        made[f"l{number}"] = dcache.dentry(LONG % number, above, "lru", bucket=3)
    made["file"] = dcache.dentry(b"file", above, "lru", "referenced", positive=True, bucket=2)
    made["seen"] = dcache.dentry(b"seen", above, "lru", "referenced", bucket=2)
    made["held"] = dcache.dentry(b"held", above, count=2, bucket=2)
    made["going"] = dcache.dentry(b"going", above, "lru", "shrink", bucket=18)
    made["dead"] = dcache.dentry(b"dead", above, count=-128, listed=False)
    if "lookup" in dcache.bits:
        made["lookup"] = dcache.dentry(b"lookup", above, "lookup", count=1)
        made["cursor"] = dcache.dentry(b"", above, "cursor", count=1)
    dcache.finish()
    return super_block, made


def damage(result: Result) -> dict[str, int]:
    """Count the gaps, but for what the bundled capsule of an era does not describe."""
    return {gap.what: gap.count for gap in result.gaps if "the capsule lacks" not in gap.reason}
