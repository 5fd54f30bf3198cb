# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups at their limits, whose tasks wait for memory.

Above ``memory.high``, a task sleeps for up to two seconds each time it has been charged for more
memory, since Linux kernel commit 0e4b01df8659 ("mm, memcg: throttle allocators when failing reclaim
over memory.high") (in v5.4). With cgroup v1 and the OOM killer disabled, or behind its victims, a
task sleeps at the hard limit until memory is uncharged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcensus.engine.memory import Numbers, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.memcg.limits import Limits, limits
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.memcg.processes import below, members
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.victims import victims
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.findings.memory_cgroups import filled
from kcensus.kernel.waiting.graph import TASK, EdgeKind, NodeKind
from kcensus.results import Finding, Gap, nonzero_gaps

MEMCG = NodeKind("memory cgroup", ("struct mem_cgroup",))
LIMITED = EdgeKind("limited by", "limits")
FREED = EdgeKind(
    "freed by the end of",
    "is a victim of the OOM killer, whose end frees",
    advice="The OOM killer has sent SIGKILL already: end what the victim itself waits for",
)
_HIGH = frozenset({"mem_cgroup_handle_over_high", "__mem_cgroup_handle_over_high"})
_OOM = frozenset({"mem_cgroup_oom_synchronize"})
RECLAIMS = frozenset({"reclaim_throttle", "congestion_wait", "wait_iff_congested"})
"""Functions in which tasks that reclaim memory wait for others that do, or for writeback."""
OF_MEMCG = frozenset({"try_to_free_mem_cgroup_pages"})
_BATCH = 64
"""Pages below the limit at which a charge of a CPU's batch of 32 to 64 pages exceeds it."""


class MemoryCgroups(Finder):
    """Finds the memory cgroups whose limits tasks wait at, and the victims of the OOM killer."""

    about = "memory cgroups"
    kinds = (MEMCG,)
    sleeps = {WaitKind.MEMORY: " ".join(sorted(_HIGH | _OOM))}

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.high, self.full, self.oom = (set[int]() for _ in range(3))
        """Rows of the memory cgroups of throttled tasks, of tasks that reclaim, and of those that
        wait for the OOM killer."""

    def note(self) -> None:
        """Note the memory cgroup of each task that sleeps at a limit.

        :raises LookupError: the debug info lacks a type
        """
        high, oom = (self._in(functions) for functions in (_HIGH, _OOM))
        full = np.intersect1d(self._in(RECLAIMS), self._having(OF_MEMCG))
        if len(own := np.concatenate([high, full])):
            self._own(own, "mm.owner, task.cgroups")
            rows = members(self.kernel).memcg[self.rows]
            self.high = {*rows[high].tolist()} - {-1}
            self.full = {*rows[full].tolist()} - {-1}
        if len(oom):
            self._in_oom(oom)

    def _in(self, functions: frozenset[str]) -> Numbers:
        found = [lane for lane, name in enumerate(self.waits.function) if name in functions]
        return np.array(found, np.int64)

    def _own(self, lanes: Numbers, evidence: str) -> None:
        rows = members(self.kernel).memcg[self.rows[lanes]]
        for lane, row in zip(lanes.tolist(), rows.tolist(), strict=True):
            if row >= 0:
                self._note(lane, self._named(row), "struct mem_cgroup", evidence)

    def _in_oom(self, lanes: Numbers) -> None:
        # Since Linux kernel commit 626ebc4100285 ("memcg: flatten task_struct->memcg_oom") (in
        # v4.5), a member of the task; the controller of v1 alone has it.
        path = ("memcg_in_oom", "memcg_oom.memcg")
        address = self._member("struct task_struct", path, self.known.address[self.rows[lanes]])
        rows = memcgs(self.kernel).rows(address)
        for lane, row in zip(lanes.tolist(), rows.tolist(), strict=True):
            if row >= 0:
                self._note(lane, self._named(row), "struct mem_cgroup", "task.memcg_in_oom")
                self.oom.add(row)

    def _named(self, row: int) -> int:
        """Return the address of a memory cgroup, and note its name."""
        groups = memcgs(self.kernel)
        address = int(groups.address[row])
        self.names[MEMCG, address] = groups.path[row]
        self.types[MEMCG, address] = "struct mem_cgroup"
        return address

    def find(self) -> None:
        """Add edges to the cgroup around each that has the limit, and to victims in state D."""
        if not (self.high or self.full or self.oom):
            return
        known = limits(self.kernel)
        for row in sorted(self.high):
            over = [(_overage(known, each), each) for each in self._around(row)]
            most, limiting = max(over, key=lambda pair: pair[0])
            self._limited(row, [limiting] if most > 0 else [], "page_counter.high")
        for row in sorted(self.full - self.high):
            slack = _BATCH * self.kernel.memory.page_size
            full = [each for each in self._around(row) if _is_full(known, each, slack)]
            self._limited(row, full, "page_counter.max")
        for row in sorted(self.oom):
            self._victims(row)

    def _around(self, row: int) -> Iterator[int]:
        """Yield a memory cgroup, and those around it."""
        parent = memcgs(self.kernel).parent
        while row >= 0:
            yield row
            row = int(parent[row])

    def _limited(self, row: int, limiting: list[int], evidence: str) -> None:
        others = [each for each in limiting if each != row]
        if len(others) < len(limiting):
            return  # its own limit
        self.build.edges(
            LIMITED,
            (MEMCG, self._addresses([row] * len(others))),
            (MEMCG, self._addresses(others)),
            evidence,
            strength=Strength.DERIVED if len(others) == 1 else Strength.POSSIBLE,
        )

    def _addresses(self, rows: list[int]) -> Words:
        return np.array([self._named(row) for row in rows], np.uint64)

    def _victims(self, row: int) -> None:
        """Add edges from a memory cgroup to the victims of the OOM killer that do not end."""
        found = victims(self.kernel, self.faults)
        inside = below(self.kernel, row)
        rows = members(self.kernel).memcg[found]
        found = found[(rows >= 0) & inside[rows]]
        self.build.edges(
            FREED,
            (MEMCG, self._addresses([row] * len(found))),
            (TASK, self.known.address[found]),
            "signal.oom_mm",
            strength=Strength.DERIVED,
        )

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a memory cgroup, with commands to raise its limit."""
        row = int(memcgs(self.kernel).rows(np.array([address], np.uint64))[0])
        if kind is not MEMCG or row < 0:
            return None
        return filled(self.kernel, row, stall, is_oom=row in self.oom)

    def gaps(self, graph: object) -> Iterator[Gap]:
        """Yield the unreadable limits."""
        if self.high or self.full or self.oom:
            lost = limits(self.kernel).faults.total() + members(self.kernel).faults.total()
            yield from nonzero_gaps(
                Gap("memory cgroups", "unreadable", lost, "limits of some cgroups are unknown")
            )


def _overage(known: Limits, row: int) -> float:
    """Return the excess of a memory cgroup over ``memory.high``, as a share of that."""
    high, usage = int(known.high[row]), int(known.usage[row])
    return (usage - high) / max(high, 1) if high >= 0 else 0.0


def _is_full(known: Limits, row: int, slack: int) -> bool:
    most = int(known.most[row])
    return _overage(known, row) > 0 or (most >= 0 and int(known.usage[row]) + slack > most)


FINDER = MemoryCgroups
