# SPDX-License-Identifier: LGPL-2.1-or-later
"""Paths of block cgroups, and where their files are."""

from __future__ import annotations

from dataclasses import dataclass

import drgn

from kcensus.engine.memory import Words
from kcensus.kernel.block.bios import group_paths
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import ABSENT
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.sources.capsule import NotRecorded

_UNIFIED, _LEGACY = "/sys/fs/cgroup", "/sys/fs/cgroup/blkio"
"""Where systemd mounts them."""


@dataclass(frozen=True)
class BlockCgroup:
    """A cgroup with limits of I/O; text is not safe to print."""

    path: str
    """Within its hierarchy; empty if unknown."""
    mount: str
    is_unified: bool
    """Whether it is in the hierarchy of cgroup v2."""

    def file(self, name: str) -> str:
        """Return the path of a file of the cgroup."""
        return f"{self.mount}{self.path.rstrip('/')}/{name}"


def block_cgroups(kernel: Kernel, groups: Words) -> dict[int, BlockCgroup]:
    """Return the cgroup of each ``struct blkcg_gq``."""
    paths = group_paths(kernel, groups)
    mounts = _mounts(kernel)
    found = {}
    for address in set(groups.tolist()):
        is_unified = _is_unified(kernel.prog, address)
        mount = mounts[is_unified]
        found[address] = BlockCgroup(paths.get(address, ""), mount, is_unified)
    return found


def _mounts(kernel: Kernel) -> dict[bool, str]:
    mounts = {True: _UNIFIED, False: _LEGACY}
    try:
        blocks = super_blocks(kernel)
    except (*ABSENT, NotRecorded):
        return mounts
    for type_, mount in zip(blocks.type, blocks.mount, strict=True):
        if type_ == "cgroup2" and mount:
            mounts[True] = mount
        if type_ == "cgroup" and "blkio" in mount.rpartition("/")[2].split(","):
            mounts[False] = mount
    return mounts


def _is_unified(prog: drgn.Program, group: int) -> bool:
    try:
        root = prog["cgrp_dfl_root"].address_of_()
        return bool(drgn.Object(prog, "struct blkcg_gq *", group).blkcg.css.cgroup.root == root)
    except (*ABSENT, NotRecorded):
        return True
