# SPDX-License-Identifier: LGPL-2.1-or-later
"""I/O that targets of device mapper make themselves, such as that of their metadata.

A task that waits for it has the completion on its own stack. Requests in flight lead there. I/O
that a device below keeps does not; but the functions of the target have the address of its data on
the same stack, in their own frames.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Guess, Numbers, Words
from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import requests
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import MISSING
from kcensus.kernel.tasks.places import places_of_devices
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.finders.io.devices import to_devices
from kcensus.kernel.waiting.finders.io.requests import REQUEST, serve_requests
from kcensus.kernel.waiting.graph import SERVED

_WAITS, _END = frozenset({"sync_io"}), "endio"
_REGIONS = np.uint64(63)
"""DM_IO_MAX_REGIONS - 1: the bits of ``bio.bi_private`` with the number of the region."""


class OwnIo(NamedTuple):
    """I/O of targets in flight, as columns: one row for each bio."""

    request: Numbers
    """Row of the request."""
    client: Words
    """``struct dm_io_client *``."""
    context: Words
    """For the function at its end: ``struct sync_io``, ``struct kcopyd_job``, …"""


@once
def own_io(kernel: Kernel) -> OwnIo:
    """Return the I/O that targets have in requests.

    :raises LookupError: the debug info lacks a type of dm_mod, requests or bios
    """
    known = bios(kernel)
    rows = np.flatnonzero(known.ends_in(_END))
    if not len(rows):
        return OwnIo(rows, known.origin_private[rows], known.origin_private[rows])
    type_ = kernel.prog.type("struct io", "dm-io.c")
    owner = known.origin_private[rows] & ~_REGIONS
    members = layout(kernel.prog, type_, ["client", "context"])
    # Other modules may have a function of the same name.
    read = gather(kernel.memory, owner, members, Guess())
    return OwnIo(known.request[rows], read["client"], read["context"])


class Metadata(Finder):
    """A finder about targets with metadata on devices of their own."""

    def _waiting(self) -> Numbers:
        """Return the tasks that wait for I/O of a target."""
        return np.intersect1d(self._having(_WAITS), self._of_type("struct completion"))

    def _own_io(self) -> OwnIo:
        """Return the I/O of targets in requests; none in a kernel whose requests are unreadable."""
        with contextlib.suppress(*MISSING):
            return own_io(self.kernel)
        none = np.empty(0, np.uint64)
        return OwnIo(np.empty(0, np.int64), none, none)

    def _joined(self) -> tuple[Numbers, Numbers]:
        """Return such tasks with a request in flight, and the rows of the requests."""
        lanes, known = self._waiting(), self._own_io()
        owner = self.object[lanes] - self._offset("struct sync_io", "wait")
        asked = np.flatnonzero((known.context != 0) & np.isin(known.context, owner))
        lane, place = np.nonzero(owner[:, None] == known.context[asked][None, :])
        return lanes[lane], known.request[asked[place]]

    def _to_metadata(
        self, disks: Mapping[int, int], evidence: str, modules: frozenset[str]
    ) -> None:
        """Add edges from the completions of tasks without a request to devices with metadata.

        Workers serve many targets in turn: what a former target left on the stack proves nothing.

        :param disks: ``struct gendisk *`` by the address that a task has on its stack, or 0
        :param modules: those whose functions use the address
        """
        asked = {*np.setdiff1d(self._waiting(), self._joined()[0]).tolist()}
        mentions = self._mentions(np.array([each for each in disks if disks[each]], np.uint64))
        sure, every = set[tuple[int, int]](), set[tuple[int, int]]()
        for lane, address, place in mentions:
            if lane in asked:
                every.add((lane, disks[address]))
                if self._module_at(lane, place) in modules:
                    sure.add((lane, disks[address]))
        uses = Counter(lane for lane, _ in sure)
        sure = {(lane, disk) for lane, disk in sure if uses[lane] == 1}
        for pairs, strength in ((sure, Strength.DERIVED), (every - sure, Strength.POSSIBLE)):
            known = sorted(pairs)
            lanes = np.array([lane for lane, _ in known], np.int64)
            to = np.array([disk for _, disk in known], np.uint64)
            to_devices(self, lanes, to, evidence, strength=strength)

    def _module_at(self, lane: int, place: int) -> str:
        """Return the module of the frame at an address on a stack, or of what has called dm_io().

        That may save registers of its caller; functions of the kernel itself do, too.
        """
        stacks = self.waits.stacks
        # Below all frames are the registers that the innermost one has saved.
        places = stacks.places_from(lane, place) or stacks.pc[stacks.frames(lane)].tolist()
        names = (stacks.modules.get(pc, "") for pc in places)
        return next((name for name in names if name not in ("", "dm_mod")), "")

    def _disks(self, devices: Words) -> Words:
        """Return the ``struct gendisk *`` of each ``struct dm_dev *``, or 0."""
        device = self._member("struct dm_dev", "bdev", devices)
        disk = places_of_devices(self.kernel, device, self.faults).disk
        return np.where((device != 0) & np.isin(disk, self._known_disks), disk, np.uint64(0))

    @cached_property
    def _known_disks(self) -> Words:
        return np.array([disk.address for disk in block_devices(self.kernel).disks], np.uint64)


class OwnIos(Metadata):
    """Finds the requests that targets wait for themselves."""

    about = "I/O of targets of device mapper"
    modules = ("dm_mod",)

    def find(self) -> None:
        """Add edges from the completions of tasks to the requests that must end.

        :raises LookupError: the debug info lacks a type of dm_mod, requests or bios
        """
        if not len(self._waiting()):
            return
        lanes, rows = self._joined()
        kinds = [self.draft.kind_of(lane) for lane in lanes.tolist()]
        target = REQUEST, requests(self.kernel).address[rows]
        self.build.edges(SERVED, (kinds, self.object[lanes]), target, "io.context: sync_io")
        serve_requests(self, np.unique(rows))


FINDER = OwnIos
