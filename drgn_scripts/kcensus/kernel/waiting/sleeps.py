# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read the objects that sleeping tasks wait for, once per kernel.

The object comes from pointers, in this order: the lists of waiters of objects (XFS buffers, logs,
the hashed wait queues), the list linked with the task's own stack, and pointers of the task and
words on its stack. Finders declare the first and the last; see :class:`.finder.Finder`. Without a
pointer, the functions on the stack show the kind of wait, and the object stays unknown.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.tasks.functions import kinds_by_function
from kcensus.kernel.tasks.tasks import tasks
from kcensus.kernel.waiting.finders import finders
from kcensus.kernel.waiting.objects.queues import queues_and_locks
from kcensus.kernel.waiting.objects.reading import Reading
from kcensus.kernel.waiting.waits import Waits


@once
def sleeps(kernel: Kernel) -> Waits:
    """Return the waits of all sleeping tasks, in state D or S.

    :raises LookupError: the debug info lacks tasks
    :raises drgn.FaultError: the head of the list of tasks is not in the dump
    """
    rows = np.flatnonzero(tasks(kernel).is_asleep)
    kinds = kinds_by_function(finder.sleeps for finder in finders())
    queues = {name: owner for finder in finders() for name, owner in finder.queues.items()}
    reading = Reading(kernel, rows, kinds, queues)
    for reads in (
        *(finder.lists for finder in finders()),
        {"wait queues and locks": queues_and_locks},
        *(finder.pointers for finder in finders()),
    ):
        for what, read in reads.items():
            reading.attempt(what, partial(read, reading))
    return _made(reading)


def _made(reading: Reading) -> Waits:
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
        is_least=np.zeros(len(rows), np.bool_),
        stacks=reading.stacks,
        contradicted=reading.contradicted,
        missing=reading.missing,
        torn=reading.torn,
        faults=reading.faults,
        report=reading.report,
    )
