# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mutex that is just handed over, made from the dump of a guest by a change of one word."""

from __future__ import annotations

import drgn
import numpy as np
import pytest

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.waiting.cycles import cycles
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.kernel.waiting.reader import waiting
from kcensus.sources import Target, open_target
from tests.lab import Dump, build

_PICKUP_AND_WAITERS = 5


def opened(dump: Dump) -> Target:
    return open_target(str(dump.formats["elf"]), dump.debug)


@pytest.mark.usually("6.1")
def test_no_task_waits_for_itself_as_it_is_given_a_mutex(kernel: str) -> None:
    dump = build(kernel, "waits-convoy")
    graph = waiting(Kernel(opened(dump).prog)).graph
    waiting_for = np.bincount(graph.target, minlength=len(graph))
    mutex = int(np.argmax(waiting_for))
    assert graph.kind[mutex] is NodeKind.MUTEX
    given = next(edge for edge in graph.preceding[mutex] if graph.edge[edge] is EdgeKind.WAITS)
    task = int(graph.address[graph.source[given]])

    prog = opened(dump).prog
    place = int(graph.address[mutex]) + drgn.offsetof(prog.type("struct mutex"), "owner")
    word = (task | _PICKUP_AND_WAITERS).to_bytes(8, "little")
    prog.add_memory_segment(place, 8, lambda _, size, at, __: word[at : at + size], False)
    changed = waiting(Kernel(prog)).graph
    assert cycles(changed) == []
    lock = changed.address.tolist().index(int(graph.address[mutex]))
    assert changed.following[lock] == []
    assert len(changed.preceding[lock]) == waiting_for[mutex]
