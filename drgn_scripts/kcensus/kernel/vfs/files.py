# SPDX-License-Identifier: LGPL-2.1-or-later
"""Paths of files by their inodes."""

from __future__ import annotations

import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.vfs.paths import ancestry, resolve
from kcensus.kernel.vfs.super_blocks import super_blocks

_MAX_FILES = 1 << 16


def file_paths(kernel: Kernel, inodes: Words, faults: Faults) -> dict[int, str]:
    """Return the path of each file by ``struct inode``; not safe to print.

    An inode without a dentry is called by its number and file system. Beyond 65,536 files, and
    where an inode is unreadable, there is none.

    :raises LookupError: the debug info lacks inodes, dentries or super blocks
    """
    prog, memory = kernel.prog, kernel.memory
    wanted = np.unique(inodes[inodes != 0])[:_MAX_FILES]
    members = {"block": "i_sb", "number": "i_ino", "first": "i_dentry.first"}
    inode = gather(memory, wanted, layout(prog, "struct inode", members), faults)
    # The member of an anonymous union since v6.18, before of d_u (commit not verified).
    names = {"alias": ("d_u.d_alias.next", "d_alias.next")}
    alias = layout(prog, "struct dentry", names).fields["alias"]
    dentry = np.where(inode["first"], inode["first"] - np.uint64(alias.offset), np.uint64(0))
    blocks = super_blocks(kernel)
    owner = blocks.rows(inode["block"]).tolist()
    texts = {
        int(wanted[row]): f"inode {inode['number'][row]} of {blocks.id[owner[row]]}"
        for row in np.flatnonzero(inode.readable).tolist()
        if owner[row] >= 0
    }
    above = ancestry(memory, dentry, faults)
    rows = np.flatnonzero(dentry)
    for row, path in zip(rows, resolve(above, dentry[rows], blocks.mount_roots), strict=True):
        if int(wanted[row]) in texts:
            texts[int(wanted[row])] = path.text
    return texts
