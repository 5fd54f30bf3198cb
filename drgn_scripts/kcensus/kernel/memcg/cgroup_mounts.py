# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mount points of hierarchies of cgroups."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from drgn import Object

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.memcg.limits import is_unified as has_unified_memory
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
    is_unified, own = has_unified_memory(kernel.prog), 0
    with contextlib.suppress(*MISSING):
        root = Object(kernel.prog, "struct cgroup *", value=cgroup).member_("root").read_()
        is_unified = _is_default(root)
        # RHEL 7 has hierarchies without kernfs.
        own = int(root.member_("kf_root"))
    mount = ""
    with contextlib.suppress(*MISSING):
        mount = _mounts(kernel).get((own, is_unified), "")
    usual = f"{_USUAL}{'' if is_unified else f'/{controller}'}" if controller else ""
    return CgroupMount(mount or usual, is_unified)


def _is_default(root: Object) -> bool:
    """Return whether a hierarchy is that of cgroup v2, which older kernels do not have."""
    try:
        return bool(root == root.prog_["cgrp_dfl_root"].address_of_())
    except LookupError:
        return False


@once
def _mounts(kernel: Kernel) -> dict[tuple[int, bool], str]:
    """Return the mount point by ``struct kernfs_root``, and whether it is of cgroup v2.

    :raises LookupError: the debug info lacks a type of kernfs or of super blocks
    """
    blocks, found = super_blocks(kernel), dict[tuple[int, bool], str]()
    rows = [row for row, type_ in enumerate(blocks.type) if type_ in ("cgroup", "cgroup2")]
    address = blocks.address[rows]
    for type_, member in _MEMBERS:
        members = layout(kernel.prog, type_, [member])
        address = gather(kernel.memory, address, members, Faults())[member]
    for row, root in zip(rows, address.tolist(), strict=True):
        if root:
            found[root, blocks.type[row] == "cgroup2"] = blocks.mount[row]
    return found
