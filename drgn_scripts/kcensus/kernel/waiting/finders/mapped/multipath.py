# SPDX-License-Identifier: LGPL-2.1-or-later
"""Multipath maps without a working path, which queue all I/O until a path is back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import drgn
import numpy as np
from drgn import Object

from kcensus.human import counted, listed
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.lists import list_members
from kcensus.kernel.names import decode
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.finders.io.devices import keep
from kcensus.kernel.waiting.finders.mapped.suspended import shown, targets
from kcensus.kernel.waiting.graph import NodeKind
from kcensus.results import Figure, Finding, Remedy
from kcensus.text import pasteable, printable

MULTIPATH = NodeKind("multipath map without paths", ("struct multipath",))
_QUEUE_IF_NO_PATH = 1 << 1
"""MPATHF_QUEUE_IF_NO_PATH, a macro in dm-mpath.c."""
_MAX_PATHS = 1 << 12
_MAX_TOLD = 8
_NUMBER = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True)
class _Path:
    number: str
    """``major:minor``, as ``dmsetup status`` shows it."""
    disk: str
    """Name of its disk, empty if unknown; not safe to print."""
    failures: int

    @property
    def text(self) -> str:
        where = f"{self.number}, " if self.disk else ""
        return f"{self.disk or self.number} ({where}failed {counted(self.failures, 'time')})"


class MultipathMaps(Finder):
    """Finds the multipath maps that queue I/O since they have no path."""

    about = "multipath maps"
    kinds = (MULTIPATH,)
    modules = ("dm_mod", "dm_multipath")

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.maps: dict[int, str] = {}
        """Name by which dmsetup knows the device of each map; not safe to print."""
        self.paths: dict[int, list[_Path]] = {}

    def find(self) -> None:
        """Add edges from devices to the multipath maps that keep their I/O.

        :raises LookupError: the debug info lacks a type or member of dm-multipath
        """
        kept: dict[int, int] = {}
        for row, device, target in targets(self, "struct multipath", "multipath"):
            multipath = Object(self.kernel.prog, "struct multipath *", value=target.private)
            try:
                if not self._queues(multipath):
                    continue
                self.paths[target.private] = list(self._paths(multipath))
            except drgn.FaultError as error:
                self.faults.note(error)
                continue
            kept[row], self.maps[target.private] = target.private, device.name
            self.names[MULTIPATH, target.private] = shown(self, row, device)
        inside = int(self._offset("struct multipath", "nr_valid_paths")) if kept else 0
        keep(self, MULTIPATH, kept, "multipath.nr_valid_paths", inside)

    def _queues(self, multipath: Object) -> bool:
        """Return whether a map has no path and queues I/O; never for a damaged one."""
        if multipath.ti.private.value_() != multipath.value_():
            self.faults["the multipath map belongs to another target"] += 1
            return False
        # Since v4.7 (commit not verified), nr_valid_paths is an atomic_t, and the flags are bits.
        paths = multipath.nr_valid_paths
        if paths.type_.kind is not drgn.TypeKind.INT:
            paths = paths.counter
        if multipath.type_.type.has_member("flags"):
            queues = bool(int(multipath.flags) & _QUEUE_IF_NO_PATH)
        else:
            queues = bool(multipath.member_("queue_if_no_path"))
        return queues and int(paths) == 0

    def _paths(self, multipath: Object) -> Iterator[_Path]:
        """Yield the paths of a map, group by group."""
        head = int(multipath.priority_groups.address_of_())
        groups = self._members([head], "struct priority_group", "list")
        heads = [int(group.pgpaths.address_of_()) for group in groups]
        for path in self._members(heads, "struct pgpath", "list"):
            number = decode(path.path.dev.name.string_())
            match = _NUMBER.fullmatch(number)
            if not match:
                continue
            device = np.array([int(match[1]) << 20 | int(match[2])])
            row = int(block_devices(self.kernel).rows_of_numbers(device)[0])
            name = block_devices(self.kernel).disks[row].name if row >= 0 else ""
            yield _Path(number, name, int(path.fail_count))

    def _members(self, heads: list[int], type_: str, link: str) -> list[Object]:
        memory, prog = self.kernel.memory, self.kernel.prog
        found = np.array(heads, np.uint64)
        _, nodes, torn = list_members(memory, found, self.faults, limit=_MAX_PATHS)
        self.draft.torn += len(torn)
        starts = nodes - self._offset(type_, link)
        return [Object(prog, type_, address=address) for address in starts.tolist()]

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a map without paths: restore a path, or let its I/O fail."""
        if kind is not MULTIPATH:
            return None
        title, name = printable(self.names[kind, address]), self.maps[address]
        paths = self.paths[address]
        known = listed([printable(path.text) for path in paths], _MAX_TOLD)
        return stall.finding(
            "waits-multipath",
            title,
            f"the multipath map {title}, which queues I/O without a path",
            "queue_if_no_path is set and multipath.nr_valid_paths is 0"
            + (f"; paths: {known}" if known else "; it has no path in its table"),
            _remedies(pasteable(name), paths),
            "Restore a path (cable, switch, target): `multipath -ll` and `dmsetup status` list the "
            "maps",
            figures={"paths": Figure(len(paths))},
        )


def _remedies(quoted: str, paths: list[_Path]) -> Iterator[Remedy]:
    """Yield the ways to end the queueing, the harmless one first.

    :param quoted: name of the map; empty if it cannot be pasted
    """
    if not quoted:
        return
    if paths:
        yield Remedy(
            effect="First restore a path (cable, switch, storage target): multipathd then "
            "reinstates it; where multipathd does not run, do so yourself",
            command=f"dmsetup message {quoted} 0 'reinstate_path {paths[0].number}'",
            risk="none: a path that still does not work fails again at its first I/O",
        )
    yield Remedy(
        effect="If no path will come back, let the queued I/O fail"
        + ("" if paths else " (the table has no path to restore)"),
        command=f"dmsetup message {quoted} 0 fail_if_no_path",
        risk="programs get I/O errors, and unwritten data is lost: file systems on the map shut "
        "down or become read-only. multipathd sets it again if no_path_retry is queue",
        undo=f"dmsetup message {quoted} 0 queue_if_no_path",
    )


FINDER = MultipathMaps
