# SPDX-License-Identifier: LGPL-2.1-or-later
"""Targets of iSCSI sessions without a connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kcensus.human import listed
from kcensus.kernel.block.ages import oldest_request
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.scsi import Device, scsi
from kcensus.kernel.lists import list_members
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.net.sockets import check
from kcensus.kernel.vfs.paths import texts
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.finders.servers.scsi import BLOCKED
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.results import Finding, Remedy
from kcensus.sources.capsule import NotRecorded
from kcensus.text import printable

TARGET = NodeKind("iSCSI target", ("struct iscsi_cls_session",), is_io=True)
"""Of a session that has lost its connection."""
REACHED = EdgeKind("reached through", "is the target of")
_CLASS = "struct iscsi_cls_session"
_FAILED = "ISCSI_SESSION_FAILED"
_MAX_SESSIONS = 1 << 16


@dataclass(frozen=True)
class _Session:
    target: str
    """Name of the target; text is not safe to print."""
    host: str
    """Address of its portal."""
    port: int
    patience: int
    """Seconds after which held I/O fails: ``recovery_tmo``."""
    devices: list[Device]


class IscsiTargets(Finder):
    """Finds the failed sessions of blocked devices."""

    about = "iSCSI sessions"
    kinds = (TARGET,)
    modules = ("scsi_transport_iscsi", "libiscsi")

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.sessions: dict[int, _Session] = {}
        """By ``struct iscsi_cls_session *``."""
        self.labels: dict[int, str] = {}
        """Name of each session in the id of its finding."""

    def find(self) -> None:
        """Add edges from blocked devices to the targets of their failed sessions."""
        disks = block_devices(self.kernel).disks
        if not any(disk.name.startswith("sd") for disk in disks):
            return
        try:
            if "sesslist" not in self.kernel.prog:
                return
            blocked = [each for each in scsi(self.kernel).devices if "BLOCK" in each.state]
        except NotRecorded:
            return  # a capsule of an older kcensus
        if not blocked:
            return
        head = np.array([int(self.kernel.prog["sesslist"].address_)], np.uint64)
        _, nodes, cut = list_members(
            self.kernel.memory, head, self.faults, limit=_MAX_SESSIONS, verify=not self.kernel.live
        )
        self.draft.torn += len(cut)
        address = nodes - self._offset(_CLASS, "sess_list")
        parents = address + self._offset(_CLASS, "dev")
        read = self._read(_CLASS, address, ["state", "dd_data", "recovery_tmo"])
        failed = int(self.kernel.prog.constant(_FAILED))
        for row in np.flatnonzero(read.readable & (read["state"] == failed)).tolist():
            devices = [each for each in blocked if each.target == int(parents[row])]
            if devices:
                found = self._session(
                    int(address[row]), int(read["dd_data"][row]), devices,
                    int(read["recovery_tmo"][row]),
                )  # fmt: skip
                self.sessions[int(address[row])] = found
        targets = Counter(each.target for each in self.sessions.values())
        for each, session in self.sessions.items():
            self._add(each, session, is_alone=targets[session.target] == 1)

    def _session(
        self, address: int, private: int, devices: list[Device], patience: int
    ) -> _Session:
        """Return a session, with the names that libiscsi knows."""
        at = np.array([private], np.uint64)
        members = ["targetname", "leadconn", "cls_session"]
        own = self._read("struct iscsi_session", at, members, is_guess=True)
        if int(own["cls_session"][0]) != address:
            return _Session("", "", 0, patience, devices)
        connection = own["leadconn"]
        members = ["persistent_address", "persistent_port"]
        place = self._read("struct iscsi_conn", connection, members, is_guess=True)
        strings = np.concatenate([own["targetname"], place["persistent_address"]])
        known = strings != 0
        words = iter(texts(self.kernel.memory, strings[known], self.faults))
        target, host = (next(words) if is_known else "" for is_known in known.tolist())
        return _Session(target, host, int(place["persistent_port"][0]), patience, devices)

    def _add(self, address: int, session: _Session, *, is_alone: bool) -> None:
        at = f" at {session.host}, port {session.port}" if session.host else ""
        self.names[TARGET, address] = f"{session.target or 'of unknown name'}{at}"
        label = self.names[TARGET, address] if session.target and not is_alone else session.target
        self.labels[address] = printable(label) or hex(address)
        for each in session.devices:
            disk = block_devices(self.kernel).disks[each.disk]
            self.draft.causes[disk.address] = f"waits-iscsi:{self.labels[address]}"
        devices = np.array([each.address for each in session.devices], np.uint64)
        target = TARGET, np.full(len(devices), address, np.uint64)
        proof = "iscsi_cls_session.state"
        self.build.edges(REACHED, (BLOCKED, devices), target, proof, strength=Strength.DERIVED)

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a target without a connection."""
        if kind is not TARGET:
            return None
        session = self.sessions[address]
        rows = [each.disk for each in session.devices]
        stall = stall.at_least(oldest_request(self.kernel, rows))
        disks = block_devices(self.kernel).disks
        patience = (
            f"the kernel holds I/O for {session.patience} s (recovery_tmo), then it fails"
            if session.patience > 0
            else "the kernel holds I/O until the session is back (recovery_tmo)"
        )
        name = printable(self.names[TARGET, address])
        return stall.finding(
            "waits-iscsi",
            self.labels[address],
            f"iSCSI target {name}, whose connection is lost",
            f"iscsi_cls_session.state is {_FAILED}; disks of the session: "
            f"{listed([printable(disks[row].name) for row in rows])}; {patience}",
            _remedies(session),
        )


def _remedies(session: _Session) -> Iterator[Remedy]:
    """Yield what brings the connection back."""
    _, command = check(session.host, session.port, "iSCSI", is_connected=False)
    limit = (
        f": after {session.patience} s without the session (recovery_tmo), I/O fails, and file "
        "systems may become read-only"
        if session.patience > 0
        else ""
    )
    yield Remedy(effect=f"Check the target and the network first{limit}", command=command)
    yield Remedy(
        effect="If the target is reachable and the session does not come back, restart iscsid: it "
        "connects its sessions again",
        command="systemctl restart iscsid",
        risk="it hangs if its files are on a disk of the session",
    )


FINDER = IscsiTargets
