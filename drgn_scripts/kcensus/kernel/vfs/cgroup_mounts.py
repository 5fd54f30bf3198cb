# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mount points of hierarchies of cgroups."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
from drgn import Object

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import MISSING
from kcensus.kernel.vfs.super_blocks import super_blocks

_USUAL = "/sys/fs/cgroup"
"""Where systemd mounts cgroup v2; controllers of v1 are mounted below it."""

_MEMBERS = ("struct super_block", "s_fs_info"), ("struct kernfs_super_info", "root")


@dataclass(frozen=True)
class CgroupMount:
    """Where the hierarchy of a cgroup is mounted."""

    path: str
    """Not safe to print; empty if unknown."""
    is_unified: bool
    """Whether it is the hierarchy of cgroup v2."""


def cgroup_mount(kernel: Kernel, cgroup: int, controller: str = "") -> CgroupMount:
    """Return the mount point of the hierarchy of a ``struct cgroup``.

    :param controller: of cgroup v1, for the usual mount point where the own one is unknown
    """
    is_unified, own = True, 0
    with contextlib.suppress(*MISSING):
        root = Object(kernel.prog, "struct cgroup *", value=cgroup).root.read_()
        own = int(root.kf_root)
        is_unified = False
        is_unified = root == kernel.prog["cgrp_dfl_root"].address_of_()
    mount = ""
    with contextlib.suppress(*MISSING):
        blocks, wanted = super_blocks(kernel), "cgroup2" if is_unified else "cgroup"
        rows = [row for row, type_ in enumerate(blocks.type) if type_ == wanted]
        address = blocks.address[rows]
        for type_, member in _MEMBERS:
            members = layout(kernel.prog, type_, [member])
            address = gather(kernel.memory, address, members, Faults())[member]
        for row in np.array(rows, np.int64)[(address == own) & (address != 0)].tolist():
            mount = blocks.mount[row]
    usual = f"{_USUAL}{'' if is_unified else f'/{controller}'}" if controller else ""
    return CgroupMount(mount or usual, is_unified)
