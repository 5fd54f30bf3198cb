# SPDX-License-Identifier: LGPL-2.1-or-later
"""Work items and workqueues that tasks flush, and their workers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import drgn
import numpy as np

from kcensus.engine.memory import Numbers, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.run_queues import run_queues
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.finders.cpus.occupied import CPU, STARVED, add_cpus
from kcensus.kernel.waiting.graph import QUEUED, RUN_BY, TASK, NodeKind
from kcensus.kernel.workqueues import workqueues
from kcensus.sources.capsule import NotRecorded

WORK = NodeKind("work", ("struct work_struct",), shows_sleepers=True)
"""A running work item."""
WORKQUEUE = NodeKind("workqueue", ("struct workqueue_struct", "struct wq_flusher"))
"""The target of a flush."""
_FLUSHES = frozenset({"__flush_work", "flush_work", "cancel_work_sync", "__cancel_work_timer"})
_QUEUE_FLUSHES = frozenset({"__flush_workqueue", "flush_workqueue", "drain_workqueue"})
_RUNNING = "in-flight"
_STALLED = 1.0
"""Seconds without progress of a pool with pending work."""
_MAX_FLUSHERS = 1 << 12
"""Most flushes of a workqueue."""


class Works(Finder):
    """Finds the work items of flushes, and their workers."""

    about = "work items"
    kinds = (WORK, WORKQUEUE)

    def note(self) -> None:
        """Find the work items of flushes, and their workers."""
        lanes = self._lanes(_FLUSHES, "struct completion")
        queue_lanes = self._lanes(_QUEUE_FLUSHES, "struct completion")
        if not len(lanes) and not len(queue_lanes):
            return
        items = workqueues(self.kernel).items
        running = items[items["state"] == _RUNNING]
        current = dict(zip(running["pid"].tolist(), running["work"].tolist(), strict=True))
        waited: set[int] = set()
        if len(lanes):
            waited |= self._barriers(lanes, current)
        if len(queue_lanes):
            waited |= self._flushers(queue_lanes)
        rows = {int(pid): row for row, pid in enumerate(self.known.pid.tolist())}
        for pid, work in current.items():
            if work in waited and pid in rows:
                item, worker = np.array([work], np.uint64), self.known.address[[rows[pid]]]
                self.build.edges(RUN_BY, (WORK, item), (TASK, worker), "worker.current_work")

    def _barriers(self, lanes: Numbers, current: dict[int, int]) -> set[int]:
        """Note the work items before the barriers on the stacks of tasks.

        A barrier is a work item of its own after the flushed one; the task sleeps on its
        completion.
        """
        prog, items = self.kernel.prog, workqueues(self.kernel).items
        type_ = prog.type("struct wq_barrier")
        inside = drgn.offsetof(type_, "done") - drgn.offsetof(type_, "work")
        works, pids = items["work"].tolist(), items["pid"].tolist()
        states, queues = items["state"].tolist(), items["wq"].tolist()
        places, waited = {work: row for row, work in enumerate(works)}, set[int]()
        # Key of a list: of a pool, of a worker, or of the inactive works of a workqueue.
        lists = list(zip(states, items["pool"].tolist(), pids, strict=True))
        is_barrier = items["func"].isin(self._functions("wq_barrier_func")).tolist()
        for lane in lanes.tolist():
            row = places.get(int(self.object[lane]) - inside)
            if row is None:
                continue
            state, pid, before = states[row], pids[row], row - 1
            # Several tasks may flush one work item, which their barriers follow.
            while before >= 0 and lists[before] == lists[row] and is_barrier[before]:
                before -= 1
            if before >= 0 and lists[before] == lists[row]:
                # The work item is pending, right before the barriers on the same list.
                self._note(lane, works[before], "struct work_struct", f"list of {state} work")
                if state == "scheduled" and pid in current:
                    waited |= self._behind(works[before], [current[pid]], "worker.scheduled")
                else:
                    waited |= self._before(works[before], queues[row], state)
                    waited |= self._stalled(works[before], lists[row][1], state)
            elif state == "scheduled" and pid in current:
                # The work item runs, and the barrier comes next on the worker's own list.
                self._note(lane, current[pid], "struct work_struct", "worker.scheduled")
                waited.add(current[pid])
        return waited

    def _functions(self, name: str) -> list[int]:
        """Return the addresses of the functions with a name; none without their symbols."""
        try:
            return [int(symbol.address) for symbol in self.kernel.prog.symbols(name)]
        except (LookupError, NotRecorded):
            return []

    def _before(self, work: int, queue: int, state: str) -> set[int]:
        """Note the running items of a workqueue, which go before an inactive one."""
        items = workqueues(self.kernel).items
        running = items[(items["state"] == _RUNNING) & (items["wq"] == queue)]
        if state != "inactive" or not queue:
            return set()
        works = sorted({int(each) for each in running["work"].tolist()})
        return self._behind(work, works, "pool_workqueue.inactive_works")

    @cached_property
    def _row_of_pid(self) -> dict[int, int]:
        return {int(pid): row for row, pid in enumerate(self.known.pid.tolist())}

    def _stalled(self, work: int, pool: int, state: str) -> set[int]:
        """Note what a pending work item waits for in the pool of a CPU without progress.

        Such a pool starts no item while one of its workers is awake. If none is, the CPU may be
        occupied, by a task that has not left it since: a worker is woken up for each pending item.
        """
        known = workqueues(self.kernel)
        found = known.by_id.get(pool)
        if state != "pending" or found is None or found.cpu < 0 or (found.age or 0) < _STALLED:
            return set()
        running = known.items[(known.items["state"] == _RUNNING) & (known.items["pool"] == pool)]
        rows = self._row_of_pid
        awake = {
            int(item)
            for item, pid in zip(running["work"].tolist(), running["pid"].tolist(), strict=True)
            if pid in rows and not self.known.is_asleep[rows[pid]]
        }
        if awake:
            return self._behind(work, sorted(awake), "worker_pool.worklist")
        queues = run_queues(self.kernel)
        row = queues.row.get(found.cpu, -1)
        current = self.known.rows(queues.current[[row]])[0] if row >= 0 else -1
        is_occupied = self.known.arrived_ns[current] >= (found.age or 0) * 1e9
        if current >= 0 and is_occupied and len(add_cpus(self, np.array([row]))):
            source, target = np.array([work], np.uint64), queues.address[[row]]
            evidence, strength = "worker_pool.cpu", Strength.DERIVED
            self.build.edges(STARVED, (WORK, source), (CPU, target), evidence, strength=strength)
        return set()

    def _behind(self, work: int, works: list[int], evidence: str) -> set[int]:
        """Add edges from a queued work item to the running items before it; return these items.

        If several run, the end of any of them is enough. An item queued again while it runs comes
        after itself.
        """
        works = [each for each in works if each != work]
        self.build.edges(
            QUEUED,
            (WORK, np.full(len(works), work, np.uint64)),
            (WORK, np.array(works, np.uint64)),
            evidence,
            strength=Strength.DERIVED if len(works) == 1 else Strength.POSSIBLE,
        )
        return set(works)

    def _flushers(self, lanes: Numbers) -> set[int]:
        """Note the workqueues of flushes, and the running works that have to end first.

        Works queued between two flushes have the color of the later one. Works queued after a flush
        have a later color, and do not hold it up.
        """
        known = workqueues(self.kernel)
        inside = int(self._offset("struct wq_flusher", "done"))
        queues = np.array(sorted(known.names), np.uint64)
        first_flusher = self._member("struct workqueue_struct", "first_flusher", queues)
        first = self._colors("struct workqueue_struct", queues)
        rows = {each: row for row, each in enumerate(queues.tolist())}
        by_flusher = dict(zip(first_flusher.tolist(), queues.tolist(), strict=True))
        waited = set[int]()
        for lane in lanes.tolist():
            start = int(self.object[lane]) - inside
            queue, name = by_flusher.get(start, 0), "first_flusher"
            node, type_ = queue, "struct workqueue_struct"
            if not queue:
                queue, name = self._later_flusher(start, queues)
                node, type_ = start, "struct wq_flusher"
            if not queue:
                continue
            self._note(lane, node, type_, f"workqueue_struct.{name}")
            self.names[WORKQUEUE, node] = known.names[queue]
            color = self._colors("struct wq_flusher", np.array([start], np.uint64))
            running = known.items[(known.items["state"] == _RUNNING) & (known.items["wq"] == queue)]
            strength = self._kept_by(running, lane, int(first[rows[queue]]), int(color[0]))
            kept = strength > 0
            works = np.array(running["work"].tolist(), np.uint64)[kept]
            waited |= set(works.tolist())
            flush = WORKQUEUE, np.full(len(works), node, np.uint64)
            evidence = "worker.current_pwq"
            self.build.edges(QUEUED, flush, (WORK, works), evidence, strength=strength[kept])
        return waited

    def _colors(self, type_: str, addresses: Words) -> Numbers:
        """Return the colors of flushes: -1 for a flush or a kernel without colors."""
        if not self.kernel.prog.type(type_).has_member("flush_color"):
            return np.full(len(addresses), -1)
        return self._member(type_, "flush_color", addresses).astype(np.int32).astype(np.int64)

    def _later_flusher(self, start: int, queues: Words) -> tuple[int, str]:
        """Return the workqueue of a flush that waits for its turn, and the name of its list."""
        prog = self.kernel.prog
        queue, flusher = prog.type("struct workqueue_struct"), prog.type("struct wq_flusher")
        if not flusher.has_member("list"):
            return 0, ""
        heads = {
            each + drgn.offsetof(queue, name): (each, name)
            for name in ("flusher_queue", "flusher_overflow")
            if queue.has_member(name)
            for each in queues.tolist()
        }
        node = start + drgn.offsetof(flusher, "list")
        try:
            for _ in range(_MAX_FLUSHERS):
                node = self.kernel.memory.word(node)
                if node in heads:
                    return heads[node]
        except drgn.FaultError as error:
            self.faults.note(error)
        return 0, ""

    def _kept_by(self, running: Any, lane: int, first: int, color: int) -> Numbers:
        """Return the strength of a flush's edge to each running work item; 0 for no edge.

        :param first: color of the flush in progress
        :param color: color of the requested flush; one without a color comes last
        """
        if color < 0 <= first:
            return np.full(len(running), int(Strength.DERIVED))
        colors = running["color"].to_numpy() if "color" in running else np.full(len(running), -1)
        try:
            count = int(self.kernel.prog.constant("WORK_NR_COLORS"))
        except (LookupError, NotRecorded):
            count = 0
        if count and first >= 0 and (colors >= 0).all():
            is_before = (colors - first) % count <= (color - first) % count
            return np.where(is_before, int(Strength.PROVEN), 0)
        # A work item was queued before the flush if its worker has slept for longer.
        ages = dict(zip(self.known.pid.tolist(), self.known.off_cpu_ns.tolist(), strict=True))
        asleep = np.array([ages.get(pid, -1) for pid in running["pid"].tolist()], np.int64)
        since = int(self.waits.since_ns[lane])
        is_older = (since >= 0) & (asleep >= since)
        return np.where(is_older, int(Strength.DERIVED), int(Strength.POSSIBLE))


FINDER = Works
