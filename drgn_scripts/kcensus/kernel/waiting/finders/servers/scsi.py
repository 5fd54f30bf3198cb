# SPDX-License-Identifier: LGPL-2.1-or-later
"""SCSI hosts that recover from errors, and blocked SCSI devices: both take no I/O."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcensus.human import counted, listed
from kcensus.kernel.block.ages import oldest_request
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.scsi import Device, Host, Scsi, scsi
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.finders.io.devices import nodes_of
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.results import Finding, Remedy
from kcensus.sources.capsule import NotRecorded
from kcensus.text import printable, task_name

HOST = NodeKind("SCSI host", ("struct Scsi_Host",), is_io=True)
BLOCKED = NodeKind("blocked SCSI device", ("struct scsi_device",), is_io=True)
RECOVERED = EdgeKind("recovered by", "keeps the I/O of")
KEPT = EdgeKind("kept by", "keeps the I/O of")
_BLOCKED = {
    "BLOCK": "its transport (iSCSI session, FC port) has lost the target and holds all I/O back",
    "CREATED_BLOCK": "its transport (iSCSI session, FC port) has lost the target",
    "QUIESCE": "a program or power management has quiesced it",
}
"""States in which a device takes no I/O, and why."""
_SETTLE = 10
"""HOST_RESET_SETTLE_TIME: seconds after the reset of a host."""


class ScsiHosts(Finder):
    """Finds the hosts in recovery and the blocked devices of disks that tasks wait for."""

    about = "SCSI hosts"
    kinds = (HOST, BLOCKED)
    modules = ("scsi_mod",)
    queues = {"scsi_block_when_processing_errors": ("struct Scsi_Host", ("host_wait",))}

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.found = Scsi([], {})

    def find(self) -> None:
        """Add edges from disks to their host in recovery, or to their blocked device."""
        if not self._has_scsi():
            return
        try:
            self.found = scsi(self.kernel)
        except NotRecorded:
            return  # a capsule of an older kcensus: the disks are the ends
        self.faults.update(self.found.faults)
        self.draft.torn += self.found.torn
        for address, host in self.found.hosts.items():
            self.names[HOST, address] = host.name
        disks = block_devices(self.kernel).disks
        for device in self.found.devices:
            if device.state in _BLOCKED:
                self.names[BLOCKED, device.address] = disks[device.disk].name
        late = [each for each in self.found.devices if each.host.recovers]
        self._keep(RECOVERED, HOST, late, [each.host.address for each in late], "shost_state")
        kept = [each for each in self.found.devices if each.state in _BLOCKED]
        self._keep(KEPT, BLOCKED, kept, [each.address for each in kept], "sdev_state")
        self._add_recoverers()

    def _has_scsi(self) -> bool:
        """Return whether the kernel has SCSI, so that lacking debug info is a gap."""
        is_disk = any(disk.name.startswith("sd") for disk in block_devices(self.kernel).disks)
        return is_disk or len(self._of_type("struct Scsi_Host")) > 0

    def _keep(
        self, edge: EdgeKind, kind: NodeKind, devices: list[Device], to: list[int], member: str
    ) -> None:
        if devices:
            for each in devices:
                disk = block_devices(self.kernel).disks[each.disk]
                name = f"scsi:host{each.host.number}" if kind is HOST else f"blocked:{disk.name}"
                # A failed session is the cause of a blocked device.
                self.draft.causes.setdefault(disk.address, printable(f"waits-{name}"))
            type_ = kind.types[0].removeprefix("struct ")
            source = nodes_of(self, np.array([each.disk for each in devices], np.int64))
            target = kind, np.array(to, np.uint64)
            self.build.edges(edge, source, target, f"{type_}.{member}", strength=Strength.DERIVED)

    def _add_recoverers(self) -> None:
        """Add edges from what threads wait for during a recovery: an answer of the host's disks."""
        threads = {host.recoverer: host for host in self.found.hosts.values() if host.recovers}
        for lane, task in enumerate(self.waits.task.tolist()):
            is_answer = self.type[lane] == "struct completion"
            if task in threads and self.object[lane] and is_answer:
                source = [self.draft.kind_of(lane)], self.object[[lane]]
                target = HOST, np.array([threads[task].address], np.uint64)
                self.build.edges(
                    RECOVERED, source, target, "Scsi_Host.ehandler", strength=Strength.DERIVED
                )

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a host in recovery, or about a blocked device."""
        if kind is HOST and address in self.found.hosts and self.found.hosts[address].recovers:
            return self._of_host(self.found.hosts[address], stall)
        if kind is BLOCKED:
            return self._of_device(address, stall)
        return None

    def _of_host(self, host: Host, stall: Stall) -> Finding:
        own = [each for each in self.found.devices if each.host.address == host.address]
        stall = stall.at_least(oldest_request(self.kernel, [each.disk for each in own]))
        return stall.finding(
            "waits-scsi",
            f"host{host.number}",
            f"SCSI host {printable(host.name)}, which recovers from errors",
            "; ".join(self._evidence(host, own)),
            _remedies(host),
        )

    def _evidence(self, host: Host, own: list[Device]) -> Iterator[str]:
        yield f"Scsi_Host.shost_state is SHOST_{host.state}: the host takes no commands"
        yield f"{counted(host.failed, 'command')} timed out or failed"
        disks = block_devices(self.kernel).disks
        yield f"disks of the host: {listed([printable(disks[each.disk].name) for each in own])}"
        row = int(self.known.rows(np.array([host.recoverer], np.uint64))[0])
        if row >= 0:
            name = task_name(self.known.comm[row], int(self.known.pid[row]))
            lanes = np.flatnonzero(self.rows == row).tolist()
            where = f" sleeps in {self.waits.function[lanes[0]]}" if lanes else " runs"
            yield f"{name}{where}"
        if patience := max((each.patience for each in own), default=0):
            yield f"each step of the recovery takes up to {patience} s (eh_timeout)"

    def _of_device(self, address: int, stall: Stall) -> Finding | None:
        device = next((each for each in self.found.devices if each.address == address), None)
        if device is None:
            return None
        name = block_devices(self.kernel).disks[device.disk].name
        stall = stall.at_least(oldest_request(self.kernel, [device.disk]))
        return stall.finding(
            "waits-blocked",
            printable(name),
            f"the blocked SCSI device {printable(name)}",
            f"scsi_device.sdev_state is SDEV_{device.state}: {_BLOCKED[device.state]}; "
            f"it is on SCSI host {printable(device.host.name)}",
            advice="Find the program that quiesced the device (power management, validation of "
            "the SPI domain): only that lets it go on"
            if device.state == "QUIESCE"
            else "Repair the path to the target: the transport resumes the device, or fails its "
            "I/O once its timeout is over (`dev_loss_tmo` and `fast_io_fail_tmo` of FC ports, "
            "`recovery_tmo` of iSCSI sessions)",
        )


def _remedies(host: Host) -> Iterator[Remedy]:
    """Yield what to do now, and the limit of recoveries, which one in progress does not take."""
    yield Remedy(
        effect="Check disk, cable, path and controller, and the kernel log (`dmesg`): the recovery "
        "ends by itself, with the disk back or offline"
    )
    place = f"/sys/class/scsi_host/host{host.number}/eh_deadline"
    yield Remedy(
        effect="After the recovery (the kernel refuses it before), shorten the next ones: after "
        "60 s, they skip the resets of disks, targets and buses that are left, and reset the host, "
        f"which takes another {_SETTLE} s and a step",
        command=f"echo 60 > {place}",
        risk="the reset interrupts all disks of the host; their I/O is repeated",
        undo=f"echo {'off' if host.deadline < 0 else host.deadline} > {place}",
        until="reboot",
    )


FINDER = ScsiHosts
