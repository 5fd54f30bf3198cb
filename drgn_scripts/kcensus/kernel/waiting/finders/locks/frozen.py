# SPDX-License-Identifier: LGPL-2.1-or-later
"""Frozen file systems, which hold the locks that their writers wait for."""

from __future__ import annotations

import numpy as np

from kcensus.engine.memory import Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Finder, Stall
from kcensus.kernel.waiting.finders.locks.locks import PERCPU_RWSEM
from kcensus.kernel.waiting.graph import TASK, EdgeKind, NodeKind
from kcensus.results import Finding, Remedy
from kcensus.text import pasteable, printable

FREEZER = NodeKind("frozen file system")
FROZEN = EdgeKind("frozen by")
THAWED = EdgeKind("thawed by", "is thawing")
_THAWS = frozenset({"thaw_super", "thaw_super_locked"})
_FREEZE_COMPLETE = 4
"""SB_FREEZE_COMPLETE."""
_LEVELS = 3
"""SB_FREEZE_LEVELS: number of a super block's locks to freeze."""


class FrozenFileSystems(Finder):
    """Finds the locks of frozen file systems."""

    about = "frozen file systems"
    kinds = (FREEZER,)

    def note(self) -> None:
        """Find the locks of frozen file systems, which have no task as holder."""
        lanes = self._of_type("struct percpu_rw_semaphore")
        if not len(lanes):
            return
        blocks = super_blocks(self.kernel)
        # Since Linux kernel commit 8129ed29644b ("change sb_writers to use percpu_rw_semaphore")
        # (in v4.3 or v4.4), the writers of a file system are readers of rw_sem.
        state = self._member("struct super_block", "s_writers.frozen", blocks.address)
        # Until then, the task in freeze_super() holds the locks itself.
        frozen = blocks.address[state.astype(np.int64) == _FREEZE_COMPLETE]
        locks: dict[int, int] = {}
        for level in range(_LEVELS):
            inside = self._offset("struct super_block", f"s_writers.rw_sem[{level}]")
            locks |= dict(zip((frozen + inside).tolist(), frozen.tolist(), strict=True))
        kept = set(self.object[lanes].tolist()) & set(locks)
        lock = np.array(sorted(kept), np.uint64)
        owner = np.array([locks[each] for each in lock.tolist()], np.uint64)
        names = dict(zip(blocks.address.tolist(), blocks.mount, strict=True))
        for each in owner.tolist():
            if names[each]:
                self.names[FREEZER, each] = f"on {names[each]}"
        self.build.edges(
            FROZEN,
            (PERCPU_RWSEM, lock),
            (FREEZER, owner),
            "super_block.s_writers.frozen",
            mode="write",
            place=owner + self._offset("struct super_block", "s_writers.frozen"),
        )
        self.draft.kept |= kept
        self._thaws(np.unique(owner))

    def _thaws(self, frozen: Words) -> None:
        """Add edges to the tasks that thaw a file system and wait themselves.

        Another thaw would wait for s_umount, which such a task holds or waits for.
        """
        lanes = self._having(_THAWS)
        if not len(lanes) or not len(frozen):
            return
        lock = self.object[lanes] - self._offset("struct super_block", "s_umount")
        pairs = list(zip(lanes.tolist(), lock.tolist(), strict=True))
        pairs += [(lane, block) for lane, block, _ in self._mentions(frozen)]
        known, tasks = set(frozen.tolist()), set(lanes.tolist())
        pairs = sorted({pair for pair in pairs if pair[0] in tasks and pair[1] in known})
        lane, block = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self.build.edges(
            THAWED,
            (FREEZER, np.array(block, np.uint64)),
            (TASK, self.waits.task[np.array(lane, np.int64)]),
            "stack in thaw_super",
            strength=Strength.DERIVED,
            frame="thaw_super",
        )

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a frozen file system, with the command to thaw it."""
        if kind is not FREEZER:
            return None
        blocks = super_blocks(self.kernel)
        known = blocks.mount[blocks.address.tolist().index(address)]
        mount, quoted = printable(known), pasteable(known)
        thaw = Remedy(
            effect="Thaw the file system if the snapshot or backup that froze it has ended",
            command=f"fsfreeze --unfreeze {quoted}",
            risk="a snapshot in progress becomes inconsistent",
        )
        return stall.finding(
            "waits-frozen",
            mount or hex(address),
            f"the frozen file system on {mount or 'no mount point'}",
            "super_block.s_writers.frozen is set: writers wait for the thaw",
            (thaw,) * bool(quoted),
            "Find the program that froze the file system (fsfreeze, LVM, a VM agent): no "
            "mount point to thaw is known",
        )


FINDER = FrozenFileSystems
