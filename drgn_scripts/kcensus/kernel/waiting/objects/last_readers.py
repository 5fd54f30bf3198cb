# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether the last reader of an rwsem still holds it.

The last reader stays noted after its release, while earlier ones may still be inside. A function
that has read-locked ``&inode->i_rwsem`` needs the inode again to release it: while it calls others,
the address of the inode is on the stack, in its frame or where a callee has saved the register that
had it. The code has the distance between the two addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import drgn
import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Mode, Strength
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.tasks.tasks import Tasks
from kcensus.kernel.waiting.objects.queued import picked_words
from kcensus.kernel.waiting.waits import Waits

_RWSEM = "struct rw_semaphore"
MKWRITE = "do_page_mkwrite"
"""It calls the file system with the lock of the memory map, or of an area, held for reading."""
_WHILE_NS = 5 * 10**9


class Claim(NamedTuple):
    """A possible hold of a task on a lock."""

    strength: Strength
    evidence: str
    code: str = ""
    """The function on the task's stack that takes the lock."""
    place: int = 0


class Take(NamedTuple):
    """A lock with a computed address that a function on a stack has taken."""

    type: str
    mode: Mode
    code: str
    """The function."""
    inside: frozenset[int]
    """Known distances of the lock from the address of its object."""


def taking(taken: Sequence[Take], type_: str, mode: Mode) -> str:
    """Return the innermost function of a stack that takes a lock of a type; empty for none."""
    return next((each.code for each in taken if (each.type, each.mode) == (type_, mode)), "")


class LastReaders:
    """Judges the last readers of rwsems among sleeping tasks."""

    def __init__(self, kernel: Kernel, known: Tasks, waits: Waits, faults: Faults) -> None:
        self._kernel, self._known, self._waits = kernel, known, waits
        self._faults = faults

    def judge(
        self,
        lane: int,
        lock: int,
        claim: Claim,
        taken: tuple[Sequence[Take], Sequence[Take]],
        *,
        is_own: bool,
        is_only: bool,
    ) -> Claim | None:
        """Return the claim of the last reader of an rwsem; None for none.

        It is derived if there is one reader only, and a function on the stack has read-locked an
        rwsem of an object whose address is on the stack. A last reader that waits for the same
        rwsem has released it, or waits for itself.

        :param taken: locks that functions have taken, and those taken by functions that now take
            one more
        :param is_own: whether it waits for the same rwsem
        """
        is_late = self._waits.since_ns[lane] >= _WHILE_NS
        reads = [each for each in (*taken[0], *taken[1]) if each[:2] == (_RWSEM, Mode.READ)]
        if is_only and (is_late or not is_own):
            # Callees drop the lock of a memory map, and take it again.
            no = self._of_memory if is_own else frozenset[int]()
            bases = {
                lock - inside: each.code for each in reversed(reads) for inside in each.inside - no
            }
            code, place = self._based(lane, bases)
            if code:
                evidence = f"{claim.evidence}, code of {plain(code)}, and object on the stack"
                return Claim(Strength.DERIVED, evidence, code, place)
            names = map(plain, self._waits.stacks.functions(lane))
            if not is_own and MKWRITE in names and not self._is_bypassed(lane, lock):
                evidence = f"{claim.evidence}, and page fault in {MKWRITE}"
                return Claim(Strength.DERIVED, evidence, MKWRITE)
        code = taking(taken[1 if is_own else 0], _RWSEM, Mode.READ)
        if is_own and not (code and is_late):
            return None
        evidence = claim.evidence + (f", and code of {plain(code)}" if code else "")
        return claim._replace(evidence=evidence, code=code)

    def _is_bypassed(self, lane: int, lock: int) -> bool:
        """Return whether a lock is that of a task's memory map, which faults need not take.

        Since Linux kernel commit 5e31275cc997 ("mm: add per-VMA lock and helper functions to
        control it") (in v6.4), a fault takes the lock of its area instead.
        """
        area = self._kernel.prog.type("struct vm_area_struct")
        if not any(area.has_member(each) for each in ("vm_lock", "vm_lock_seq")):
            return False
        memory = layout(self._kernel.prog, "struct task_struct", ["mm"])
        own = gather(self._kernel.memory, self._waits.task[[lane]], memory, self._faults)["mm"][0]
        return any(int(own) + inside == lock for inside in self._of_memory)

    @property
    def _of_memory(self) -> frozenset[int]:
        # Since Linux kernel commit da1c55f1b272 ("mmap locking API: rename mmap_sem to mmap_lock")
        # (in v5.8).
        type_ = self._kernel.prog.type("struct mm_struct")
        names = filter(type_.has_member, ("mmap_lock", "mmap_sem"))
        return frozenset(drgn.offsetof(type_, name) for name in names)

    def _based(self, lane: int, bases: dict[int, str]) -> tuple[str, int]:
        """Return the function of an address on the stack of a task, and the place of that.

        The frames of callees of the function in which the task sleeps do not count: for a task that
        waits for the same lock, they may have the address in any case.

        :param bases: functions by address
        :return: an empty name for none
        """
        waits, stacks = self._waits, self._waits.stacks
        wanted = np.array(sorted(base for base in bases if base > 0), np.uint64)
        names = [plain(name) for name in stacks.functions(lane)]
        if not len(wanted) or waits.function[lane] not in names:
            return "", 0
        least = int(stacks.sp[stacks.frames(lane)][names.index(waits.function[lane])])
        rows = self._known.rows(waits.task[[lane]])
        for _, words, places in picked_words(
            self._kernel.memory,
            self._known,
            rows,
            stacks.size,
            self._faults,
            lambda words, _: np.isin(words, wanted),
        ):
            for word, place in zip(words.tolist(), places.tolist(), strict=True):
                if place >= least:
                    return bases[word], place
        return "", 0
