# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``xfsaild`` waits for between its rounds: the I/O of the oldest item of the log.

``xfsaild`` writes back the items of the active item list (AIL), sleeps for some milliseconds, and
looks again. The log has no more space until the first item of the list has been written.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import numpy as np

from kcensus.engine.memory import Numbers
from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.requests import requests
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.finders.io.requests import REQUEST, serve_requests
from kcensus.kernel.waiting.finders.io.xfs_buffers import BUFFER_IO
from kcensus.kernel.waiting.graph import SERVED, NodeKind
from kcensus.kernel.xfs.mounts import Mounts, mounts
from kcensus.sources.capsule import NotRecorded

ITEM = NodeKind("oldest item of log", ("struct xfs_log_item",), is_io=True)
_ITEM, _BUFFER, _OF_BUFFER = "struct xfs_log_item", "struct xfs_buf", "struct xfs_buf_log_item"
_BUFFER_ITEM = 0x123C
"""XFS_LI_BUF."""
_WRITE = 1 << 1
"""XBF_WRITE."""


class _Written(NamedTuple):
    item: int
    buffer: int
    place: int
    """Address of the member that points to the buffer."""
    evidence: str


class XfsAil(Finder):
    """Finds the writeback that ``xfsaild`` waits for."""

    about = "items of XFS logs"
    kinds = (ITEM,)

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.written: list[_Written] = []

    def note(self) -> None:
        """Note the oldest items whose buffer is being written as what ``xfsaild`` waits for.

        :raises LookupError: the debug info lacks a type
        """
        lanes = self._lanes(frozenset({"xfsaild"}), None)
        if len(lanes):
            # A capsule of an older version has no items.
            with suppress(NotRecorded):
                self._pushed(lanes)

    def _pushed(self, lanes: Numbers) -> None:
        known = mounts(self.kernel)
        # Since Linux kernel commit 57e809561118 ("xfs: Rename xa_ elements to ail_") (in v4.17).
        names = {"task": ("ail_task", "xa_task"), "first": ("ail_head.next", "xa_ail.next")}
        lists = self._read("struct xfs_ail", known.ail, names)
        lane_of = dict(zip(self.waits.task[lanes].tolist(), lanes.tolist(), strict=True))
        for row, task in enumerate(lists["task"].tolist()):
            first = int(lists["first"][row])
            if task in lane_of and (found := self._oldest(known, row, first)):
                self._note(lane_of[task], found.item, _ITEM, "xfs_ail.ail_head")
                self.written.append(found)

    def _oldest(self, known: Mounts, row: int, first: int) -> _Written | None:
        """Return the first item of a list, if its buffer is being written."""
        item = np.array([first], np.uint64) - self._offset(_ITEM, "li_ail")
        # Since v5.8 (commit not verified), log items of inodes have a buffer, too.
        has_buffer = self.kernel.prog.type(_ITEM).has_member("li_buf")
        names = {"list": "li_ailp", "type": "li_type"} | (
            {"buffer": "li_buf"} if has_buffer else {}
        )
        read = self._read(_ITEM, item, names, is_guess=True)
        # The list's own head is not an item.
        if int(read["list"][0]) != int(known.ail[row]):
            return None
        evidence, inside = "xfs_log_item.li_buf", np.uint64(0)
        if int(read["type"][0]) == _BUFFER_ITEM:
            evidence, inside = "xfs_buf_log_item.bli_buf", self._offset(_OF_BUFFER, "bli_buf")
            buffer = self._member(_OF_BUFFER, "bli_buf", item, is_guess=True)
        elif has_buffer:
            buffer, inside = read["buffer"], self._offset(_ITEM, "li_buf")
        else:
            return None
        state = self._read(
            _BUFFER, buffer, {"target": "b_target", "flags": "b_flags"}, is_guess=True
        )
        targets = [int(known.target[name][row]) for name in ("data", "log", "realtime")]
        is_written = int(state["target"][0]) in targets and int(state["flags"][0]) & _WRITE
        place = int(item[0] + inside)
        return _Written(int(item[0]), int(buffer[0]), place, evidence) if is_written else None

    def find(self) -> None:
        """Add edges from items to the I/O of their buffers, and from that to the requests."""
        if not self.written:
            return
        found, known = requests(self.kernel), bios(self.kernel)
        item, buffer, place = (
            np.array([int(each[at]) for each in self.written], np.uint64) for at in range(3)
        )
        proofs = [each.evidence for each in self.written]
        self.build.edges(SERVED, (ITEM, item), (BUFFER_IO, buffer), proofs, place=place)
        for address in buffer.tolist():
            self.types[BUFFER_IO, address] = _BUFFER
            rows = np.unique(known.request[known.origin_private == np.uint64(address)])
            source = BUFFER_IO, np.full(len(rows), address, np.uint64)
            self.build.edges(SERVED, source, (REQUEST, found.address[rows]), "bio.bi_private")
            serve_requests(self, rows)


FINDER = XfsAil
