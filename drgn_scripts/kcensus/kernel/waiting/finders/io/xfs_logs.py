# SPDX-License-Identifier: LGPL-2.1-or-later
"""Transactions and workers that hold up the logs of XFS.

The log has space for a transaction when others end, or when ``xfsaild`` has written back the items
at its tail.
"""

from __future__ import annotations

import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Mask, Numbers, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.places import places_of_devices
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.finders.io.devices import to_devices
from kcensus.kernel.waiting.finders.io.journals import LOG
from kcensus.kernel.waiting.graph import HELD, RUN_BY, SERVED, TASK, NodeKind
from kcensus.kernel.waiting.objects.reading import Reading
from kcensus.kernel.workqueues import workqueues
from kcensus.kernel.xfs.mounts import Mounts, log_waiters, mounts

LOG_SPACE = NodeKind("log space", is_any=True, is_io=True)
"""Room for one more transaction."""
_HEADS = ("xlog.l_reserve_head", "xlog.l_write_head")
"""Queues for space in a log."""
_SYNCING = 0x0004
"""XLOG_STATE_SYNCING while it was a macro."""
_MAX_BUFFERS = 8
"""XLOG_MAX_ICLOGS."""
_CIL = "struct xfs_cil"
_LOGS = frozenset(
    {"struct xlog", "struct xlog_ticket", "struct xlog_in_core", "struct xfs_ail", _CIL}
)


def logs_of_xfs(reading: Reading) -> None:
    """Note the logs of XFS with the task on a list of waiters."""
    waiting, known = log_waiters(reading.kernel), mounts(reading.kernel)
    kept, lane = reading.lanes(waiting.task)
    members = [waiting.member[index] for index in kept.tolist()]
    types = [
        f"struct {'xlog_ticket' if member in _HEADS else member.partition('.')[0]}"
        for member in members
    ]
    reading.note(lane, waiting.object[kept], WaitKind.LOG, types, members)
    reading.torn += waiting.torn + known.damaged
    reading.faults += waiting.faults + known.faults
    # A task that is on another object's list as well keeps the place of that object.
    noted = reading.object[lane] == waiting.object[kept]
    lane, row = lane[noted], waiting.mount[kept][noted]
    reading.device[lane] = known.log_device[row]
    reading.place(lane, places_of_devices(reading.kernel, known.log_bdev[row], reading.faults))
    reading.sector[lane] = -1


class XfsLogs(Finder):
    """Finds the tasks that keep or write the logs of XFS."""

    about = "logs of XFS"
    kinds = (LOG_SPACE,)
    lists = {"XFS logs": logs_of_xfs}
    sleeps = {
        WaitKind.LOG: """
            xlog_grant_head_wait xlog_grant_head_check xlog_wait xlog_wait_on_iclog
            xlog_state_get_iclog_space xlog_cil_push_work xlog_cil_force_seq xlog_cil_force_lsn
            xlog_cil_order_write xlog_force_lsn xlog_state_sync_lsn xfs_log_force
            xfs_log_force_lsn xfs_log_force_seq __xfs_log_force_lsn _xfs_log_force
            _xfs_log_force_lsn xlog_cil_push_now xfs_ail_push_all_sync
            """
    }
    # Since Linux kernel commit 79b54d9bfcdc ("xfs: use bios directly to write log buffers") (in
    # v5.3), the bio is a member of the log buffer; before, the log buffer has an xfs_buf.
    bios = {"struct xlog_in_core": ("ic_bio", "ic_bp")}

    def note(self) -> None:
        """Note the logs with waits for space, and the tasks that take or may free it.

        :raises LookupError: the debug info lacks a type
        """
        if any(type_ in _LOGS for type_ in self.type):
            self._space(mounts(self.kernel))
            self._pushed()

    def find(self) -> None:
        """Add edges from log buffers that are being written to the device of the log.

        Who waits for a free one (``l_flush_wait``) waits for those of the ring that are written.
        """
        own, others = self._of_type("struct xlog_in_core"), self._of_type("struct xlog")
        free = [self.evidence[lane] == "xlog.l_flush_wait" for lane in others.tolist()]
        others = others[np.array(free, np.bool_)]
        if not len(own) and not len(others):
            return
        lanes = [own[self._is_written(self.object[own])]]
        log = self.object[others]
        buffer = self._member("struct xlog", "l_iclog", log)
        is_written = np.zeros(len(log), np.bool_)
        for _ in range(_MAX_BUFFERS if len(log) else 0):
            is_written |= self._is_written(buffer)
            buffer = self._member("struct xlog_in_core", "ic_next", buffer)
        lanes.append(others[is_written])
        for each in lanes:
            to_devices(self, each, self.waits.disk[each], "xlog_in_core.ic_state")

    def _is_written(self, buffers: Words) -> Mask:
        # An enumerator since Linux kernel commit 1858bb0bec61 ("xfs: turn ic_state into an enum")
        # (in v5.5).
        try:
            writing = self.kernel.prog.constant("XLOG_STATE_SYNCING").value_()
        except LookupError:
            writing = _SYNCING
        state = self._member("struct xlog_in_core", "ic_state", buffers)
        written: Mask = state.astype(np.int64) == writing
        return written

    def _space(self, known: Mounts) -> None:
        waiting = log_waiters(self.kernel)
        rows = np.flatnonzero(np.isin(np.array(waiting.member, np.str_), _HEADS))
        mount_of = dict(
            zip(waiting.object[rows].tolist(), waiting.mount[rows].tolist(), strict=True)
        )
        names, used = self._mount_points(), set[int]()
        for row, member in enumerate(waiting.member):
            if member not in _HEADS and (name := names.get(int(known.address[waiting.mount[row]]))):
                self.names[LOG, int(waiting.object[row])] = f"of {name} ({member})"
        for lane in np.flatnonzero(self.object != 0).tolist():
            mount = mount_of.get(int(self.object[lane]))
            if mount is None or self.evidence[lane] not in _HEADS:
                continue
            self._note(lane, int(known.log[mount]), "struct xlog", self.evidence[lane])
            self.draft.kind[lane] = LOG_SPACE
            used.add(mount)
        if not used:
            return
        mount = np.array(sorted(used), np.int64)
        for row in mount.tolist():
            if name := names.get(int(known.address[row])):
                self.names[LOG_SPACE, int(known.log[row])] = f"on {name}"
        # Since Linux kernel commit 57e809561118 ("xfs: Rename xa_ elements to ail_") (in v4.17).
        members = layout(self.kernel.prog, "struct xfs_ail", {"task": ("ail_task", "xa_task")})
        task = gather(self.kernel.memory, known.ail[mount], members, self.faults)["task"]
        has = np.flatnonzero(self.known.rows(task) >= 0)
        self.draft.torn += len(task) - len(has)
        log, task = known.log[mount[has]], task[has]
        place = known.ail[mount[has]] + np.uint64(members.fields["task"].offset)
        self.build.edges(SERVED, (LOG_SPACE, log), (TASK, task), "xfs_ail.ail_task", place=place)
        self._transactions(known, mount, waiting.task[rows])

    def _transactions(self, known: Mounts, mount: Numbers, waiters: Words) -> None:
        """Add the tasks that have reserved space: in a transaction, but not waiting for space.

        Their transaction is ``task.journal_info`` since v5.11, and on their stack only since v6.9
        (commits not verified). It names the mount, and a ticket, which names the task; journal_info
        of other file systems does not.
        """
        tasks = self.known.address
        noted = self._member("struct task_struct", "journal_info", tasks)
        found = [(tasks, noted, tasks + self._offset("struct task_struct", "journal_info"))]
        stacks = self.waits.stacks
        codes = [pc for pc, name in stacks.names.items() if name.startswith("xfs_")]
        in_xfs = np.unique(stacks.lane[np.isin(stacks.pc, np.array(codes, np.uint64))])
        for lane, word, at in self._picked(in_xfs):
            found.append((self.waits.task[lane], word, at))
        owner, transaction, place = (np.concatenate(part) for part in zip(*found, strict=True))
        members = {"mount": "t_mountp", "ticket": "t_ticket"}
        read = self._read("struct xfs_trans", transaction, members, is_guess=True)
        sound = np.flatnonzero(read.readable & np.isin(read["mount"], known.address[mount]))
        tickets = read["ticket"][sound]
        named = self._member("struct xlog_ticket", "t_task", tickets, is_guess=True)
        sound = sound[(named == owner[sound]) & ~np.isin(owner[sound], waiters)]
        log = dict(zip(known.address[mount].tolist(), known.log[mount].tolist(), strict=True))
        logs = np.array([log[each] for each in read["mount"][sound].tolist()], np.uint64)
        self.build.edges(
            HELD,
            (LOG_SPACE, logs),
            (TASK, owner[sound]),
            "xlog_ticket.t_task",
            strength=Strength.DERIVED,
            place=place[sound],
        )

    def _mount_points(self) -> dict[int, str]:
        """Return the mount point of each XFS, by ``struct xfs_mount``; not safe to print."""
        blocks = super_blocks(self.kernel)
        mounted = self._member("struct super_block", "s_fs_info", blocks.address, is_guess=True)
        return dict(zip(mounted.tolist(), blocks.mount, strict=True))

    def _pushed(self) -> None:
        """Add the workers that push the awaited lists of changes to the log."""
        lanes = self._of_type(_CIL)
        if not len(lanes):
            return
        items = workqueues(self.kernel).items
        running = items[items["state"] == "in-flight"]
        work = np.array(running["work"].tolist(), np.uint64)
        # Since Linux kernel commit 39823d0fac94 ("xfs: CIL work is serialised, not pipelined") (in
        # v5.14), each checkpoint has a work item of its own.
        if self.kernel.prog.type(_CIL).has_member("xc_push_work"):
            cil = work - self._offset(_CIL, "xc_push_work")
        else:
            context = work - self._offset("struct xfs_cil_ctx", "push_work")
            cil = self._member("struct xfs_cil_ctx", "cil", context, is_guess=True)
        rows = {int(pid): row for row, pid in enumerate(self.known.pid.tolist())}
        wanted = self.object[lanes].tolist()
        waiting = set(zip(wanted, self.waits.task[lanes].tolist(), strict=True))
        pushing: dict[int, list[int]] = {each: [] for each in wanted}
        for each, pid in zip(cil.tolist(), running["pid"].tolist(), strict=True):
            if each in pushing and int(pid) in rows:
                task = int(self.known.address[rows[int(pid)]])
                # A queued worker blocks nobody, itself included.
                if (each, task) not in waiting:
                    pushing[each].append(task)
        for each, workers in pushing.items():
            self.build.edges(
                RUN_BY,
                (LOG, np.full(len(workers), each, np.uint64)),
                (TASK, np.array(workers, np.uint64)),
                "worker.current_work",
                # Each of several workers writes a list of its own.
                strength=Strength.PROVEN if len(workers) == 1 else Strength.POSSIBLE,
            )


FINDER = XfsLogs
