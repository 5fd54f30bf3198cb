# SPDX-License-Identifier: LGPL-2.1-or-later
"""The object of each sleeping task's wait, its evidence, and the age of the wait.

The object comes from pointers, in this order: the lists of waiters of objects (XFS buffers, logs,
the hashed wait queues), the list linked with the task's own stack, the direct I/O that names the
task, and ``task.blocker``. Without a pointer, the functions on the stack show the kind of wait, and
the object stays unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np

from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.engine.slub.slabs import ScanReport, UnsupportedAllocator
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.tasks.functions import ON_TIMERS, WaitKind
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.tasks.tasks import tasks
from kcensus.kernel.waiting.objects.direct_io import direct_io
from kcensus.kernel.waiting.objects.lists import buffers_of_xfs, logs_of_xfs, pages_and_bits
from kcensus.kernel.waiting.objects.locks import blockers, percpu_writers, rings
from kcensus.kernel.waiting.objects.queues import queues_and_locks, tags
from kcensus.kernel.waiting.objects.reading import Reading


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
    """Age of the wait, nanoseconds, as exact as :attr:`Tasks.off_cpu_ns`; -1 if unknown. It starts
    again if the task wakes up and goes on waiting."""
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
    def undetermined(self) -> int:
        """Number of tasks with an undetermined object; tasks that sleep on a timer have none."""
        timed = np.array([function in ON_TIMERS for function in self.function], np.bool_)
        return int(np.count_nonzero(~self.is_proven & ~timed))


@once
def waits(kernel: Kernel) -> Waits:
    """Return the waits of all tasks in state D.

    :raises LookupError: the debug info lacks tasks
    :raises drgn.FaultError: the head of the list of tasks is not in the dump
    """
    return _read(kernel, np.flatnonzero(tasks(kernel).is_blocked))


@once
def sleeps(kernel: Kernel) -> Waits:
    """Return the waits of all sleeping tasks, in state D or S.

    :raises LookupError: the debug info lacks tasks
    :raises drgn.FaultError: the head of the list of tasks is not in the dump
    """
    return _read(kernel, np.flatnonzero(tasks(kernel).is_asleep))


def _read(kernel: Kernel, rows: Numbers) -> Waits:
    reading = Reading(kernel, rows)
    for what, look in (
        ("XFS buffers", buffers_of_xfs),
        ("XFS logs", logs_of_xfs),
        ("wait queues of pages and bits", pages_and_bits),
        ("wait queues and locks", queues_and_locks),
        ("percpu_rw_semaphore", percpu_writers),
        ("direct I/O", direct_io),
        ("task.blocker", blockers),
        ("rings of waiters", rings),
        ("disks of tags", tags),
    ):
        try:
            look(reading)
        except (LookupError, UnsupportedAllocator):
            reading.missing.append(what)
        except drgn.FaultError as error:
            reading.faults.note(error)
            reading.missing.append(what)
    for row in np.flatnonzero(reading.object == 0).tolist():
        function = reading.facts[row].function
        reading.evidence[row] = f"frame {function}" if function else ""
    known, rows = reading.known, reading.rows
    return Waits(
        task=known.address[rows],
        pid=known.pid[rows],
        comm=[known.comm[row] for row in rows.tolist()],
        function=[each.function for each in reading.facts],
        entry=[each.entry for each in reading.facts],
        kind=reading.kind,
        object=reading.object,
        type=reading.type,
        evidence=reading.evidence,
        holder=reading.holder,
        device=reading.device,
        disk=reading.disk,
        sector=reading.sector,
        sectors=reading.sectors,
        inode=reading.inode,
        offset=reading.offset,
        since_ns=known.off_cpu_ns[rows],
        stacks=reading.stacks,
        contradicted=reading.contradicted,
        missing=reading.missing,
        torn=reading.torn,
        faults=reading.faults,
        report=reading.report,
    )
