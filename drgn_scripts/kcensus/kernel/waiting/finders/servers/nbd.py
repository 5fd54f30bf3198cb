# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers of network block devices (NBD)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kcensus.engine.gather import gather_pointers
from kcensus.human import counted, listed
from kcensus.kernel.block.ages import oldest_request
from kcensus.kernel.block.disks import Disk, block_devices
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.net.sockets import CONNECTED, Peer, check, peers
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.finders.io.devices import nodes_of
from kcensus.kernel.waiting.graph import SERVED, NodeKind
from kcensus.results import Finding, Remedy
from kcensus.text import printable, task_name

SERVER = NodeKind("NBD server", ("struct nbd_device",), is_io=True)
_MAJOR = 43
"""NBD_MAJOR."""
_MAX_SOCKETS = 1024
_IN_CLIENT = frozenset({"nbd_start_device_ioctl", "nbd_ioctl", "__nbd_ioctl"})
_SHORT = 1.0
"""Least seconds of a wait for a finding."""


@dataclass(frozen=True)
class _Device:
    row: int
    """Of its disk."""
    disk: Disk
    peers: list[Peer | None]
    """One for each connection."""
    dead: int
    """Connections given up."""
    pid: int
    """Of the program that set it up; 0 if unknown."""


class NetworkDisks(Finder):
    """Finds the servers of network block devices that tasks wait for."""

    about = "network block devices"
    kinds = (SERVER,)
    modules = ("nbd",)

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.devices: dict[int, _Device] = {}
        """By ``struct nbd_device *``."""

    def find(self) -> None:
        """Add edges from the disks to their servers.

        :raises LookupError: there are such disks, and the debug info of nbd is missing
        """
        disks = block_devices(self.kernel).disks
        rows = [row for row, disk in enumerate(disks) if disk.number >> 20 == _MAJOR]
        own = np.array([disks[row].private for row in rows], np.uint64)
        if not len(own[own != 0]):
            return
        read = self._read("struct nbd_device", own, ["disk", "config"])
        # A disk without a configuration has no server.
        kept = [
            at
            for at, row in enumerate(rows)
            if int(read["disk"][at]) == disks[row].address and read["config"][at]
        ]
        for at in kept:
            device, config = int(own[at]), int(read["config"][at])
            self.devices[device] = self._device(rows[at], device, config)
            ends = self.devices[device].peers
            hosts = dict.fromkeys(peer.name for peer in ends if peer and peer.name)
            name = printable(disks[rows[at]].name)
            self.draft.causes[disks[rows[at]].address] = f"waits-nbd:{name}"
            self.names[SERVER, device] = f"{listed([*hosts])} of {disks[rows[at]].name}".lstrip()
        if not kept:
            return
        self.build.edges(
            SERVED,
            nodes_of(self, np.array([rows[at] for at in kept], np.int64)),
            (SERVER, own[kept]),
            "nbd_device.config",
            strength=Strength.DERIVED,
        )

    def _device(self, row: int, device: int, config: int) -> _Device:
        at = np.array([config], np.uint64)
        read = self._read("struct nbd_config", at, ["socks", "num_connections"])
        count = np.clip(read["num_connections"].astype(np.int64), 0, _MAX_SOCKETS)
        _, sockets, _ = gather_pointers(self.kernel.memory, read["socks"], count, self.faults)
        sockets = sockets[sockets != 0]
        own = self._read("struct nbd_sock", sockets, ["sock", "dead"])
        return _Device(
            row=row,
            disk=block_devices(self.kernel).disks[row],
            peers=peers(self.kernel, own["sock"], self.faults),
            dead=int((own["dead"] != 0).sum()),
            pid=self._pid(device),
        )

    def _pid(self, device: int) -> int:
        """Return the PID of the program that set a device up."""
        type_ = self.kernel.prog.type("struct nbd_device")
        at = np.array([device], np.uint64)
        if type_.has_member("pid"):
            return int(self._member("struct nbd_device", "pid", at)[0])
        # Before, its task.
        row = int(self.known.rows(self._member("struct nbd_device", "task_recv", at))[0])
        return int(self.known.pid[row]) if row >= 0 else 0

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a server that does not answer."""
        if kind is not SERVER:
            return None
        device = self.devices[address]
        stall = stall.at_least(oldest_request(self.kernel, [device.row]))
        if 0 <= stall.seconds < _SHORT:
            return None
        return stall.finding(
            "waits-nbd",
            printable(device.disk.name),
            f"NBD server {printable(self.names[SERVER, address])}",
            "; ".join(self._evidence(device)),
            self._remedies(device),
        )

    def _client(self, device: _Device) -> int:
        """Return the row of the task that keeps a device connected, or -1."""
        (rows,) = np.nonzero(self.known.pid == device.pid) if device.pid else (np.empty(0, int),)
        if not len(rows):
            return -1
        row = int(rows[0])
        is_client = np.isin(self.rows[self._having(_IN_CLIENT)], row).any()
        return row if is_client else -1

    def _evidence(self, device: _Device) -> Iterator[str]:
        live = len(device.peers) - device.dead
        states = dict.fromkeys(peer.state for peer in device.peers if peer and peer.state)
        yield f"{counted(live, 'connection')} of {len(device.peers)} in use" + (
            f", {listed([*states])}" if states else ""
        )
        if any(peer and peer.is_local for peer in device.peers):
            yield "the server is a process of this machine, behind a UNIX socket"
        if (row := self._client(device)) >= 0:
            yield f"client {task_name(self.known.comm[row], int(self.known.pid[row]))}"

    def _remedies(self, device: _Device) -> Iterator[Remedy]:
        """Yield what ends the wait: the server, or the end of its client."""
        hosts = [peer for peer in device.peers if peer and peer.name]
        host, port = (hosts[0].host, hosts[0].port) if hosts else ("", 0)
        is_connected = device.dead == 0 and all(peer.state == CONNECTED for peer in hosts)
        what, command = check(host, port, "NBD", is_connected=bool(hosts) and is_connected)
        yield Remedy(
            effect=f"{what}; once it answers, all tasks go on by themselves", command=command
        )
        row = self._client(device)
        name = device.disk.name
        if row >= 0:
            yield Remedy(
                effect="If the server does not come back, kill the client: that disconnects "
                f"{printable(name)}",
                command=f"kill -KILL {int(self.known.pid[row])}",
                risk="I/O in flight fails with errors, and the device is gone",
            )
        elif name.isalnum() and name.isascii():
            yield Remedy(
                effect=f"If the server does not come back, disconnect {name}, by netlink: a client "
                "that opens the device may hang, too",
                command=f"nbd-client -d /dev/{name}",
                risk="I/O in flight fails with errors, and the device is gone",
            )


FINDER = NetworkDisks
