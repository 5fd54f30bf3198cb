# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests, disks and free tags that tasks wait for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Mask, Numbers, Words
from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.hardware import disks_of_maps, hardware_queues
from kcensus.kernel.block.requests import State, requests
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.finders.io.devices import nodes_of
from kcensus.kernel.waiting.graph import SERVED, TASK, WAITS, Graph, NodeKind
from kcensus.kernel.waiting.joined import Joins, joined
from kcensus.kernel.waiting.objects.queues import TAGS as MAPS
from kcensus.kernel.waiting.objects.reading import Reading
from kcensus.results import Gap

REQUEST = NodeKind("request", is_io=True, tells_device=True, is_passed_on=True)
TAGS = NodeKind("tags", waits=(WaitKind.TAG,), is_io=True)
"""A free request of a queue."""
_IN_IO = frozenset({WaitKind.REQUEST, WaitKind.FOLIO, WaitKind.BIT, WaitKind.XFS_BUF, WaitKind.LOG})
_STATES = {State.INSERTED: "not dispatched", State.DISPATCHED: "in the driver"}
_LEGACY = "struct request_queue"
_QUEUES = {MAPS: "sbitmap_queue of its tags", _LEGACY: "request_queue of its requests"}
"""Evidence of the disk of a free request, by the type of the object."""


def _by_state(states: npt.NDArray[np.int8]) -> list[str]:
    """Return the numbers of requests in each state, in words."""
    counts = ((int(np.count_nonzero(states == state)), words) for state, words in _STATES.items())
    return [f"{count:,} {words}" for count, words in counts if count]


def disks_of_tags(reading: Reading) -> None:
    """Note the disks of awaited tags, and of awaited requests of legacy queues."""
    types = np.array(reading.type, np.str_)
    tags, legacy = np.flatnonzero(types == MAPS), np.flatnonzero(types == _LEGACY)
    if not len(tags) and not len(legacy):
        return
    devices = block_devices(reading.kernel)
    row = np.full(len(types), -1)
    row[legacy] = devices.disk_rows(reading.object[legacy])
    if len(tags):
        row[tags] = disks_of_maps(reading.kernel, reading.object[tags])
    lane = np.flatnonzero(row >= 0)
    disks = [devices.disks[each] for each in row[lane].tolist()]
    reading.disk[lane] = [disk.address for disk in disks]
    reading.device[lane] = [disk.number for disk in disks]


class Requests(Finder):
    """Finds the requests, disks and free tags that tasks wait for."""

    about = "requests"
    kinds = (REQUEST, TAGS)
    pointers = {"disks of tags": disks_of_tags}
    sleeps = {
        WaitKind.TAG: """
            blk_mq_get_tag bt_get blk_mq_get_request __blk_mq_alloc_requests get_request
            blk_mq_alloc_request_hctx
            """
    }

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.lost = 0
        """Requests and bios of block devices that are torn, or contradict their tags."""

    def gaps(self, graph: Graph) -> Iterator[Gap]:
        """Yield the damaged requests and bios."""
        yield Gap(
            "requests and bios",
            "torn, or contradict their tags",
            self.lost,
            "tasks that wait for submitted I/O have no request",
        )

    def _tags(self) -> None:
        """Note the disks of awaited free tags."""
        is_tag = np.array([kind is WaitKind.TAG for kind in self.waits.kind], np.bool_)
        lanes = np.flatnonzero(is_tag & (self.object != 0) & (self.waits.disk != 0))
        if not len(lanes):
            return
        known = {disk.address: row for row, disk in enumerate(block_devices(self.kernel).disks)}
        rows = np.array([known[disk] for disk in self.waits.disk[lanes].tolist()], np.int64)
        proofs = [_QUEUES[self.type[lane]] for lane in lanes.tolist()]
        self.build.edges(SERVED, (TAGS, self.object[lanes]), nodes_of(self, rows), proofs)
        pairs = zip(lanes.tolist(), rows.tolist(), strict=True)
        legacy = {int(self.object[lane]): row for lane, row in pairs if self.type[lane] == _LEGACY}
        for queue, row in legacy.items():
            found, disk = requests(self.kernel), block_devices(self.kernel).disks[row]
            states = ", ".join(_by_state(found.state[found.disk == row]))
            self.names[TAGS, queue] = f"of {disk.name} (requests: {states})"

    def _name_tags(self) -> None:
        """Name awaited maps of tags by their disks, and the requests that have the tags.

        Any of the requests can free a tag, so edges to all would put the task behind each.
        """
        maps = np.unique(self.object[self._of_type(MAPS)])
        if not len(maps):
            return
        hardware, known = hardware_queues(self.kernel), requests(self.kernel)
        sets, disks = hardware.tag_sets, block_devices(self.kernel).disks
        map_of = np.append(sets.map, np.uint64(0))
        rows = np.flatnonzero(known.hardware_queue >= 0)
        queue = known.hardware_queue[rows]
        own, scheduler = (
            np.where(tag[rows] >= 0, map_of[sets.rows(tags[queue])], np.uint64(0))
            for tags, tag in ((hardware.tags, known.tag), (hardware.sched_tags, known.sched_tag))
        )
        of_maps = disks_of_maps(self.kernel, maps).tolist()
        for map_, disk in zip(maps.tolist(), of_maps, strict=True):
            place = np.flatnonzero(sets.map == np.uint64(map_))
            if disk < 0 or not len(place):
                continue
            states = _by_state(known.state[rows[(own == map_) | (scheduler == map_)]])
            used, depth = int(sets.used[place[0]]), int(sets.depth[place[0]])
            owner = self._owner_of_tags(map_, map_of[sets.rows(hardware.sched_tags)], disk)
            amounts = ", ".join([f"{used:,} of {depth:,} in use", *states])
            self.names[TAGS, map_] = f"of {disks[disk].name} ({owner}: {amounts})"

    def _owner_of_tags(self, map_: int, of_schedulers: Words, disk: int) -> str:
        """Return whose tags a map has, and of which hardware queue of a disk if it has several.

        :param of_schedulers: maps of the tags of the schedulers, by hardware queue
        """
        hardware = hardware_queues(self.kernel)
        is_own = hardware.disk == disk
        is_scheduler = is_own & (of_schedulers == np.uint64(map_))
        if not is_scheduler.any():
            return "driver"
        number = hardware.number[is_scheduler]
        several = int(np.count_nonzero(is_own)) > len(number) == 1
        return f"scheduler, hardware queue {int(number[0])}" if several else "scheduler"

    def find(self) -> None:
        """Add edges to the requests of block devices that must complete first."""
        self.draft.attempt("tags", self._tags)
        self.draft.attempt("names of tags", self._name_tags)
        if not is_in_io(self).any():
            return
        found, known = requests(self.kernel), bios(self.kernel)
        joins = joined(self.kernel)
        self.draft.faults += joins.faults + found.faults + known.faults
        self.lost = sum(found.damage.values()) + known.torn
        strength = np.where(joins.is_proven, int(Strength.PROVEN), int(Strength.POSSIBLE))
        address = found.address[joins.request]
        add_joins(self, joins, REQUEST, address, strength)
        serve_requests(self, np.unique(joins.request))


def add_joins(
    finder: Finder, joins: Joins, kind: NodeKind, address: Words, strength: Numbers
) -> None:
    """Add edges from tasks, or from the objects of their waits, to what they are joined with.

    :param address: of the targets, by join; ``strength`` of each, too
    """
    for has_object in (True, False):
        rows = np.flatnonzero((finder.object[joins.wait] != 0) == has_object)
        lanes = joins.wait[rows]
        kinds = [finder.draft.kind_of(lane) for lane in lanes.tolist()]
        finder.build.edges(
            SERVED if has_object else WAITS,
            (kinds, finder.object[lanes]) if has_object else (TASK, finder.waits.task[lanes]),
            (kind, address[rows]),
            [joins.evidence[row] for row in rows.tolist()],
            strength=strength[rows],
        )


def is_in_io(finder: Finder) -> Mask:
    """Return a mask of the tasks in state D that may wait for a request."""
    in_io = np.array([each in _IN_IO for each in finder.waits.kind], np.bool_)
    return in_io & finder.known.is_blocked[finder.rows]


def serve_requests(finder: Finder, rows: Numbers) -> None:
    """Add edges from requests to their disks, and name the requests.

    :param rows: of the requests
    """
    found, disks = requests(finder.kernel), block_devices(finder.kernel).disks
    source = REQUEST, found.address[rows]
    finder.build.edges(SERVED, source, nodes_of(finder, found.disk[rows]), "request.q")
    for row in rows.tolist():
        disk, sector = disks[int(found.disk[row])], int(found.sector[row])
        node = REQUEST, int(found.address[row])
        finder.types[node] = "struct request"
        finder.names[node] = f"{disk.name} at sector {sector:,}" if sector >= 0 else disk.name
        if state := _STATES.get(State(found.state[row])):
            finder.draft.states[node] = state


FINDER = Requests
