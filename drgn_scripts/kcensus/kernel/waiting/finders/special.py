# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tasks wait for besides locks: work items, core dumps, frozen file systems, and others."""

from __future__ import annotations

from typing import Any

import drgn
import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.tasks.queued import stack_words
from kcensus.kernel.vfs.pipes import open_files
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finders.finder import Finder, Numbers
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.kernel.workqueues import workqueues
from kcensus.sources.capsule import NotRecorded

_FLUSHES = frozenset({"__flush_work", "flush_work", "cancel_work_sync", "__cancel_work_timer"})
_QUEUE_FLUSHES = frozenset({"__flush_workqueue", "flush_workqueue", "drain_workqueue"})
_DUMPED = frozenset({"coredump_task_exit", "exit_mm", "do_exit"})
"""Functions in which the other threads of a process wait for its core dump to be written."""
_AREA_WRITERS = frozenset(
    {"__vma_start_exclude_readers", "__vma_start_write", "__vma_enter_locked", "vma_mark_detached"}
)
_EXCLUDES_READERS = 0x40000000
"""VMA_LOCK_OFFSET, of which later kernels have another name: a bit of ``vm_refcnt``."""
_FAULTS = frozenset({"handle_mm_fault", "__handle_mm_fault"})
_FREEZE_COMPLETE = 4
"""SB_FREEZE_COMPLETE."""
_LEVELS = 3
"""SB_FREEZE_LEVELS: locks of a super block that freezing takes."""
_RUNNING = "in-flight"
_MAX_FLUSHERS = 1 << 12
"""Of a workqueue."""


class Special(Finder):
    """Finds what tasks wait for besides locks."""

    def __init__(self, *of_finder: Any) -> None:
        super().__init__(*of_finder)
        self.connections: dict[int, int] = {}
        """By FUSE request: the number of its connection."""

    # Work items

    def works(self) -> None:
        """Find the work items that tasks flush, and the workers that run them."""
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
                self.build.edges(
                    EdgeKind.RUN_BY,
                    (NodeKind.WORK, np.array([work], np.uint64)),
                    (NodeKind.TASK, self.known.address[[rows[pid]]]),
                    strength=Strength.PROVEN,
                    evidence="worker.current_work",
                )

    def _barriers(self, lanes: Numbers, current: dict[int, int]) -> set[int]:
        """Note the work items that barriers on the stacks of tasks are behind.

        A barrier is a work item of its own, which follows the one that is flushed; its completion
        is what the task sleeps on.
        """
        prog, items = self.kernel.prog, workqueues(self.kernel).items
        type_ = prog.type("struct wq_barrier")
        inside = drgn.offsetof(type_, "done") - drgn.offsetof(type_, "work")
        works, pids = items["work"].tolist(), items["pid"].tolist()
        states, queues = items["state"].tolist(), items["wq"].tolist()
        places, waited = {work: row for row, work in enumerate(works)}, set[int]()
        # On the same list: of a pool, of a worker, or of what a workqueue holds back.
        lists = list(zip(states, items["pool"].tolist(), pids, strict=True))
        is_barrier = items["func"].isin(self._functions("wq_barrier_func")).tolist()
        for lane in lanes.tolist():
            row = places.get(int(self.object[lane]) - inside)
            if row is None:
                continue
            state, pid, before = states[row], pids[row], row - 1
            # Several tasks may flush the same work item: their barriers follow it.
            while before >= 0 and lists[before] == lists[row] and is_barrier[before]:
                before -= 1
            if before >= 0 and lists[before] == lists[row]:
                # It waits itself, and is right before the barriers on the same list.
                self._note(lane, works[before], "struct work_struct", f"list of {state} work")
                if state == "scheduled" and pid in current:
                    waited |= self._behind(works[before], [current[pid]], "worker.scheduled")
                else:
                    waited |= self._before(works[before], queues[row], state)
            elif state == "scheduled" and pid in current:
                # It runs, and the barrier comes next on the worker's own list.
                self._note(lane, current[pid], "struct work_struct", "worker.scheduled")
                waited.add(current[pid])
        return waited

    def _functions(self, name: str) -> list[int]:
        """Return where functions of a name are; none where their symbols are missing."""
        try:
            return [int(symbol.address) for symbol in self.kernel.prog.symbols(name)]
        except (LookupError, NotRecorded):
            return []

    def _before(self, work: int, queue: int, state: str) -> set[int]:
        """Note what runs of the same workqueue: it goes before a work item that is held back."""
        items = workqueues(self.kernel).items
        running = items[(items["state"] == _RUNNING) & (items["wq"] == queue)]
        if state != "inactive" or not queue:
            return set()
        works = sorted({int(each) for each in running["work"].tolist()})
        return self._behind(work, works, "pool_workqueue.inactive_works")

    def _behind(self, work: int, works: list[int], evidence: str) -> set[int]:
        """Note that a work item comes after others that run; return these.

        If several run, any of them may let it go on. An item that is queued again while it runs
        comes after itself.
        """
        works = [each for each in works if each != work]
        self.build.edges(
            EdgeKind.QUEUED,
            (NodeKind.WORK, np.full(len(works), work, np.uint64)),
            (NodeKind.WORK, np.array(works, np.uint64)),
            strength=Strength.DERIVED if len(works) == 1 else Strength.POSSIBLE,
            evidence=evidence,
        )
        return set(works)

    def _flushers(self, lanes: Numbers) -> set[int]:
        """Note the workqueues that tasks flush, and what runs of them and has to end first.

        Each flush has a color, which the works have that were queued before it, and since the one
        before. What is queued later has a later color, and keeps no earlier flush.
        """
        prog, known = self.kernel.prog, workqueues(self.kernel)
        flusher = layout(prog, "struct wq_flusher", {}, {"color": "flush_color"})
        inside = drgn.offsetof(prog.type("struct wq_flusher"), "done")
        queues = np.array(sorted(known.names), np.uint64)
        members = layout(
            prog, "struct workqueue_struct", ["first_flusher"], {"color": "flush_color"}
        )
        read = gather(self.kernel.memory, queues, members, self.faults)
        rows = {each: row for row, each in enumerate(queues.tolist())}
        by_flusher = dict(zip(read["first_flusher"].tolist(), queues.tolist(), strict=True))
        waited = set[int]()
        for lane in lanes.tolist():
            start, is_first = int(self.object[lane]) - inside, True
            queue, name = by_flusher.get(start), "first_flusher"
            if queue is None:
                is_first = False
                queue, name = self._later_flusher(start, queues)
            if not queue:
                continue
            node, type_ = (
                (queue, "struct workqueue_struct") if is_first else (start, "struct wq_flusher")
            )
            self._note(lane, node, type_, f"workqueue_struct.{name}")
            self.names[NodeKind.WORKQUEUE, node] = known.names[queue]
            own = gather(self.kernel.memory, np.array([start], np.uint64), flusher, self.faults)
            # An int: -1 for a flush that has none yet.
            color = own.columns.get("color", np.full(1, -1)).astype(np.int32)
            first = read.columns.get("color", np.full(len(queues), -1)).astype(np.int32)
            running = known.items[(known.items["state"] == _RUNNING) & (known.items["wq"] == queue)]
            strength = self._kept_by(running, lane, int(first[rows[queue]]), int(color[0]))
            kept = strength > 0
            works = np.array(running["work"].tolist(), np.uint64)[kept]
            waited |= set(works.tolist())
            self.build.edges(
                EdgeKind.QUEUED,
                (NodeKind.WORKQUEUE, np.full(len(works), node, np.uint64)),
                (NodeKind.WORK, works),
                strength=strength[kept],
                evidence="worker.current_pwq",
            )
        return waited

    def _later_flusher(self, start: int, queues: Words) -> tuple[int, str]:
        """Return the workqueue that a flush of waits for its turn, and the list that it is on."""
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
        """Return how sure it is that a flush waits for each of the works that run; 0 for no.

        :param first: color of the flush that is under way
        :param color: of the flush that is asked for; -1 for one that has none yet: it comes last
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
        # It was queued before the flush if its worker has slept for longer.
        ages = dict(zip(self.known.pid.tolist(), self.known.off_cpu_ns.tolist(), strict=True))
        asleep = np.array([ages.get(pid, -1) for pid in running["pid"].tolist()], np.int64)
        since = int(self.waits.since_ns[lane])
        is_older = (since >= 0) & (asleep >= since)
        return np.where(is_older, int(Strength.DERIVED), int(Strength.POSSIBLE))

    # Children that vfork() made

    def children(self) -> None:
        """Find the tasks whose parents wait until they begin another program, or exit."""
        lanes = [lane for lane, type_ in enumerate(self.type) if type_ == "struct completion"]
        if not lanes:
            return
        member = layout(self.kernel.prog, "struct task_struct", ["vfork_done"])
        wanted = np.unique(self.object[lanes])
        # A task that exits has none; nor has one whose memory is gone.
        done = gather(self.kernel.memory, self.known.address, member, Faults())["vfork_done"]
        kept = np.flatnonzero((done != 0) & np.isin(done, wanted))
        self.build.edges(
            EdgeKind.COMPLETED_BY,
            (NodeKind.COMPLETION, done[kept]),
            (NodeKind.TASK, self.known.address[kept]),
            strength=Strength.PROVEN,
            evidence="task.vfork_done",
            place=self.known.address[kept] + np.uint64(member.fields["vfork_done"].offset),
        )

    # Core dumps

    def core_dumps(self) -> None:
        """Find the threads that wait until the core dump of their process is written."""
        lanes = self._lanes(_DUMPED, None)
        if not len(lanes):
            return
        prog, memory = self.kernel.prog, self.kernel.memory
        tasks = self.waits.task[lanes]
        # Since v5.16 (commit not verified), the signals of a process have it; before, its memory.
        owner, name = "signal", "struct signal_struct"
        if not prog.type(name).has_member("core_state"):
            owner, name = "mm", "struct mm_struct"
        pointer = layout(prog, "struct task_struct", {"owner": owner})
        owners = gather(memory, tasks, pointer, self.faults)["owner"]
        states = gather(memory, owners, layout(prog, name, ["core_state"]), Faults())["core_state"]
        dumper = layout(prog, "struct core_state", {"task": "dumper.task"})
        read = gather(memory, states, dumper, Faults())
        kept = np.flatnonzero((states != 0) & read.readable & (read["task"] != tasks))
        proof = f"{name.removeprefix('struct ')}.core_state"
        for index in kept.tolist():
            self._note(int(lanes[index]), int(states[index]), "struct core_state", proof)
        self.build.edges(
            EdgeKind.HELD,
            (NodeKind.COREDUMP, states[kept]),
            (NodeKind.TASK, read["task"][kept]),
            strength=Strength.PROVEN,
            evidence="core_state.dumper",
            place=states[kept],
        )

    # Frozen file systems

    def frozen(self) -> set[int]:
        """Find the locks that frozen file systems keep, which no task holds; return them."""
        percpu = "struct percpu_rw_semaphore"
        lanes = [lane for lane, type_ in enumerate(self.type) if type_ == percpu]
        type_ = self.kernel.prog.type("struct super_block")
        if not lanes:
            return set()
        blocks = super_blocks(self.kernel)
        # Since v4.4 (commit not verified), the writers of a file system are readers of such locks.
        members = layout(self.kernel.prog, type_, {"frozen": "s_writers.frozen"})
        state = gather(self.kernel.memory, blocks.address, members, self.faults)["frozen"]
        # Before, the task that freezes it is in freeze_super(), and holds these locks itself.
        frozen = blocks.address[state.astype(np.int64) == _FREEZE_COMPLETE]
        place = np.uint64(members.fields["frozen"].offset)
        locks: dict[int, int] = {}
        for level in range(_LEVELS):
            inside = np.uint64(drgn.offsetof(type_, f"s_writers.rw_sem[{level}]"))
            locks |= dict(zip((frozen + inside).tolist(), frozen.tolist(), strict=True))
        kept = {int(self.object[lane]) for lane in lanes} & set(locks)
        lock = np.array(sorted(kept), np.uint64)
        owner = np.array([locks[each] for each in lock.tolist()], np.uint64)
        self.build.edges(
            EdgeKind.FROZEN,
            (NodeKind.PERCPU_RWSEM, lock),
            (NodeKind.FREEZER, owner),
            strength=Strength.PROVEN,
            evidence="super_block.s_writers.frozen",
            mode="write",
            place=owner + place,
        )
        return kept

    # FUSE

    def fuse_requests(self) -> None:
        """Find the processes that serve the file systems whose requests tasks wait for."""
        lanes = [lane for lane, type_ in enumerate(self.type) if type_ == "struct fuse_req"]
        if not lanes:
            return
        prog, memory = self.kernel.prog, self.kernel.memory
        files = open_files(self.kernel)
        operations = int(prog["fuse_dev_operations"].address_of_())
        of_file = layout(prog, "struct file", ["f_op"])
        is_device = gather(memory, files.address, of_file, self.faults)["f_op"] == operations
        rows = np.flatnonzero(is_device)
        # Since v7.2 or v7.3 (commit not verified), both have a channel.
        device = layout(prog, "struct fuse_dev", {"of": ("chan", "fc")})
        connection = gather(memory, files.private[rows], device, self.faults)["of"]
        requests = np.unique(self.object[lanes])
        # Since v5.10 (commit not verified), a request knows its mount.
        member = layout(prog, "struct fuse_req", {}, {"mount": "fm", "channel": "chan"})
        if "channel" in member:
            wanted = gather(memory, requests, member, self.faults)["channel"]
        elif "mount" in member:
            mounts = gather(memory, requests, member, self.faults)["mount"]
            of_mount = layout(prog, "struct fuse_mount", ["fc"])
            wanted = gather(memory, mounts, of_mount, self.faults)["fc"]
        elif len(np.unique(connection)) == 1:
            wanted = np.full(len(requests), connection[0])
        else:
            return
        self._name_connections(requests, wanted, is_channel="channel" in member)
        request, row = np.nonzero(wanted[:, None] == connection[None, :])
        served = files.files[rows[row]]
        self.build.edges(
            EdgeKind.SERVED,
            (NodeKind.FUSE, requests[request]),
            (NodeKind.PROCESS, served),
            strength=Strength.DERIVED,
            evidence=[f"file descriptor {files.descriptor[each]}" for each in rows[row].tolist()],
            place=files.address[rows[row]],
        )
        members = np.flatnonzero(np.isin(files.tables, served))
        self.build.edges(
            EdgeKind.THREAD,
            (NodeKind.PROCESS, files.tables[members]),
            (NodeKind.TASK, self.known.address[members]),
            strength=Strength.PROVEN,
            evidence="task.files",
        )

    def _name_connections(self, requests: Words, owner: Words, *, is_channel: bool) -> None:
        """Note the number of each request's connection, by which it can be aborted."""
        if is_channel:
            of_channel = layout(self.kernel.prog, "struct fuse_chan", ["conn"])
            owner = gather(self.kernel.memory, owner, of_channel, self.faults)["conn"]
        number = layout(self.kernel.prog, "struct fuse_conn", ["dev"])
        read = gather(self.kernel.memory, owner, number, self.faults)
        for row in np.flatnonzero(read.readable).tolist():
            self.connections[int(requests[row])] = int(read["dev"][row])

    # Areas of memory maps

    def areas(self) -> None:
        """Find the areas of memory maps that writers wait for, and the page faults in them.

        Since v6.15 (commit not verified), readers of an area are counted, and a writer waits for
        the count to go down; the memory map names it.
        """
        lanes = self._lanes(_AREA_WRITERS, None)
        if not len(lanes):
            return
        prog, memory = self.kernel.prog, self.kernel.memory
        of_task = layout(prog, "struct task_struct", ["mm"])
        of_map = layout(prog, "struct mm_struct", {"writer": "vma_writer_wait.task"})
        members = {"vm_mm": "vm_mm", "count": "vm_refcnt.refs.counter"}
        of_area = layout(prog, "struct vm_area_struct", members)
        every = gather(memory, self.waits.task, of_task, self.faults)["mm"]
        writer = gather(memory, every[lanes], of_map, self.faults)["writer"]
        lanes = lanes[writer == self.waits.task[lanes]]
        size = self.waits.stacks.size
        rows = self.rows[lanes]
        for some, _, words in stack_words(memory, self.known, rows, size, self.faults):
            lane, column = np.nonzero(words >= np.uint64(1 << 63))
            candidate = words[lane, column]
            read = gather(memory, candidate, of_area, Faults())
            kept = read.readable & (read["vm_mm"] == every[lanes[some[lane]]])
            kept &= (read["count"].astype(np.int64) & _EXCLUDES_READERS) != 0
            owners = lanes[some[lane[kept]]].tolist()
            for each, area in zip(owners, candidate[kept].tolist(), strict=True):
                self._note(each, area, "struct vm_area_struct", "mm_struct.vma_writer_wait")
        areas = {int(self.object[lane]): lane for lane in lanes.tolist() if self.object[lane]}
        wanted = np.array(sorted(areas), np.uint64)
        if not len(wanted):
            return
        for some, start, words in stack_words(memory, self.known, self.rows, size, self.faults):
            lane, column = np.nonzero(np.isin(words, wanted))
            place = start[lane] + np.uint64(8) * column.astype(np.uint64)
            owner, areas_of = some[lane], words[lane, column]
            for row, each in enumerate(owner.tolist()):
                names = {plain(name) for name in self.waits.stacks.functions(each)}
                if every[each] != every[areas[int(areas_of[row])]] or not names & _FAULTS:
                    continue
                self.build.edges(
                    EdgeKind.HELD,
                    (NodeKind.AREA, areas_of[[row]]),
                    (NodeKind.TASK, self.waits.task[[each]]),
                    strength=Strength.DERIVED,
                    evidence="on the stack of a page fault",
                    mode="read",
                    place=place[[row]],
                )

    # Journals

    def journals(self) -> None:
        """Find the threads that commit the journals that tasks wait for."""
        lanes = [lane for lane, type_ in enumerate(self.type) if type_ == "struct journal_s"]
        if not lanes:
            return
        journals = np.unique(self.object[lanes])
        members = layout(self.kernel.prog, "struct journal_s", ["j_task"])
        task = gather(self.kernel.memory, journals, members, self.faults)["j_task"]
        known = np.flatnonzero(task)
        self.build.edges(
            EdgeKind.SERVED,
            (NodeKind.LOG, journals[known]),
            (NodeKind.TASK, task[known]),
            strength=Strength.PROVEN,
            evidence="journal_s.j_task",
            place=journals[known] + np.uint64(members.fields["j_task"].offset),
        )
