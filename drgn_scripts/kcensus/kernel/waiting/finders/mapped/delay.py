# SPDX-License-Identifier: LGPL-2.1-or-later
"""Delay targets of device mapper, which hold I/O for a set time."""

from __future__ import annotations

import numpy as np

from kcensus.human import counted, human_seconds
from kcensus.kernel.lists import list_members
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.finders.io.devices import keep
from kcensus.kernel.waiting.finders.mapped.suspended import shown, targets
from kcensus.kernel.waiting.graph import NodeKind
from kcensus.results import Figure, Finding, Remedy, Unit
from kcensus.text import pasteable, printable

DELAY = NodeKind("delay target", ("struct delay_c",))
_TYPE, _CLASSES = "struct delay_c", ("read.delay", "write.delay", "flush.delay")
_MAX_BIOS = 1 << 20


class DelayTargets(Finder):
    """Finds the delay targets that hold I/O."""

    about = "delay targets"
    kinds = (DELAY,)
    modules = ("dm_mod", "dm_delay")

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.devices: dict[int, str] = {}
        """Name by which dmsetup knows the device of each target; not safe to print."""
        self.held: dict[int, tuple[int, float]] = {}
        """Held bios, and the longest delay of the target in seconds."""

    def find(self) -> None:
        """Add edges from devices to their delay targets with held bios.

        :raises LookupError: the debug info lacks a type or member of dm-delay
        """
        known = targets(self, _TYPE, "delay")
        if not known:
            return
        address = np.array([target.private for _, _, target in known], np.uint64)
        heads = address + self._offset(_TYPE, "delayed_bios")
        lanes, _, torn = list_members(self.kernel.memory, heads, self.faults, limit=_MAX_BIOS)
        self.draft.torn += len(torn)
        bios = np.bincount(lanes, minlength=len(known))
        bios[torn] = 0
        type_ = self.kernel.prog.type(_TYPE)
        # Since v4.19 (commit not verified), one class for each; before, two delays.
        members = _CLASSES if type_.has_member("read") else ("read_delay", "write_delay")
        delays = [self._member(_TYPE, member, address) for member in members]
        kept: dict[int, int] = {}
        for at, (row, device, target) in enumerate(known):
            if bios[at]:
                kept[row] = target.private
                longest = max(int(each[at]) for each in delays) / 1e3
                self.held[target.private] = int(bios[at]), longest
                self.devices[target.private] = device.name
                self.names[DELAY, target.private] = f"of {shown(self, row, device)}"
        keep(self, DELAY, kept, "delay_c.delayed_bios")

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a delay target, with the command that releases its I/O."""
        if kind is not DELAY:
            return None
        title, name = printable(self.names[kind, address]), pasteable(self.devices[address])
        count, delay = self.held[address]
        release = Remedy(
            effect="Release the held I/O once (the delay stays)",
            command=f"dmsetup suspend --nolockfs {name} && dmsetup resume {name}",
            risk="none for the data; it hangs, and keeps all I/O, if a disk below does not "
            "answer. Load a table without the target to end the delay",
        )
        return stall.finding(
            "waits-delay",
            title.removeprefix("of "),
            f"the delay target {title}, which holds each I/O for up to {human_seconds(delay)}",
            f"delay_c.delayed_bios has {counted(count, 'bio')}",
            (release,) * bool(name),
            "`dmsetup table` has the delay of each device",
            figures={"bios": Figure(count), "delay": Figure(delay, Unit.SECONDS)},
        )


FINDER = DelayTargets
