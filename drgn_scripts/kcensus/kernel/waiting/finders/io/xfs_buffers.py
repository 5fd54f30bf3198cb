# SPDX-License-Identifier: LGPL-2.1-or-later
"""Buffers of XFS that tasks wait for, and the tasks that hold them."""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.engine.memory import Faults, Numbers, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind, plain
from kcensus.kernel.tasks.places import places_of_devices
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.finders.io.devices import to_devices
from kcensus.kernel.waiting.graph import HELD, TASK, NodeKind
from kcensus.kernel.waiting.objects.queued import picked_words
from kcensus.kernel.waiting.objects.reading import Reading
from kcensus.kernel.xfs.buffers import IO, LOCK, Buffers, buffer_waiters, buffers

BUFFER = NodeKind("buffer", ("struct xfs_buf",), is_lock=True)
"""The lock of a buffer."""
BUFFER_IO = NodeKind("I/O of buffer", is_io=True)
"""The I/O of a buffer, or its pin in the log, which the holder of the lock waits for."""
BUFFER_LOCK = f"xfs_buf.{LOCK}"
"""Evidence of a wait for the lock of a buffer, not for its I/O."""
_LAST = "xfs_buf.b_sema.last_holder"
_ONE_REFERENCE = "the only reference besides those of waiters"
_SUBJECT = "XFS buffers"


def buffers_of_xfs(reading: Reading) -> None:
    """Note the buffers of XFS with the task on a list of waiters."""
    waiting, known = buffer_waiters(reading.kernel), buffers(reading.kernel)
    kept, lane = reading.lanes(waiting.task)
    row = waiting.buffer[kept]
    proof = [f"xfs_buf.{waiting.member[index]}" for index in kept.tolist()]
    reading.note(lane, known.address[row], WaitKind.XFS_BUF, "struct xfs_buf", proof)
    reading.torn += waiting.torn
    reading.faults += waiting.faults + known.faults
    reading.report.add(known.report)
    row = known.rows(reading.object)
    lane = np.flatnonzero(row >= 0)
    row = row[lane]
    reading.holder[lane] = known.holder[row]
    reading.device[lane] = known.device[row]
    reading.place(lane, places_of_devices(reading.kernel, known.bdev[row], reading.faults))
    start = reading.sector[lane]
    placed = (start >= 0) & (known.block[row] >= 0)
    reading.sector[lane] = np.where(placed, start + known.block[row], -1)
    reading.sectors[lane] = known.blocks[row]


def contradictions(reading: Reading) -> None:
    """Count the tasks whose stack contradicts the lists of XFS buffers."""
    links = reading.links
    if links is None or _SUBJECT in reading.missing:
        return
    known = buffers(reading.kernel)
    if not len(known):
        return
    size = np.uint64(drgn.sizeof(reading.kernel.prog.type("struct xfs_buf")))
    for lane in np.flatnonzero(known.rows(reading.object) >= 0).tolist():
        first, last = np.searchsorted(links.lane, [lane, lane + 1])
        heads = links.head[first:last]
        heads = heads[heads != 0]
        inside = (heads >= reading.object[lane]) & (heads < reading.object[lane] + size)
        reading.contradicted += int(len(heads) > 0 and not inside.any())


class XfsBuffers(Finder):
    """Finds the tasks that hold buffers of XFS."""

    about = "holders of XFS buffers"
    kinds = (BUFFER, BUFFER_IO)
    lists = {_SUBJECT: buffers_of_xfs}
    pointers = {_SUBJECT: contradictions}
    sleeps = {
        WaitKind.XFS_BUF: "xfs_buf_lock xfs_buf_iowait xfs_buf_wait_unpin",
        WaitKind.BIT: """
            xfs_iunpin_wait xfs_iflock __xfs_iflock __xfs_iunpin_wait xfs_qm_dqunpin_wait
            xfs_dqflock
            """,
    }

    def note(self) -> None:
        """Distinguish waits for the I/O of a buffer from waits for its lock."""
        for lane in self._of_type("struct xfs_buf").tolist():
            if self.evidence[lane] != BUFFER_LOCK:
                self.draft.kind[lane] = BUFFER_IO

    def find(self) -> None:
        """Add edges to the holders of buffer locks.

        A holder is the task of the buffer's transaction, or a task that waits for the buffer's I/O.
        Without these, the lock names its last holder, or the address of the buffer is on the
        holder's stack; but both may be left of a former use.
        """
        lanes = self._of_type("struct xfs_buf")
        proofs = [self.evidence[lane] == BUFFER_LOCK for lane in lanes.tolist()]
        is_lock = np.array(proofs, np.bool_)
        locked, others = lanes[is_lock], lanes[~is_lock]
        known = locked[self.waits.holder[locked] != 0]
        # The last holder of the semaphore may be a task that began its I/O, and went on.
        every = buffers(self.kernel) if len(locked) else None
        row = every.rows(self.object[known]) if every is not None else known
        has_owner = every.has_transaction[row] if every is not None else known != 0
        others = others[np.isin(self.object[others], self.object[locked])]
        owned, noted = known[has_owner], known[~has_owner]
        for lanes, holder, strength, proof in (
            (owned, self.waits.holder[owned], Strength.PROVEN, "xfs_buf.b_transp"),
            (noted, self.waits.holder[noted], Strength.POSSIBLE, _LAST),
            (others, self.waits.task[others], Strength.DERIVED, "waits for its I/O"),
        ):
            locks = BUFFER, self.object[lanes]
            self.build.edges(HELD, locks, (TASK, holder), proof, strength=strength)
        if every is not None:
            without = np.setdiff1d(self.object[locked], self.object[[*owned, *others]])
            self._without_owner(every, locked, without)
        in_io = self._of_type("struct xfs_buf")
        in_io = in_io[[self.evidence[lane] == f"xfs_buf.{IO}" for lane in in_io.tolist()]]
        to_devices(self, in_io, self.waits.disk[in_io], "xfs_buf.b_target")

    def _without_owner(self, every: Buffers, locked: Numbers, addresses: Words) -> None:
        """Add edges to the probable holders of buffers that no transaction has.

        If a buffer is not under I/O, a task has it. Two facts show which: it is on the stack of the
        last holder, or on the stack of one task only while one reference is not of a waiter.

        :param locked: the tasks that wait for locks
        """
        wanted = self.object[locked]
        waiting = {*zip(locked.tolist(), wanted.tolist(), strict=True)}
        last = dict(zip(wanted.tolist(), self.waits.holder[locked].tolist(), strict=True))
        mentions: dict[int, list[tuple[int, int]]] = {each: [] for each in addresses.tolist()}
        for lane, address, place in self._mentions(addresses):
            if (lane, address) not in waiting:
                mentions[address].append((lane, place))
        elsewhere = self._elsewhere(addresses)
        for address, found in mentions.items():
            row = int(every.rows(np.array([address], np.uint64))[0])
            others = int(every.references[row]) - int(np.count_nonzero(wanted == address))
            is_only = len(found) == 1 and others == 1 and address not in elsewhere
            for lane, place in found:
                task, code = self.waits.task[[lane]], plain(self._frame_at(lane, place))
                is_last = last[address] == int(task[0])
                is_sure = (is_last or is_only) and not every.in_io[row] and code.startswith("xfs_")
                proofs = (_LAST * is_last, "on the stack", _ONE_REFERENCE * is_only)
                self.build.edges(
                    HELD,
                    (BUFFER, np.array([address], np.uint64)),
                    (TASK, task),
                    ", ".join(filter(None, proofs)),
                    strength=Strength.DERIVED if is_sure else Strength.POSSIBLE,
                    place=np.array([place], np.uint64),
                    frame=code,
                )

    def _elsewhere(self, addresses: Words) -> set[int]:
        """Return the addresses on stacks of tasks that do not sleep."""
        rows = np.setdiff1d(np.arange(len(self.known)), self.rows)
        wanted, found = np.sort(addresses), set[int]()
        if len(wanted):
            for _, words, _ in picked_words(
                self.kernel.memory,
                self.known,
                rows,
                self.waits.stacks.size,
                Faults(),
                lambda words, _: np.isin(words, wanted),
            ):
                found.update(words.tolist())
        return found


FINDER = XfsBuffers
