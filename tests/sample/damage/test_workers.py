# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists of workers of a recorded kernel, bent on purpose."""

from __future__ import annotations

import drgn

from kcensus.engine.memory import Memory
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.vfs.dcache import hash_table
from kcensus.kernel.workqueues import Workqueues, workqueues
from kcensus.sources import open_target
from tests.sample.block.poked import Poked


def _running(found: Workqueues) -> int:
    return int((found.items["state"] == "in-flight").sum())


def test_a_list_of_workers_that_leads_to_other_objects_has_no_workers_there() -> None:
    sound = workqueues(Kernel(open_target("sample").prog))
    poked = Poked(open_target("sample").prog)
    prog = poked.prog
    table, buckets = hash_table(Memory(prog))
    nodes = drgn.Object(prog, prog.array_type(prog.type("unsigned long"), buckets), address=table)
    node = next(first & ~1 for first in nodes.value_() if first)
    busy = drgn.offsetof(prog.type("struct worker_pool"), "busy_hash")
    for pool in sound.pools:
        poked.word(pool.address + busy, node)
    found = workqueues(Kernel(prog))
    assert _running(found) <= _running(sound)
    assert found.damaged > sound.damaged
