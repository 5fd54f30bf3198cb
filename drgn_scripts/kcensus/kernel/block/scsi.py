# SPDX-License-Identifier: LGPL-2.1-or-later
"""SCSI disks: their devices, the hosts that they are on, and the states of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import drgn
import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Guess, Words
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.clock import clock
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.lists import list_members
from kcensus.kernel.vfs.paths import texts

_HOST, _DEVICE = "struct Scsi_Host", "struct scsi_device"
_MAX_DEVICES = 1 << 20
"""Most devices of all hosts."""


@dataclass(frozen=True)
class Host:
    """A ``struct Scsi_Host``; its driver's name is not safe to print."""

    address: int
    number: int
    driver: str
    state: str
    """Such as ``RECOVERY``, of ``enum scsi_host_state``."""
    failed: int
    """Commands that failed or timed out, which recovery has in hand."""
    recoverer: int
    """``struct task_struct *`` of its thread ``scsi_eh_N``."""
    deadline: int
    """Seconds after which a recovery resets the host at once; -1 for none."""

    @property
    def name(self) -> str:
        return f"{self.number} ({self.driver})"

    @property
    def recovers(self) -> bool:
        """Whether it recovers from errors, and takes no commands meanwhile."""
        return "RECOVERY" in self.state


@dataclass(frozen=True)
class Device:
    """A disk that is a ``struct scsi_device``."""

    disk: int
    """Row of the disk."""
    address: int
    host: Host
    state: str
    """Such as ``BLOCK``, of ``enum scsi_device_state``."""
    target: int
    """Parent of its target: ``struct device *``, of a session or remote port if it has one."""
    patience: int
    """Seconds that recovery waits for each command (``eh_timeout``)."""


@dataclass(frozen=True)
class Scsi:
    """All disks on SCSI hosts."""

    devices: list[Device]
    hosts: dict[int, Host]
    """By address."""
    torn: int = 0
    """Lists of devices that could not be followed to their end."""
    faults: Faults = field(default_factory=Faults)


@once
def scsi(kernel: Kernel) -> Scsi:
    """Return the SCSI devices of disks.

    The data of a SCSI disk's queue is its device, which names its queue and its host; that has the
    device on its list.

    :raises LookupError: the debug info lacks SCSI devices or hosts
    """
    memory, prog, faults = kernel.memory, kernel.prog, Faults()
    disks = block_devices(kernel).disks
    queue = np.array([disk.queue for disk in disks], np.uint64)
    data = layout(prog, "struct request_queue", ["queuedata"])
    own = gather(memory, queue, data, faults)["queuedata"]
    members = {
        "queue": "request_queue",
        "host": "host",
        "state": "sdev_state",
        "target": "sdev_target",
        "patience": ("eh_timeout", "timeout"),
    }
    read = gather(memory, own, layout(prog, _DEVICE, members), Guess())
    row = np.flatnonzero(read.readable & (queue != 0) & (read["queue"] == queue))
    hosts, lists = np.unique(read["host"][row]), drgn.offsetof(prog.type(_HOST), "__devices")
    lane, nodes, cut = list_members(
        memory, hosts + np.uint64(lists), faults, limit=_MAX_DEVICES, verify=not kernel.live
    )
    inside = np.uint64(drgn.offsetof(prog.type(_DEVICE), "siblings"))
    listed = set(zip(hosts[lane].tolist(), (nodes - inside).tolist(), strict=True))
    known = _hosts(kernel, hosts, faults)
    parent = layout(prog, "struct scsi_target", {"parent": "dev.parent"})
    target = gather(memory, read["target"], parent, Guess())["parent"]
    states, second = _names(prog, "enum scsi_device_state", "SDEV_"), clock(kernel).hz
    return Scsi(
        devices=[
            Device(
                disk=each,
                address=int(own[each]),
                host=known[int(read["host"][each])],
                state=states.get(int(read["state"][each]), "?"),
                target=int(target[each]),
                patience=int(read["patience"][each]) // second,
            )
            for each in row.tolist()
            if (int(read["host"][each]), int(own[each])) in listed
        ],
        hosts=known,
        torn=len(cut),
        faults=faults,
    )


def _hosts(kernel: Kernel, addresses: Words, faults: Faults) -> dict[int, Host]:
    members = {
        "number": "host_no",
        "template": "hostt",
        "state": "shost_state",
        "failed": "host_failed",
        "recoverer": "ehandler",
    }
    optional = {"deadline": "eh_deadline"}
    read = gather(kernel.memory, addresses, layout(kernel.prog, _HOST, members, optional), faults)
    none = np.full(len(addresses), -1, np.int64)
    deadline = read["deadline"] if "deadline" in read.columns else none
    member = layout(kernel.prog, "struct scsi_host_template", ["proc_name"])
    name = gather(kernel.memory, read["template"], member, faults)["proc_name"]
    names = texts(kernel.memory, name, faults)
    states, second = _names(kernel.prog, "enum scsi_host_state", "SHOST_"), clock(kernel).hz

    def value(column: str, row: int) -> Any:
        return int(read[column][row])

    return {
        address: Host(
            address=address,
            number=value("number", row),
            driver=names[row] if name[row] else "?",
            state=states.get(value("state", row), "?"),
            failed=value("failed", row),
            recoverer=value("recoverer", row),
            deadline=int(deadline[row]) // second if deadline[row] >= 0 else -1,
        )
        for row, address in enumerate(addresses.tolist())
    }


def _names(prog: drgn.Program, type_: str, prefix: str) -> dict[int, str]:
    """Return the states of an ``enum``, by value."""
    return {
        each.value: each.name.removeprefix(prefix) for each in prog.type(type_).enumerators or ()
    }
