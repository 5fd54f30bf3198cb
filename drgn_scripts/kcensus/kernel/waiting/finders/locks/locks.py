# SPDX-License-Identifier: LGPL-2.1-or-later
"""Holders of locks, known by the locks themselves, and by code and stacks of tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache, partial

import numpy as np

from kcensus.engine.memory import Mask, Words
from kcensus.kernel.code.call_sites import Held
from kcensus.kernel.locking.owners import HANDED_OVER, LOCK_TYPES, Holders, Mode, Strength, holders
from kcensus.kernel.tasks.functions import RW_LOCK, WaitKind, plain
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.graph import HELD, QUEUED, TASK, NodeKind
from kcensus.kernel.waiting.identities import lock_names
from kcensus.kernel.waiting.objects.last_readers import MKWRITE, Claim, LastReaders, Take, taking
from kcensus.kernel.waiting.objects.locks import RT_DRAINING, blockers, percpu_writers, rings

_RWSEM, _PERCPU = "struct rw_semaphore", "struct percpu_rw_semaphore"
_SEMAPHORE = "struct semaphore"
MUTEX = NodeKind("mutex", ("struct mutex",), is_lock=True, shows_sleepers=True, is_in_log=True)
RWSEM = NodeKind("rwsem", (_RWSEM,), is_lock=True, shows_sleepers=True, is_in_log=True)
RWSEM_QUEUE = NodeKind("queue of rwsem", queue_of=RWSEM)
"""Readers of an rwsem with readers as holders, queued behind waiting writers."""
PERCPU_RWSEM = NodeKind("percpu_rwsem", (_PERCPU,), is_lock=True, shows_sleepers=True)
PERCPU_READERS = NodeKind("readers of percpu_rwsem", is_lock=True, shows_sleepers=True)
"""The readers that a writer waits for, after locking out new ones."""
RT_MUTEX = NodeKind(
    "rt_mutex", ("struct rt_mutex", "struct rt_mutex_base"), is_lock=True, shows_sleepers=True
)
SEMAPHORE = NodeKind("semaphore", (_SEMAPHORE,), is_lock=True, shows_sleepers=True, is_in_log=True)
RWSEM_READERS = NodeKind("readers of rwsem", is_lock=True, shows_sleepers=True)
"""With PREEMPT_RT, the readers that a writer waits for, after locking out new ones."""
RWLOCK = NodeKind("rwlock", (RW_LOCK,), is_lock=True, shows_sleepers=True)
RWLOCK_READERS = NodeKind("readers of rwlock", is_lock=True, shows_sleepers=True)
"""With PREEMPT_RT; without it, tasks spin for rwlocks."""
_KINDS = (
    *(MUTEX, RWSEM, RWSEM_QUEUE, RWSEM_READERS, RWLOCK, RWLOCK_READERS),
    *(PERCPU_RWSEM, PERCPU_READERS, RT_MUTEX, SEMAPHORE),
)
_DRAINED = {_RWSEM: RWSEM_READERS, RW_LOCK: RWLOCK_READERS}
_BY_TYPE = {type_: kind for kind in _KINDS for type_ in kind.types}
_DRAINING = ("percpu_rw_semaphore.writer", "percpu_rw_semaphore.write_waitq")
"""Evidence that a writer has the lock, and waits for the readers to leave."""
_MODES = {
    "down_read": Mode.READ,
    "down_write": Mode.WRITE,
    "rwbase_read_lock": Mode.READ,
    "rwbase_write_lock": Mode.WRITE,
    # Which may have the ones above inlined.
    "rt_read_lock": Mode.READ,
    "rt_write_lock": Mode.WRITE,
}
"""Modes of rwsems by part of a function's name."""
_PAGE_FAULTS = frozenset({"do_user_addr_fault", "__do_page_fault", "do_page_fault"})
_FAULTS = _PAGE_FAULTS | {"__mm_populate", "get_user_pages_unlocked"}
"""Functions that call others with the lock of their own address space, but with no other rwsem."""
_HANDLER, _AREA_LOCK = "handle_mm_fault", "lock_vma_under_rcu"
_MKWRITES = frozenset({MKWRITE})
_UNNAMED = (_PERCPU, _RWSEM, RW_LOCK, _SEMAPHORE)
"""Locks that do not always name their holders."""

_Taken = dict[int, list[Take]]
"""Locks taken by functions on the stack of a task, the innermost first."""


class Locks(Finder):
    """Finds the holders of locks."""

    about = "locks"
    kinds = _KINDS
    sleeps = {WaitKind.LOCK: "percpu_rwsem_wait __percpu_down_read percpu_down_write"}
    queues = {
        # Since Linux kernel commit 7f26482a872c ("locking/percpu-rwsem: Remove the embedded rwsem")
        # (in v5.7).
        "percpu_rwsem_wait": (_PERCPU, ("waiters",)),
        # From v4.8 to v4.10 (commits not verified), the queue is called `writer`.
        "percpu_down_write": (_PERCPU, ("write_waitq", "writer")),
    }
    pointers = {
        "percpu_rw_semaphore": percpu_writers,
        "task.blocker": blockers,
        "rings of waiters": rings,
    }

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.readers = draft.readers
        self.last_readers: dict[int, tuple[int, str, int]] = {}
        """Last reader of an rwsem, or last holder of a semaphore, by lock: the task, the member
        that names it, and its place."""
        self.drained: set[int] = set()
        """Locks with a writer that waits for readers to leave, with PREEMPT_RT."""
        self.wanted: dict[tuple[str, int], Mode] = {}
        """Mode of the locks with an unnamed holder, by type and address."""
        self.claims: dict[tuple[str, int], dict[int, Claim]] = defaultdict(dict)
        """Possible holders of locks with an unnamed holder, by task."""

    def identify(self, kind: NodeKind, addresses: Sequence[int]) -> dict[int, str]:
        """Return the owners of locks."""
        return lock_names(self.kernel, self.known, addresses)

    def find(self) -> None:
        """Add edges to the holders of locks."""
        for lane, proof in enumerate(self.evidence):
            self.draft.mode[lane] = self._mode(lane)
            if proof in _DRAINING:
                self.draft.kind[lane] = PERCPU_READERS
            if proof == RT_DRAINING.get(self.type[lane]):
                self.draft.kind[lane] = _DRAINED[self.type[lane]]
                self.drained.add(int(self.object[lane]))
        # A part missing for one type does not concern the others.
        for type_ in sorted(LOCK_TYPES):
            self.draft.attempt(f"owners of {type_}", partial(self._locks_of, type_))
        if self.wanted:
            self._by_code()

    def _mode(self, lane: int) -> Mode:
        if self.type[lane] not in (_RWSEM, RW_LOCK, _PERCPU):
            return Mode.NONE
        names = [plain(name) for name in self.waits.stacks.functions(lane)[:12]]
        for name in names:
            for word, mode in _MODES.items():
                if word in name:
                    return mode
        # An inlined percpu_down_read() calls __percpu_down_read(); the writer is a function.
        return Mode.READ if "percpu_rwsem_wait" in names else Mode.NONE

    def _locks_of(self, type_: str) -> None:
        """Add the named holders of locks of a type, and note locks with unnamed holders."""
        lanes = self._of_type(type_)
        if not len(lanes):
            return
        locks = np.unique(self.object[lanes])
        found = holders(self.kernel, type_, locks)
        self.faults += found.faults
        kind = _BY_TYPE[type_]
        sure = found.strength == int(Strength.PROVEN)
        sure &= ~self._still_waits(found, locks)
        rows = np.flatnonzero(sure).tolist()
        self.build.edges(
            HELD,
            (kind, locks[found.lock[sure]]),
            (TASK, found.task[sure]),
            [found.evidence[row] for row in rows],
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
        if kind is RWSEM:
            self._queues(locks[~found.is_write & (found.readers > 0)])
        is_proven = np.isin(np.arange(len(locks)), found.lock[sure])
        has_drained = np.isin(locks, np.array([*self.drained], np.uint64)) | (type_ == _PERCPU)
        needs_readers = (found.readers > 0) & (~found.is_write | has_drained)
        is_write = found.is_write & ~is_proven
        for row in np.flatnonzero(found.is_held & (~is_proven | needs_readers)).tolist():
            if (lock := int(locks[row])) not in self.draft.kept:
                mode = Mode.WRITE if is_write[row] else Mode.READ
                self.wanted[type_, lock] = Mode.NONE if kind is SEMAPHORE else mode

    def _still_waits(self, found: Holders, locks: Words) -> Mask:
        """Return which holders still sleep, although their lock was handed over to them."""
        waited = dict(zip(self.waits.task.tolist(), self.object.tolist(), strict=True))
        rows = zip(found.lock.tolist(), found.task.tolist(), found.evidence, strict=True)
        still = [
            proof == HANDED_OVER and waited.get(task) == int(locks[lock])
            for lock, task, proof in rows
        ]
        return np.array(still, np.bool_)

    def _queues(self, locks: Words) -> None:
        """Find the readers queued behind writers, for locks with readers as holders.

        A writer behind them in the queue waits for the same readers as one before them, so that it
        makes no difference to cycles.
        """
        lanes = self._of_type(_RWSEM)
        lanes = lanes[np.isin(self.object[lanes], locks)]
        modes = [self.draft.mode[lane] for lane in lanes.tolist()]
        is_write = np.array([mode is Mode.WRITE for mode in modes], np.bool_)
        writers, readers = lanes[is_write], lanes[~is_write]
        readers = readers[np.isin(self.object[readers], self.object[writers])]
        for lane in readers.tolist():
            self.draft.kind[lane] = RWSEM_QUEUE
        writers = writers[np.isin(self.object[writers], self.object[readers])]
        self.build.edges(
            QUEUED,
            (RWSEM_QUEUE, self.object[writers]),
            (TASK, self.waits.task[writers]),
            "rw_semaphore.wait_list",
            mode="write",
        )

    def _by_code(self) -> None:
        """Find the holders of wanted locks by the functions and addresses on stacks."""
        stacks = self.waits.stacks
        held = {
            pc: self.draft.sites.held(pc, stacks.names[pc]) for pc in np.unique(stacks.pc).tolist()
        }
        computed: _Taken = defaultdict(list)
        repeated: _Taken = defaultdict(list)
        mapped: dict[int, tuple[str, bool]] = {}
        # Tasks behind one lock are at few places.
        maps = cache(self._maps)
        gone: dict[int, list[Held]] = defaultdict(list)
        interesting = np.array([pc for pc, each in held.items() if each], np.uint64)
        for frame in np.flatnonzero(np.isin(stacks.pc, interesting)).tolist():
            lane, pc = int(stacks.lane[frame]), int(stacks.pc[frame])
            name, inside = stacks.names[pc], [*gone[lane]]
            gone[lane] += [each for each in held[pc] if each.is_dropped]
            for each in held[pc]:
                key = each.type, each.object
                # Locks that functions further inside have dropped are no longer held.
                is_left = not any(map(each.may_be, inside))
                is_sure = each.is_sure and is_left
                if (
                    plain(name) in _FAULTS
                    and each.type == _RWSEM
                    and is_left
                    and each.is_taken
                    and not each.is_taking
                    and lane not in mapped
                ):
                    has_callee = frame > 0 and stacks.lane[frame - 1] == lane
                    callee = int(stacks.pc[frame - 1]) if has_callee else 0
                    mapped[lane] = name, is_sure or maps(pc, callee)
                # The lock to drop next may be the object of the wait further inside.
                if not each.is_taken and self.type[lane] == each.type:
                    continue
                if each.object == 0:
                    if is_sure:
                        known = repeated if each.is_taking else computed
                        known[lane].append(Take(each.type, each.mode, name, each.inside))
                elif key in self.wanted and each.mode in (self.wanted[key], Mode.NONE):
                    strength = Strength.DERIVED if is_sure else Strength.POSSIBLE
                    # A task with the lock as its object would wait for itself.
                    if self.object[lane] != each.object or is_sure:
                        self._claim(key, lane, Claim(strength, f"code of {plain(name)}", name))
        for lane in np.intersect1d(self._having(_PAGE_FAULTS), self._having(_MKWRITES)).tolist():
            mapped.setdefault(lane, (MKWRITE, False))
        self._on_stacks(computed)
        self._of_memory(mapped)
        self._last(computed, repeated, held)
        for (type_, lock), candidates in self.claims.items():
            sure = sum(each.strength is Strength.DERIVED for each in candidates.values())
            # There is only one writer, and rwsems count their readers.
            mode, kind = self.wanted[type_, lock], _BY_TYPE[type_]
            most = self.readers.get(lock, sure) if mode is Mode.READ else 1
            if mode is Mode.READ and kind is PERCPU_RWSEM:
                kind = PERCPU_READERS
            elif lock in self.drained:
                kind = _DRAINED[type_]
            for lane, claim in candidates.items():
                if claim.strength is Strength.DERIVED or not 0 < sure <= most:
                    strength = claim.strength if sure <= most else Strength.POSSIBLE
                    self._held(kind, lock, int(self.waits.task[lane]), claim, strength, mode)

    def _held(
        self, kind: NodeKind, lock: int, task: int, claim: Claim, strength: Strength, mode: Mode
    ) -> None:
        self.build.edges(
            HELD,
            (kind, np.array([lock], np.uint64)),
            (TASK, np.array([task], np.uint64)),
            claim.evidence,
            strength=strength,
            mode=mode.value,
            place=np.array([claim.place], np.uint64),
            frame=plain(claim.code),
        )

    def _of_memory(self, mapped: dict[int, tuple[str, bool]]) -> None:
        """Find the tasks that have read-locked their own address space.

        :param mapped: by task, the function that locks, and whether that is sure: since Linux
            kernel commit 0bff0aaea03e ("x86/mm: try VMA lock-based page fault handling first") (in
            v6.4), page faults may take a lock of their area of the memory map only
        """
        lanes = np.array(sorted(mapped), np.int64)
        if not len(lanes):
            return
        # Since Linux kernel commit da1c55f1b272 ("mmap locking API: rename mmap_sem to mmap_lock")
        # (in v5.8).
        prog = self.kernel.prog
        is_new = prog.type("struct mm_struct").has_member("mmap_lock")
        inside = self._offset("struct mm_struct", "mmap_lock" if is_new else "mmap_sem")
        area = prog.type("struct vm_area_struct")
        has_own_locks = any(area.has_member(each) for each in ("vm_lock", "vm_lock_seq"))
        memory = self._member("struct task_struct", "mm", self.waits.task[lanes])
        for lane, address in zip(lanes.tolist(), (memory + inside).tolist(), strict=True):
            code, is_sure = mapped[lane]
            # A fault within a fault waits for itself; other functions may drop the lock and retake
            # it.
            is_own = self.object[lane] == address
            names = [plain(name) for name in self.waits.stacks.functions(lane)] if is_own else []
            is_nested = plain(code) in _PAGE_FAULTS and names.count(plain(code)) > 1
            if (_RWSEM, address) in self.wanted and (is_nested or not is_own):
                evidence = f"task.mm, and code of {plain(code)}"
                strength = Strength.DERIVED if is_sure or not has_own_locks else Strength.POSSIBLE
                self._claim((_RWSEM, address), lane, Claim(strength, evidence, code))

    def _last(self, computed: _Taken, repeated: _Taken, held: dict[int, list[Held]]) -> None:
        """Judge the last readers of rwsems and the last holders of semaphores: their names stay.

        The last reader stays noted after its release. Others may still be inside, so it is only a
        possible holder; a function on its stack that read-locks an rwsem is further evidence. A
        last reader that waits for the same rwsem has released it, or waits for itself: the latter
        is possible if it has slept for a while in a function that takes such locks twice.

        The last holder of a semaphore stays noted if another task calls up(). It is a derived
        holder if a function on its stack has taken a semaphore without dropping it; if it waits for
        the same semaphore, its code must name that.

        :param repeated: functions that take such a lock, and have taken one before
        :param held: locks held by functions, by return address
        """
        lanes = {task: lane for lane, task in enumerate(self.waits.task.tolist())}
        stacks = self.waits.stacks
        judge = LastReaders(self.kernel, self.known, self.waits, self.faults)
        for lock, (task, evidence, place) in self.last_readers.items():
            lane, claim = lanes.get(task, -1), Claim(Strength.POSSIBLE, evidence, "", place)
            is_own = lane >= 0 and self.object[lane] == lock
            type_ = _RWSEM if (_RWSEM, lock) in self.wanted else _SEMAPHORE
            if (key := (type_, lock)) not in self.wanted:
                continue
            if lane < 0:
                mode = Mode.READ if type_ == _RWSEM else Mode.NONE
                self._held(_BY_TYPE[type_], lock, task, claim, Strength.POSSIBLE, mode)
            elif type_ == _RWSEM:
                found = judge.judge(
                    lane,
                    lock,
                    claim,
                    (computed[lane], repeated[lane]),
                    is_own=is_own,
                    is_only=self.readers.get(lock) == 1,
                )
                if found is not None:
                    self._claim(key, lane, found)
            else:
                code = next(
                    (
                        stacks.names[pc]
                        for pc in stacks.pc[stacks.frames(lane)].tolist()
                        for each in held.get(pc, ())
                        if each.type == _SEMAPHORE and each.is_taken and each.is_sure
                        if each.object == lock or (each.object == 0 and not is_own)
                    ),
                    "",
                )
                if code:
                    proof = f"{evidence}, and code of {plain(code)}"
                    claim = Claim(Strength.DERIVED, proof, code, place)
                if (
                    lane not in self.claims[key]
                    or claim.strength >= self.claims[key][lane].strength
                ):
                    self.claims[key][lane] = claim

    def _claim(self, lock: tuple[str, int], lane: int, claim: Claim) -> None:
        if lane not in self.claims[lock] or self.claims[lock][lane].strength < claim.strength:
            self.claims[lock][lane] = claim

    def _maps(self, pc: int, callee: int) -> bool:
        """Return whether a page fault has locked the whole address space, not an area of it.

        The fault calls :data:`_HANDLER` under one of the two; the last lock function before the
        call tells which.

        :param callee: return address in the function that it called; 0 without one
        """
        names, sites = self.waits.stacks.names, self.draft.sites
        if plain(names.get(callee, "")) != _HANDLER:
            return False
        takers = sites.takers(pc, names[pc], _RWSEM, Mode.READ)
        return bool(takers) and takers.isdisjoint({0, *sites.addresses(_AREA_LOCK)})

    def _on_stacks(self, computed: _Taken) -> None:
        """Find the addresses of locks on the stacks of tasks with other objects."""
        by_address = {lock: type_ for type_, lock in self.wanted}
        for lane, address, place in self._mentions(np.array(list(by_address), np.uint64)):
            type_ = by_address[address]
            if self.object[lane] == address:
                continue
            name = taking(computed[lane], type_, self.wanted[type_, address])
            evidence = f"on the stack, and code of {plain(name)}" if name else "on the stack"
            is_sure = bool(name)
            if type_ == _RWSEM:
                # There are many rwsems, and the code may have taken another one.
                is_last = self.last_readers.get(address, (0,))[0] == int(self.waits.task[lane])
                is_sure &= is_last
                evidence = f"last reader, {evidence}" if is_last else evidence
            strength = Strength.DERIVED if is_sure else Strength.POSSIBLE
            claim = Claim(strength, evidence, name or self._frame_at(lane, place), place)
            self._claim((type_, address), lane, claim)


FINDER = Locks
