# SPDX-License-Identifier: LGPL-2.1-or-later
"""Loop devices: the workers that pass their requests to the file, and direct I/O of the file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcensus.engine.memory import Numbers, Words
from kcensus.kernel.block.bios import Bios, bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import requests
from kcensus.kernel.block.stacks import Via, kind_of, stacks
from kcensus.kernel.lists import list_members
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.vfs.files import file_paths
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.finders.io.devices import DEVICE, nodes_of
from kcensus.kernel.waiting.finders.io.requests import REQUEST, is_in_io, serve_requests
from kcensus.kernel.waiting.graph import RUN_BY, SERVED, TASK, EdgeKind, NodeKind
from kcensus.kernel.workqueues import workqueues

FILE = NodeKind("file")
"""The file of a loop device."""
BACKED = EdgeKind("on file", "is below", is_wait=False)
_LOOP, _COMMAND, _WORKER = "struct loop_device", "struct loop_cmd", "struct loop_worker"
_WORKING = frozenset(
    {"loop_process_work", "loop_workfn", "loop_rootcg_workfn"}
    | {"loop_queue_work", "loop_queue_write_work", "loop_queue_read_work", "loop_thread"}
)
_DIRECT_IO = 16
"""LO_FLAGS_DIRECT_IO of the kernel's interface."""
_SIMPLE = "struct iomap_dio_simple"
"""In v7.3, of direct I/O with a single bio, which is a member of it."""
_DIRECT = {"iomap_dio_bio_end_io": "struct iomap_dio", "iomap_dio_simple_end_io": _SIMPLE}
"""Types of direct I/O, by the end of its bios."""
_MAX_COMMANDS = 1 << 16
_RUNNING = "in-flight"


@dataclass(frozen=True)
class _Loops:
    """Loop devices with a file, as columns."""

    row: Numbers
    """Of the disk."""
    disk: Words
    address: Words
    file: Words
    is_direct: Numbers


class LoopDevices(Finder):
    """Finds the workers of loop devices, and the requests of their files."""

    about = "loop devices"
    kinds = (FILE,)
    modules = ("loop",)

    def find(self) -> None:
        """Add edges from loop devices to their files, workers and lower devices.

        :raises LookupError: the debug info lacks a type or member of loop devices
        """
        rows = self._awaited()
        if not rows:
            return
        loops = self._loops(np.array(rows, np.int64))
        self._add_files(loops)
        served = self._workers(loops)
        direct = np.flatnonzero((loops.is_direct != 0) & ~np.isin(loops.address, served))
        if len(direct):
            self._add_direct(loops, direct)

    def _awaited(self) -> list[int]:
        """Return the rows of the loop devices that tasks or requests wait for."""
        disks = block_devices(self.kernel).disks
        rows = [row for row, disk in enumerate(disks) if kind_of(disk) is Via.LOOP and disk.private]
        if not rows or not is_in_io(self).any():
            return []
        awaited = set(self.waits.disk[self.known.is_blocked[self.rows]].tolist())
        busy = set(np.unique(requests(self.kernel).disk).tolist())
        return [row for row in rows if row in busy or disks[row].address in awaited]

    def _loops(self, rows: Numbers) -> _Loops:
        """Return the loop devices with a file that name their disk."""
        disks = block_devices(self.kernel).disks
        address = np.array([disks[row].private for row in rows.tolist()], np.uint64)
        disk = np.array([disks[row].address for row in rows.tolist()], np.uint64)
        read = self._read(
            _LOOP, address, {"disk": "lo_disk", "file": "lo_backing_file", "flags": "lo_flags"}
        )
        if count := np.count_nonzero(read.readable & (read["disk"] != disk)):
            self.faults["the loop device belongs to another disk"] += int(count)
        kept = (read["disk"] == disk) & (read["file"] != 0)
        flags = read["flags"][kept].astype(np.int64)
        return _Loops(rows[kept], disk[kept], address[kept], read["file"][kept], flags & _DIRECT_IO)

    def _add_files(self, loops: _Loops) -> None:
        """Add the files of loop devices, with their paths."""
        mapping = self._member("struct file", "f_mapping", loops.file)
        inode = self._member("struct address_space", "host", mapping)
        known = np.flatnonzero(inode)
        paths = file_paths(self.kernel, inode[known], self.faults)
        for address in inode[known].tolist():
            self.names[FILE, address] = paths.get(address, f"{address:#x}")
            self.types[FILE, address] = "struct inode"
        source = nodes_of(self, loops.row[known])
        self.build.edges(BACKED, source, (FILE, inode[known]), "loop_device.lo_backing_file")

    def _workers(self, loops: _Loops) -> Words:
        """Add edges to the tasks that pass requests on; return the loop devices with such a task.

        Since Linux kernel commit 87579e9b7d8d ("loop: use worker per cgroup instead of kworker")
        (in v5.14), a workqueue with a worker per cgroup; before, a thread.
        """
        lanes = self._having(_WORKING)
        if not len(lanes):
            return np.empty(0, np.uint64)
        type_ = self.kernel.prog.type(_LOOP)
        if type_.has_member("workqueue"):
            return self._of_workqueues(loops, lanes)
        thread = self._member(_LOOP, ("worker_task", "lo_thread"), loops.address)
        found = np.flatnonzero(np.isin(thread, self.waits.task[lanes]))
        self.build.edges(
            RUN_BY, (DEVICE, loops.disk[found]), (TASK, thread[found]), "loop_device.worker_task"
        )
        return loops.address[found]

    def _of_workqueues(self, loops: _Loops, lanes: Numbers) -> Words:
        """Add edges to the workers of workqueues; return the loop devices with a worker."""
        queue = self._member(_LOOP, "workqueue", loops.address)
        items = workqueues(self.kernel).items
        running = items[(items["state"] == _RUNNING) & items["wq"].isin(queue.tolist())]
        lane_of = {int(self.waits.pid[lane]): lane for lane in lanes.tolist()}
        loop_of = {int(each): row for row, each in enumerate(queue.tolist()) if each}
        pairs = [
            (loop_of[wq], lane_of[pid], work)
            for wq, pid, work in zip(
                running["wq"].tolist(), running["pid"].tolist(), running["work"].tolist(),
                strict=True,
            )
            if pid in lane_of
        ]  # fmt: skip
        if not pairs:
            return np.empty(0, np.uint64)
        loop, lane = (np.array([pair[at] for pair in pairs], np.int64) for at in (0, 1))
        work = np.array([pair[2] for pair in pairs], np.uint64)
        is_one = np.bincount(loop)[loop] == 1
        if not is_one.all():
            several = ~is_one
            self._add_commands(loops, loop[several], lane[several], work[several])
        strength = np.where(is_one, int(Strength.PROVEN), int(Strength.POSSIBLE))
        self.build.edges(
            RUN_BY,
            (DEVICE, loops.disk[loop]),
            (TASK, self.waits.task[lane]),
            "worker.current_pwq",
            strength=strength,
        )
        return loops.address[np.unique(loop)]

    def _add_commands(self, loops: _Loops, loop: Numbers, lane: Numbers, work: Words) -> None:
        """Add edges from requests to the one of several workers that has them.

        They are on a list of the worker, or on its stack.
        """
        root = loops.address[loop] + self._offset(_LOOP, "rootcg_work")
        worker = work - self._offset(_WORKER, "work")
        is_root = work == root
        owner = self._member(_WORKER, "lo", np.where(is_root, 0, worker), is_guess=True)
        is_known = is_root | (owner == loops.address[loop])
        heads = np.where(
            is_root,
            loops.address[loop] + self._offset(_LOOP, "rootcg_cmd_list"),
            worker + self._offset(_WORKER, "cmd_list"),
        )[is_known]
        row, nodes, torn = list_members(self.kernel.memory, heads, self.faults, limit=_MAX_COMMANDS)
        self.draft.torn += len(torn)
        size = np.uint64(self.kernel.prog.type("struct request").size)
        queued = nodes - self._offset(_COMMAND, "list_entry") - size
        lanes = lane[is_known][row]
        self._to_workers(queued, lanes, "loop_cmd.list_entry", Strength.PROVEN)
        known = requests(self.kernel)
        mine = known.address[np.isin(known.disk, loops.row[loop])]
        wanted = dict.fromkeys(lane.tolist())
        current = [
            (address, each)
            for each, address, _ in self._mentions(np.concatenate([mine, mine + size]))
            if each in wanted
        ]
        address = np.array([pair[0] for pair in current], np.uint64)
        address = np.where(np.isin(address, mine), address, address - size)
        lanes = np.array([pair[1] for pair in current], np.int64)
        rest = ~np.isin(address, queued)
        self._to_workers(address[rest], lanes[rest], "stack of the worker", Strength.DERIVED)

    def _to_workers(self, request: Words, lane: Numbers, evidence: str, strength: Strength) -> None:
        known = np.isin(request, requests(self.kernel).address)
        source = REQUEST, request[known]
        target = TASK, self.waits.task[lane[known]]
        self.build.edges(SERVED, source, target, evidence, strength=strength)

    def _add_direct(self, loops: _Loops, direct: Numbers) -> None:
        """Add edges from loop devices, and from their requests, to those of their direct I/O."""
        known, every = bios(self.kernel), requests(self.kernel)
        # Rows of disks: of a loop device, and of those that serve its direct I/O.
        pairs: set[tuple[int, int]] = set()
        rows, iocb = self._direct_io(known)
        if len(rows):
            size = np.uint64(self.kernel.prog.type("struct request").size)
            upper = iocb - self._offset(_COMMAND, "iocb") - size
            at = every.rows(upper)
            is_loop = (at >= 0) & np.isin(every.disk[at], loops.row[direct])
            rows, at = rows[is_loop], at[is_loop]
            lower = known.request[rows]
            upper, under = every.address[at], every.address[lower]
            self.build.edges(SERVED, (REQUEST, upper), (REQUEST, under), "iomap_dio.iocb")
            serve_requests(self, np.unique(lower))
            pairs = set(zip(every.disk[at].tolist(), every.disk[lower].tolist(), strict=True))
        rest = set(loops.row[direct].tolist()) - {row for row, _ in pairs}
        pairs |= {(row, under) for row in rest for under in stacks(self.kernel).lower(row)}
        if pairs:
            upper_rows, lower_rows = (
                np.array(part, np.int64) for part in zip(*sorted(pairs), strict=True)
            )
            self.build.edges(
                SERVED,
                nodes_of(self, upper_rows),
                nodes_of(self, lower_rows),
                "loop_device.lo_backing_file",
                strength=Strength.DERIVED,
            )

    def _direct_io(self, known: Bios) -> tuple[Numbers, Words]:
        """Return the rows of the bios of direct I/O, and the ``struct kiocb *`` of each."""
        rows, iocb = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for name, type_ in _DIRECT.items():
            found = np.flatnonzero(known.ends_in(name))
            if len(found):
                is_member = type_ == _SIMPLE
                place = known.origin if is_member else known.origin_private
                start = place[found] - (self._offset(type_, "bio") if is_member else np.uint64(0))
                rows.append(found)
                iocb.append(self._member(type_, "iocb", start))
        return np.concatenate(rows), np.concatenate(iocb)


FINDER = LoopDevices
