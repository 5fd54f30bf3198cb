# SPDX-License-Identifier: LGPL-2.1-or-later
"""Paths of block cgroups, and where their files are."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from drgn import Object

from kcensus.engine.memory import Words
from kcensus.kernel.block.bios import group_paths
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.cgroup_mounts import cgroup_mount
from kcensus.kernel.names import MISSING


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
    paths, found = group_paths(kernel, groups), {}
    for address in set(groups.tolist()):
        cgroup = 0
        with contextlib.suppress(*MISSING):
            cgroup = int(Object(kernel.prog, "struct blkcg_gq *", address).blkcg.css.cgroup)
        mount = cgroup_mount(kernel, cgroup, "blkio")
        found[address] = BlockCgroup(paths.get(address, ""), mount.path, mount.is_unified)
    return found
