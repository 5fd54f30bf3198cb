# SPDX-License-Identifier: LGPL-2.1-or-later
"""Frozen file systems, which hold the locks that their writers wait for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcensus.engine.memory import Words
from kcensus.human import counted
from kcensus.kernel.locking.owners import Strength, holders
from kcensus.kernel.names import MISSING
from kcensus.kernel.tasks.programs import FREEZERS, condition
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.finders.locks.locks import PERCPU_RWSEM
from kcensus.kernel.waiting.graph import TASK, EdgeKind, NodeKind
from kcensus.results import Finding, Remedy
from kcensus.text import pasteable, printable, task_name

FREEZER = NodeKind("frozen file system")
FROZEN = EdgeKind("frozen by")
THAWED = EdgeKind("thawed by", "is thawing")
_THAWS = frozenset({"thaw_super", "thaw_super_locked"})
_FREEZE_COMPLETE = 4
"""SB_FREEZE_COMPLETE."""
_FROZEN_BY = "super_block.s_writers.frozen is set: writers wait for the thaw"
_NO_MOUNT = (
    "Find the program that froze the file system (fsfreeze, LVM, a VM agent): no mount point to "
    "thaw is known"
)
_NO_THAW = (
    "Do not run fsfreeze --unfreeze: {} s_umount of the file system until the thaw, as it seems, "
    "and the command would wait for that. Find the holder: `kcensus waits TARGET --table stacks "
    "--top 0`; without an end of its wait, only a restart ends the freeze"
)
_LOCKING = frozenset({"iterate_supers", "iterate_supers_type", "iterate_super", "deactivate_super"})
_LOCKING |= {"reconfigure_super", "do_remount_sb", "do_umount", "writeback_sb_inodes"}
_LOCKING |= {"super_cache_scan", "freeze_super", "sync_filesystem", "quotactl_block"}
_LOCKING |= {"try_to_writeback_inodes_sb"}
"""Functions that hold s_umount of a super block."""
_FAULTS = frozenset({"do_page_mkwrite", "do_user_addr_fault", "__do_page_fault", "do_page_fault"})
"""Functions of page faults, which hold the memory map or a part of it."""
_LEVELS = 3
"""SB_FREEZE_LEVELS: number of a super block's locks to freeze."""


class FrozenFileSystems(Finder):
    """Finds the locks of frozen file systems."""

    about = "frozen file systems"
    kinds = (FREEZER,)

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.faulting: set[int] = set()
        """Frozen super blocks with a waiter in a page fault."""

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
        for lane in np.intersect1d(lanes, self._having(_FAULTS)).tolist():
            self.faulting |= {locks[each] for each in kept & {int(self.object[lane])}}
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
        mount, quoted = printable(known) if known else "", pasteable(known)
        holder, is_stuck = self._holder(address, stall.tasks)
        thawing = set(self.waits.pid[self._having(_THAWS)].tolist())
        thaw = Remedy(
            effect="Thaw the file system"
            + condition(self.kernel, self.known, FREEZERS, "frozen", stall.tasks, thawing),
            command=f"fsfreeze --unfreeze {quoted}",
            risk="a snapshot in progress becomes inconsistent"
            + f"; {holder} s_umount of the file system, and the command waits for that"
            * bool(holder),
        )
        held = _NO_THAW.format(holder) if is_stuck else ""
        return stall.finding(
            "waits-frozen",
            mount or hex(address),
            f"the frozen file system on {mount or 'no mount point'}",
            "; ".join([_FROZEN_BY, *self._warnings(address, mount)]),
            (thaw,) if quoted and not held else (),
            held or _NO_MOUNT,
        )

    def _holder(self, block: int, behind: frozenset[int]) -> tuple[str, bool]:
        """Return who holds s_umount, which a thaw needs, and whether that waits for the thaw.

        :param behind: PIDs of the tasks that wait for the thaw
        """
        lock = np.array([block], np.uint64) + self._offset("struct super_block", "s_umount")
        try:
            found = holders(self.kernel, "struct rw_semaphore", lock)
        except MISSING:
            return "", False
        readers = int(found.readers[0])
        if not found.is_held[0] or not (found.is_write[0] or readers > 0):
            return "", False
        rows = [row for row in self.known.rows(found.task).tolist() if row >= 0]
        if found.is_write[0] and rows:
            pid = int(self.known.pid[rows[0]])
            is_stuck = pid in behind and bool(self.known.is_blocked[rows[0]])
            return f"{task_name(self.known.comm[rows[0]], pid)} holds", is_stuck
        # The lock names no other holder; some of the callers of these functions hold it.
        lanes = self._having(_LOCKING) if behind else np.empty(0, np.int64)
        is_stuck = not behind.isdisjoint(self.waits.pid[lanes].tolist())
        who = "an unknown writer holds" if found.is_write[0] else counted(readers, "reader", "hold")
        return who, is_stuck

    def _warnings(self, block: int, mount: str) -> Iterator[str]:
        """Yield warnings about programs that may hang, too."""
        if mount == "/":
            yield "it is the root file system: programs that write hang, such as login and sudo"
        if block in self.faulting:
            yield (
                "a waiter holds the memory map of its process, so that `ps` and `top` may hang: "
                "look at /proc/PID/stack instead"
            )


FINDER = FrozenFileSystems
