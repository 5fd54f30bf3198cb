# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pipes: which processes have an end of them open."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import gather, gather_words
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.tasks.tasks import tasks

_MAX_DESCRIPTORS = 1 << 24
"""Entries of descriptor tables to read: 128 MiB of pointers."""
_READS, _WRITES = 1, 2
"""FMODE_READ and FMODE_WRITE."""


@dataclass(frozen=True)
class OpenFiles:
    """Open files as columns: a row per entry of a descriptor table."""

    files: Words
    """``struct files_struct *`` with the table; threads of a process share it."""
    descriptor: npt.NDArray[np.int64]
    address: Words
    """``struct file *``."""
    private: Words
    """``file.private_data``: of a pipe, its ``struct pipe_inode_info``."""
    reads: Mask
    writes: Mask
    tables: Words
    """``task.files`` of each of :func:`tasks`; 0 for a kernel thread or one that exits."""
    damaged: int = 0
    """Descriptor tables of an impossible size."""
    faults: Faults = field(default_factory=Faults)

    def of(self, private: Words) -> tuple[Lanes, npt.NDArray[np.int64]]:
        """Return which of some objects files are for, and the rows of these files.

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
    known = tasks(kernel)
    member = layout(prog, "struct task_struct", ["files"])
    own = gather(memory, known.address, member, faults)["files"]
    files = np.unique(own[own != 0])
    table = layout(prog, "struct files_struct", {"table": "fdt"})
    sizes = layout(prog, "struct fdtable", {"size": "max_fds", "entries": "fd"})
    tables = gather(memory, gather(memory, files, table, faults)["table"], sizes, faults)
    size = tables["size"].astype(np.int64)
    fits = size <= _MAX_DESCRIPTORS
    fits &= np.cumsum(np.where(fits, size, 0)) <= _MAX_DESCRIPTORS
    size = np.where(fits, size, 0)
    owner = np.repeat(np.arange(len(size)), size)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
    places = tables["entries"][owner] + np.uint64(8) * number.astype(np.uint64)
    file, _ = gather_words(memory, places, word_dtype(prog), faults)
    used = np.flatnonzero(file)
    members = layout(prog, "struct file", {"private": "private_data", "mode": "f_mode"})
    read = gather(memory, file[used], members, faults)
    mode = read["mode"].astype(np.int64)
    return OpenFiles(
        files=files[owner[used]],
        descriptor=number[used],
        address=file[used],
        private=np.where(read.readable, read["private"], np.uint64(0)),
        reads=(mode & _READS) != 0,
        writes=(mode & _WRITES) != 0,
        tables=own,
        damaged=int(np.count_nonzero(~fits)),
        faults=faults,
    )
