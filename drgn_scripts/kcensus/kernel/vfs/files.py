# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files: their paths by inode, and the processes that have them open."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import gather, gather_pointers
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.engine.rows import spread
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.names import decode_array
from kcensus.kernel.tasks.tasks import main_threads, tasks
from kcensus.kernel.vfs.paths import ancestry, resolve
from kcensus.kernel.vfs.super_blocks import super_blocks

_MAX_FILES = 1 << 16
_MAX_DESCRIPTORS = 1 << 24
"""Entries of descriptor tables to read: 128 MiB of pointers."""
_READS, _WRITES = 1, 2
"""FMODE_READ and FMODE_WRITE."""


def file_paths(kernel: Kernel, inodes: Words, faults: Faults) -> dict[int, str]:
    """Return the path of each file by ``struct inode``; not safe to print.

    An inode without a dentry is named by its number and file system. Unreadable inodes, and those
    beyond 65,536 files, have no path.

    :raises LookupError: the debug info lacks inodes, dentries or super blocks
    """
    prog, memory = kernel.prog, kernel.memory
    wanted = np.unique(inodes[inodes != 0])[:_MAX_FILES]
    members = {"block": "i_sb", "number": "i_ino", "first": "i_dentry.first"}
    inode = gather(memory, wanted, layout(prog, "struct inode", members), faults)
    blocks = super_blocks(kernel)
    owner = blocks.rows(inode["block"]).tolist()
    texts = {
        int(wanted[row]): f"inode {inode['number'][row]} of {blocks.id[owner[row]]}"
        for row in np.flatnonzero(inode.readable).tolist()
        if owner[row] >= 0
    }
    named = dentry_paths(kernel, inode["first"], faults)
    named = {int(wanted[row]): path for row, path in named.items()}
    return texts | {address: path for address, path in named.items() if address in texts}


def dentry_paths(kernel: Kernel, first: Words, faults: Faults) -> dict[int, str]:
    """Return the paths of inodes with a dentry, by row; not safe to print.

    :param first: ``inode.i_dentry.first``
    """
    # A member of an anonymous union since Linux kernel commit 3b7d764a37d0 ("struct dentry: make
    # ->d_u anonymous") (in v7.1), of d_u before.
    names = {"alias": ("d_u.d_alias.next", "d_alias.next")}
    alias = layout(kernel.prog, "struct dentry", names).fields["alias"]
    rows = np.flatnonzero(first)
    dentries = first[rows] - np.uint64(alias.offset)
    above = ancestry(kernel.memory, dentries, faults)
    paths = resolve(above, dentries, super_blocks(kernel).mount_roots)
    return {row: path.text for row, path in zip(rows.tolist(), paths, strict=True)}


@dataclass(frozen=True)
class OpenFiles:
    """Open files as columns: a row per entry of a descriptor table."""

    files: Words
    """``struct files_struct *`` with the table; threads of a process share it."""
    descriptor: Numbers
    address: Words
    """``struct file *``."""
    private: Words
    """``file.private_data``: for a pipe, its ``struct pipe_inode_info``."""
    reads: Mask
    writes: Mask
    tables: Words
    """``task.files`` of each of :func:`tasks`; 0 for a kernel thread or an exiting task."""
    damaged: int = 0
    """Descriptor tables of an impossible size."""
    faults: Faults = field(default_factory=Faults)

    def of(self, private: Words) -> tuple[Lanes, Numbers]:
        """Return the index in ``private`` and the row of each file of these objects.

        :param private: values of :attr:`private`, each once
        """
        rows = np.flatnonzero(np.isin(self.private, private))
        order = np.argsort(private)
        return order[np.searchsorted(private, self.private[rows], sorter=order)], rows


@once
def open_files(kernel: Kernel) -> OpenFiles:
    """Return the open files of all tasks.

    :raises LookupError: the debug info lacks a type or variable
    :raises drgn.FaultError: the head of the list of tasks is not in the dump
    """
    memory, prog, faults = kernel.memory, kernel.prog, Faults()
    member = layout(prog, "struct task_struct", ["files"])
    own = gather(memory, tasks(kernel).address, member, faults)["files"]
    files = np.unique(own[own != 0])
    owner, number, file, damaged = _descriptors(memory, files, faults)
    members = layout(prog, "struct file", {"private": "private_data", "mode": "f_mode"})
    read = gather(memory, file, members, faults)
    return OpenFiles(
        files=files[owner],
        descriptor=number,
        address=file,
        private=read["private"],
        reads=(read["mode"] & _READS) != 0,
        writes=(read["mode"] & _WRITES) != 0,
        tables=own,
        damaged=damaged,
        faults=faults,
    )


@dataclass(frozen=True)
class OpenPaths:
    """Uses of dentries by processes, as columns: all working directories, then all open files."""

    pid: Numbers
    task: Words
    """Main thread of each process."""
    comm: list[str]
    """Name of each process; not safe to print."""
    process: Numbers
    dentry: Words
    is_file: Mask
    damaged: int
    """Torn lists of tasks, and descriptor tables of an impossible size."""
    faults: Faults


@once
def open_paths(kernel: Kernel) -> OpenPaths:
    """Return the working directories and open files of all processes.

    They are read from main threads: other threads nearly always share them.

    :raises LookupError: the debug info lacks a type or variable
    :raises drgn.FaultError: the head of the list of tasks is not in the dump
    """
    memory, prog, faults = kernel.memory, kernel.prog, Faults()
    address, damaged = main_threads(memory, faults)
    members = {"pid": "tgid", "comm": "comm", "fs": "fs", "files": "files"}
    leaders = gather(memory, address, layout(prog, "struct task_struct", members), faults)
    cwd = layout(prog, "struct fs_struct", {"dentry": "pwd.dentry"})
    directory = gather(memory, leaders["fs"], cwd, faults)["dentry"]
    owner, _, file, impossible = _descriptors(memory, leaders["files"], faults)
    dentry = layout(prog, "struct file", {"dentry": "f_path.dentry"})
    used = np.concatenate([directory, gather(memory, file, dentry, faults)["dentry"]])
    known = used != 0
    return OpenPaths(
        pid=leaders["pid"].astype(np.int64),
        task=address,
        comm=[decode_array(raw) for raw in leaders["comm"].tolist()],
        process=np.concatenate([np.arange(len(address)), owner])[known],
        dentry=used[known],
        is_file=(np.arange(len(used)) >= len(directory))[known],
        damaged=damaged + impossible,
        faults=faults,
    )


def _descriptors(memory: Memory, files: Words, faults: Faults) -> tuple[Lanes, Numbers, Words, int]:
    """Return the row in ``files``, the number and the ``struct file *`` of all open descriptors.

    :param files: ``struct files_struct *``
    :return: also the number of tables of an impossible size
    """
    prog = memory.prog
    table = layout(prog, "struct files_struct", {"table": "fdt"})
    sizes = layout(prog, "struct fdtable", {"size": "max_fds", "entries": "fd"})
    tables = gather(memory, gather(memory, files, table, faults)["table"], sizes, faults)
    size = tables["size"].astype(np.int64)
    fits = size <= _MAX_DESCRIPTORS
    fits &= np.cumsum(np.where(fits, size, 0)) <= _MAX_DESCRIPTORS
    owner, number = spread(np.where(fits, size, 0))
    _, file, _ = gather_pointers(memory, tables["entries"], np.where(fits, size, 0), faults)
    used = np.flatnonzero(file)
    return owner[used], number[used], file[used], int(np.count_nonzero(~fits))
