# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who holds the locks that tasks wait for, by what locks note, and by code and stacks of tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import drgn
import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Mask, Words
from kcensus.kernel.locking.owners import (
    HANDED_OVER,
    LOCK_TYPES,
    Holders,
    Mode,
    Strength,
    holders,
)
from kcensus.kernel.tasks.call_sites import CallSites, Held
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.waiting.finders.finder import KINDS, Finder
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind

_WHILE_NS = 5 * 10**9
_RWSEM = "struct rw_semaphore"
_FAULTS = frozenset(
    {"do_user_addr_fault", "__do_page_fault", "do_page_fault", "__mm_populate"}
    | {"get_user_pages_unlocked"}
)
"""Functions that call others with the lock of their own address space, and take no other rwsem."""
_UNNAMED = ("struct percpu_rw_semaphore", "struct rw_semaphore", "struct semaphore")
"""Locks that do not always say who holds them."""


class Locks(Finder):
    """Finds who holds locks."""

    def __init__(self, *of_finder: Any) -> None:
        super().__init__(*of_finder)
        self.sites = CallSites(self.kernel)
        self.readers: dict[int, int] = {}
        """By lock: how many readers hold it."""
        self.last_readers: dict[int, tuple[int, str, int]] = {}
        """By rwsem or semaphore: the task that came last to read it, or to take it; the member that
        says so, and its place."""
        self.behind_writers: set[int] = set()
        """Tasks that want to read what others read, too, behind a writer."""
        self.frozen: set[int] = set()
        """Locks that a frozen file system keeps, not a task."""

    def find(self, attempt: Callable[[str, Callable[[], None]], None]) -> None:
        """Note who holds the locks that tasks wait for.

        :param attempt: calls a function, and notes what it is about if that is not readable
        """
        unnamed: list[tuple[str, int, bool]] = []
        # What one type lacks is no reason to know nothing of the others.
        for type_ in sorted(LOCK_TYPES):
            attempt(f"owners of {type_}", partial(self._locks_of, type_, unnamed))
        if unnamed:
            self._by_code(unnamed)

    def mode(self, lane: int) -> Mode:
        """Return how a task wants the lock that it waits for."""
        if self.type[lane] not in ("struct rw_semaphore", "struct percpu_rw_semaphore"):
            return Mode.NONE
        names = [plain(name) for name in self.waits.stacks.functions(lane)[:12]]
        for name in names:
            for word, mode in (("down_read", Mode.READ), ("down_write", Mode.WRITE)):
                if word in name:
                    return mode
        # An inlined percpu_down_read() calls __percpu_down_read(); the writer is a function.
        return Mode.READ if "percpu_rwsem_wait" in names else Mode.NONE

    def _locks_of(self, type_: str, unnamed: list[tuple[str, int, bool]]) -> None:
        """Find who holds locks of a type, and note those that do not say it."""
        lanes = self._of_type(type_)
        if not len(lanes):
            return
        locks = np.unique(self.object[lanes])
        found = holders(self.kernel, type_, locks)
        self.faults += found.faults
        kind = KINDS[type_]
        sure = found.strength == int(Strength.PROVEN)
        sure &= ~self._still_waits(found, locks)
        rows = np.flatnonzero(sure).tolist()
        self.build.edges(
            EdgeKind.HELD,
            (kind, locks[found.lock[sure]]),
            (NodeKind.TASK, found.task[sure]),
            strength=Strength.PROVEN,
            evidence=[found.evidence[row] for row in rows],
            mode=[found.mode[row].value for row in rows],
            place=found.place[sure],
        )
        for row in np.flatnonzero(found.strength < int(Strength.PROVEN)).tolist():
            hint = int(found.task[row]), found.evidence[row], int(found.place[row])
            self.last_readers[int(locks[found.lock[row]])] = hint
        self.readers |= {
            lock: count
            for lock, count in zip(locks.tolist(), found.readers.tolist(), strict=True)
            if count > 0
        }
        if type_ not in _UNNAMED:
            return
        if kind is NodeKind.RWSEM:
            self._queues(locks[~found.is_write & (found.readers > 0)])
        proven = np.zeros(len(locks), np.int64)
        np.add.at(proven, found.lock[sure], 1)
        for row, lock in enumerate(locks.tolist()):
            needs_readers = found.readers[row] > 0 and (
                not found.is_write[row] or type_ == "struct percpu_rw_semaphore"
            )
            if lock in self.frozen:
                continue
            if found.is_held[row] and (not proven[row] or needs_readers):
                unnamed.append((type_, lock, bool(found.is_write[row]) and not proven[row]))

    def _still_waits(self, found: Holders, locks: Words) -> Mask:
        """Return which holders are about to have their lock: it was given to them as they sleep."""
        waited = dict(zip(self.waits.task.tolist(), self.object.tolist(), strict=True))
        rows = zip(found.lock.tolist(), found.task.tolist(), found.evidence, strict=True)
        is_given: Mask = np.array(
            [
                proof == HANDED_OVER and waited.get(task) == int(locks[lock])
                for lock, task, proof in rows
            ],
            np.bool_,
        )
        return is_given

    def _queues(self, locks: Words) -> None:
        """Find the readers that wait behind writers, for locks that readers have.

        A writer that is behind them in the queue waits for the same readers as one before them, so
        that it makes no difference to cycles.
        """
        lanes = self._of_type("struct rw_semaphore")
        lanes = lanes[np.isin(self.object[lanes], locks)]
        modes = [self.mode(lane) for lane in lanes.tolist()]
        is_write = np.array([mode is Mode.WRITE for mode in modes], np.bool_)
        writers, readers = lanes[is_write], lanes[~is_write]
        readers = readers[np.isin(self.object[readers], self.object[writers])]
        self.behind_writers |= set(readers.tolist())
        writers = writers[np.isin(self.object[writers], self.object[readers])]
        self.build.edges(
            EdgeKind.QUEUED,
            (NodeKind.RWSEM_QUEUE, self.object[writers]),
            (NodeKind.TASK, self.waits.task[writers]),
            strength=Strength.PROVEN,
            evidence="rw_semaphore.wait_list",
            mode="write",
        )

    def _by_code(self, locks: list[tuple[str, int, bool]]) -> None:
        """Find who holds locks by the functions on stacks, and by addresses on stacks.

        :param locks: type, address, and whether it is a writer that is looked for
        """
        wanted = {
            (type_, lock): self._wanted_mode(type_, is_write) for type_, lock, is_write in locks
        }
        by_address = {lock: type_ for type_, lock in wanted}
        stacks = self.waits.stacks
        held = {pc: self.sites.held(pc, stacks.names[pc]) for pc in np.unique(stacks.pc).tolist()}
        found: dict[tuple[str, int], dict[int, tuple[Strength, str, str, int]]] = defaultdict(dict)
        computed: dict[int, list[tuple[str, Mode, str]]] = defaultdict(list)
        repeated: dict[int, list[tuple[str, Mode, str]]] = defaultdict(list)
        mapped: dict[int, tuple[str, bool]] = {}
        gone: dict[int, list[Held]] = defaultdict(list)
        interesting = np.array([pc for pc, each in held.items() if each], np.uint64)
        for frame in np.flatnonzero(np.isin(stacks.pc, interesting)).tolist():
            lane, pc = int(stacks.lane[frame]), int(stacks.pc[frame])
            name, inside = stacks.names[pc], [*gone[lane]]
            gone[lane] += [each for each in held[pc] if each.is_dropped]
            for each in held[pc]:
                key = each.type, each.object
                # What functions further inside have dropped, this one no longer has.
                is_left = not any(map(each.may_be, inside))
                is_sure = each.is_sure and is_left
                if plain(name) in _FAULTS and each.type == _RWSEM and each.is_taken and is_left:
                    mapped.setdefault(lane, (name, is_sure))
                # What it drops next may be what it waits for, further inside.
                if not each.is_taken and self.type[lane] == each.type:
                    continue
                if each.object == 0:
                    if is_sure:
                        known = repeated if each.is_taking else computed
                        known[lane].append((each.type, each.mode, name))
                elif key in wanted and each.mode in (wanted[key], Mode.NONE):
                    strength = Strength.DERIVED if is_sure else Strength.POSSIBLE
                    # It would wait for itself.
                    if self.object[lane] == each.object and not is_sure:
                        continue
                    self._better(found[key], lane, strength, f"code of {plain(name)}", name, 0)
        self._on_stacks(wanted, by_address, computed, found)
        self._of_memory(wanted, mapped, found)
        self._last(wanted, computed, repeated, found)
        self._last_holders(wanted, held, found)
        for (type_, lock), candidates in found.items():
            sure = [lane for lane, each in candidates.items() if each[0] is Strength.DERIVED]
            # There is only one writer, and readers are counted.
            is_read = wanted[type_, lock] is Mode.READ
            most = self.readers.get(lock, len(sure)) if is_read else 1
            for lane, (strength, evidence, code, place) in candidates.items():
                if strength is Strength.POSSIBLE and 0 < len(sure) <= most:
                    continue
                kind = KINDS[type_]
                if is_read and kind is NodeKind.PERCPU_RWSEM:
                    kind = NodeKind.PERCPU_READERS
                weight = strength if len(sure) <= most else Strength.POSSIBLE
                self.build.edges(
                    EdgeKind.HELD,
                    (kind, np.array([lock], np.uint64)),
                    (NodeKind.TASK, self.waits.task[[lane]]),
                    strength=weight,
                    evidence=evidence,
                    mode=wanted[type_, lock].value,
                    place=np.array([place], np.uint64),
                    frame=plain(code),
                )

    def _of_memory(
        self,
        wanted: dict[tuple[str, int], Mode],
        mapped: dict[int, tuple[str, bool]],
        found: dict[tuple[str, int], dict[int, tuple[Strength, str, str, int]]],
    ) -> None:
        """Find the tasks that have read-locked their own address space.

        :param mapped: by task, the function that does, and whether that is sure: since v6.4 (commit
            not verified), page faults may take a lock of their area of the memory map only
        """
        lanes = np.array(sorted(mapped), np.int64)
        if not len(lanes):
            return
        # Since v5.8 (commit not verified), the lock has this name.
        prog = self.kernel.prog
        memory = prog.type("struct mm_struct")
        name = "mmap_lock" if memory.has_member("mmap_lock") else "mmap_sem"
        inside = np.uint64(drgn.offsetof(memory, name))
        area = prog.type("struct vm_area_struct")
        has_own_locks = any(area.has_member(each) for each in ("vm_lock", "vm_lock_seq"))
        mm = layout(prog, "struct task_struct", ["mm"])
        read = gather(self.kernel.memory, self.waits.task[lanes], mm, self.faults)
        for lane, address in zip(lanes.tolist(), (read["mm"] + inside).tolist(), strict=True):
            if (_RWSEM, address) in wanted and self.object[lane] != address:
                code, is_sure = mapped[lane]
                evidence = f"task.mm, and code of {plain(code)}"
                strength = Strength.DERIVED if is_sure or not has_own_locks else Strength.POSSIBLE
                self._better(found[_RWSEM, address], lane, strength, evidence, code, 0)

    def _last(
        self,
        wanted: dict[tuple[str, int], Mode],
        computed: dict[int, list[tuple[str, Mode, str]]],
        repeated: dict[int, list[tuple[str, Mode, str]]],
        found: dict[tuple[str, int], dict[int, tuple[Strength, str, str, int]]],
    ) -> None:
        """Judge the last readers of rwsems: each stays noted when it leaves.

        One that came before it may still be inside, so that it is possible, no more, that the last
        one is, too; that a function on its stack has read-locked some rwsem says a little more. One
        that waits for the same rwsem has left it, or waits for itself: that is possible if it has
        slept for a while in a function that takes such locks twice.

        :param repeated: functions that take such a lock, and have taken one before
        """
        lanes = {task: lane for lane, task in enumerate(self.waits.task.tolist())}
        for lock, (task, evidence, place) in self.last_readers.items():
            lane = lanes.get(task, -1)
            if (_RWSEM, lock) not in wanted:
                continue
            if lane < 0:
                self.build.edges(
                    EdgeKind.HELD,
                    (NodeKind.RWSEM, np.array([lock], np.uint64)),
                    (NodeKind.TASK, np.array([task], np.uint64)),
                    strength=Strength.POSSIBLE,
                    evidence=evidence,
                    mode=Mode.READ.value,
                    place=np.array([place], np.uint64),
                )
                continue
            is_own = self.object[lane] == lock
            code = _taking((repeated if is_own else computed)[lane], _RWSEM, Mode.READ)
            if code:
                evidence += f", and code of {plain(code)}"
            if not is_own or (code and self.waits.since_ns[lane] >= _WHILE_NS):
                self._better(found[_RWSEM, lock], lane, Strength.POSSIBLE, evidence, code, place)

    def _last_holders(
        self,
        wanted: dict[tuple[str, int], Mode],
        held: dict[int, list[Held]],
        found: dict[tuple[str, int], dict[int, tuple[Strength, str, str, int]]],
    ) -> None:
        """Judge who took semaphores last: each stays noted when another task does up().

        One holds its semaphore that has a function on its stack that took it, and has not dropped
        it. A task that waits for the same one took it before only if its code names it.

        :param held: by return address, what functions hold
        """
        lanes = {task: lane for lane, task in enumerate(self.waits.task.tolist())}
        type_, stacks = "struct semaphore", self.waits.stacks
        for lock, (task, evidence, place) in self.last_readers.items():
            if (type_, lock) not in wanted:
                continue
            lane = lanes.get(task, -1)
            if lane < 0:
                self.build.edges(
                    EdgeKind.HELD,
                    (NodeKind.SEMAPHORE, np.array([lock], np.uint64)),
                    (NodeKind.TASK, np.array([task], np.uint64)),
                    strength=Strength.POSSIBLE,
                    evidence=evidence,
                    place=np.array([place], np.uint64),
                )
                continue
            objects = (lock,) if self.object[lane] == lock else (lock, 0)
            code = next(
                (
                    stacks.names[pc]
                    for pc in stacks.pc[stacks.frames(lane)].tolist()
                    for each in held.get(pc, ())
                    if each.type == type_ and each.is_taken and each.is_sure
                    if each.object in objects
                ),
                "",
            )
            proof = f"{evidence}, and code of {plain(code)}" if code else evidence
            strength = Strength.DERIVED if code else Strength.POSSIBLE
            if lane not in found[type_, lock] or strength >= found[type_, lock][lane][0]:
                found[type_, lock][lane] = strength, proof, code, place

    def _wanted_mode(self, type_: str, is_write: bool) -> Mode:
        if type_ == "struct semaphore":
            return Mode.NONE
        return Mode.WRITE if is_write else Mode.READ

    def _better(
        self,
        found: dict[int, tuple[Strength, str, str, int]],
        lane: int,
        strength: Strength,
        evidence: str,
        frame: str,
        place: int,
    ) -> None:
        if lane not in found or found[lane][0] < strength:
            found[lane] = strength, evidence, frame, place

    def _on_stacks(
        self,
        wanted: dict[tuple[str, int], Mode],
        by_address: dict[int, str],
        computed: dict[int, list[tuple[str, Mode, str]]],
        found: dict[tuple[str, int], dict[int, tuple[Strength, str, str, int]]],
    ) -> None:
        """Find the addresses of locks on stacks of tasks that do not wait for them."""
        for lane, address, place in self._mentions(np.array(list(by_address), np.uint64)):
            type_ = by_address[address]
            mode = wanted[type_, address]
            if self.object[lane] == address:
                continue
            name = _taking(computed[lane], type_, mode)
            evidence = f"on the stack, and code of {plain(name)}" if name else "on the stack"
            is_sure = bool(name)
            if type_ == _RWSEM:
                # There are many of them, and the one that the code has may be another one.
                is_last = self.last_readers.get(address, (0,))[0] == int(self.waits.task[lane])
                is_sure &= is_last
                evidence = f"last reader, {evidence}" if is_last else evidence
            strength = Strength.DERIVED if is_sure else Strength.POSSIBLE
            frame = name or self._frame_at(lane, place)
            self._better(found[type_, address], lane, strength, evidence, frame, place)


def _taking(computed: list[tuple[str, Mode, str]], type_: str, mode: Mode) -> str:
    """Return the innermost function of a stack that takes a lock of a type; empty for none."""
    return next((name for kind, how, name in computed if (kind, how) == (type_, mode)), "")
