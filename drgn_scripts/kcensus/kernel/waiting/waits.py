# SPDX-License-Identifier: LGPL-2.1-or-later
"""The object of each sleeping task's wait, its evidence, and the age of the wait, as columns."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.tasks.functions import ON_TIMERS, WaitKind
from kcensus.kernel.tasks.stacks import Stacks


@dataclass(frozen=True)
class Waits:
    """Sleeping tasks as columns, in the order of :func:`tasks`."""

    task: Words
    """``struct task_struct *``."""
    pid: Numbers
    comm: list[str]
    """Not safe to print."""
    function: list[str]
    """The function in which the task waits; empty if its stack is unreadable."""
    entry: list[str]
    """The system call of the task, or the function of its thread or work item."""
    kind: list[WaitKind]
    object: Words
    """The object; 0 without a pointer. Its type is in :attr:`type`."""
    type: list[str]
    """C type of the object, such as ``struct xfs_buf``."""
    evidence: list[str]
    """The member that proves the object, or ``frame FUNCTION`` if only the kind is known."""
    holder: Words
    """The task that holds the object; 0 without a pointer."""
    device: Numbers
    """``dev_t`` as the kernel packs it, 12 bits of major and 20 of minor; -1 if unknown."""
    disk: Words
    """``struct gendisk *`` of that device; 0 if unknown."""
    sector: Numbers
    """First 512-byte sector on the *disk*; -1 if unknown."""
    sectors: Numbers
    """Length in sectors; 0 if unknown."""
    inode: Words
    """Inode of the folio or direct I/O; 0 if none."""
    offset: Numbers
    """Position in this file, bytes; -1 if unknown."""
    since_ns: Numbers
    """Age of the wait, nanoseconds, as exact as :attr:`Tasks.off_cpu_ns`; -1 if unknown. That of
    :func:`.sleeps` starts again if the task wakes up and goes on waiting; :func:`.wait_ages`
    corrects it."""
    is_least: Mask
    """Whether the task may have woken up, and waited before."""
    stacks: Stacks
    """Stacks of the tasks, in the same order."""
    contradicted: int = 0
    """Tasks with their own stack on another list than the object's."""
    missing: list[str] = field(default_factory=list)
    """Subjects without debug info, such as ``XFS buffers``."""
    torn: int = 0
    """Lists of waiters that could not be followed to their end."""
    faults: Faults = field(default_factory=Faults)
    report: ScanReport = field(default_factory=ScanReport)
    """Scan of the slabs with XFS buffers."""

    def __len__(self) -> int:
        return len(self.task)

    @property
    def is_proven(self) -> Mask:
        """Mask of the objects proven by a pointer in the kernel."""
        return np.asarray(self.object != 0)

    @property
    def is_timed(self) -> Mask:
        """Mask of the tasks that sleep on a timer, whatever else happens."""
        return np.array([function in ON_TIMERS for function in self.function], np.bool_)

    @property
    def undetermined(self) -> int:
        """Number of tasks with an undetermined object; tasks that sleep on a timer have none."""
        return int(np.count_nonzero(~self.is_proven & ~self.is_timed))

    def part(self, rows: Numbers) -> Waits:
        """Return the waits of some tasks."""
        columns: dict[str, Any] = {"stacks": self.stacks.part(rows)}
        for each in fields(self):
            column = getattr(self, each.name)
            if isinstance(column, np.ndarray):
                columns[each.name] = column[rows]
            elif isinstance(column, list) and each.name != "missing":
                columns[each.name] = [column[row] for row in rows.tolist()]
        return replace(self, **columns)
