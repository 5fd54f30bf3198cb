# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dentries that processes use: working directories and open files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather, gather_pointers
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.names import decode_array
from kcensus.kernel.tasks.tasks import main_threads

_MAX_DESCRIPTORS = 1 << 24
"""Entries of descriptor tables to read: 128 MiB of pointers."""


@dataclass(frozen=True)
class OpenPaths:
    """Uses of dentries by processes, as columns: all working directories, then all open files."""

    pid: npt.NDArray[np.int64]
    """By process: the PID of its main thread."""
    task: Words
    """By process: the address of its main thread."""
    comm: list[str]
    """By process. Valid Unicode but not safe to print."""
    process: npt.NDArray[np.int64]
    """Row of the process of each use."""
    dentry: Words
    is_file: Mask
    """Whether the use is an open file; otherwise it is the working directory."""
    damaged: int
    """Lists of tasks that could not be followed to their end, and descriptor tables of an
    impossible size."""
    faults: Faults


@once
def open_paths(kernel: Kernel) -> OpenPaths:
    """Return the working directories and open files of all processes.

    They are those of the main threads: other threads nearly always share them.

    :raises LookupError: the debug info lacks a type or variable
    :raises drgn.FaultError: the head of the list of tasks is not in the dump
    """
    memory, prog, faults = kernel.memory, kernel.prog, Faults()
    address, damaged = main_threads(memory, faults)
    members = {"pid": "tgid", "comm": "comm", "fs": "fs", "files": "files"}
    tasks = gather(memory, address, layout(prog, "struct task_struct", members), faults)
    cwd = layout(prog, "struct fs_struct", {"dentry": "pwd.dentry"})
    directory = gather(memory, tasks["fs"], cwd, faults)["dentry"]
    files = layout(prog, "struct files_struct", {"table": "fdt"})
    table = layout(prog, "struct fdtable", {"size": "max_fds", "entries": "fd"})
    pointers = gather(memory, tasks["files"], files, faults)["table"]
    tables = gather(memory, pointers, table, faults)
    size = tables["size"].astype(np.int64)
    fits = size <= _MAX_DESCRIPTORS
    fits &= np.cumsum(np.where(fits, size, 0)) <= _MAX_DESCRIPTORS
    size = np.where(fits, size, 0)
    owner, file, _ = gather_pointers(memory, tables["entries"], size, faults)
    held = np.flatnonzero(file)
    dentry = layout(prog, "struct file", {"dentry": "f_path.dentry"})
    opened = gather(memory, file[held], dentry, faults)["dentry"]
    process = np.concatenate([np.arange(len(size)), owner[held]])
    used = np.concatenate([directory, opened])
    is_file = np.arange(len(used)) >= len(directory)
    known = used != 0
    return OpenPaths(
        pid=tasks["pid"].astype(np.int64),
        task=address,
        comm=[decode_array(raw) for raw in tasks["comm"].tolist()],
        process=process[known],
        dentry=used[known],
        is_file=is_file[known],
        damaged=damaged + int(np.count_nonzero(~fits)),
        faults=faults,
    )
