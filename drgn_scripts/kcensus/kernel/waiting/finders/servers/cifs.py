# SPDX-License-Identifier: LGPL-2.1-or-later
"""SMB servers: what tasks wait for in the file system cifs."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from kcensus.engine.memory import Numbers, Words
from kcensus.human import human_seconds, listed
from kcensus.kernel.clock import hz
from kcensus.kernel.lists import list_members
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import MISSING
from kcensus.kernel.net.sockets import address_at, joined
from kcensus.kernel.net.unanswered import remedies
from kcensus.kernel.vfs.paths import texts
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.graph import SERVED, NodeKind
from kcensus.results import Finding, Remedy
from kcensus.text import printable

SERVER = NodeKind("SMB server", ("struct TCP_Server_Info",), is_any=True, is_io=True)
_SERVER = "struct TCP_Server_Info"
_QUEUES = ("response_q", "request_q")
"""Wait queues for an answer, and for the permission to send a request."""
_STATES = {
    "CifsNew": "is not connected yet",
    "CifsGood": "is connected",
    "CifsExiting": "is being closed",
    "CifsNeedReconnect": "has lost its connection and connects again",
    "CifsNeedNegotiate": "is connected, without a session",
    "CifsInNegotiate": "negotiates, and waits for the answer",
}
_CONNECTED = "CifsGood", "CifsNeedNegotiate", "CifsInNegotiate"
_TYPES = ("cifs", "smb3")
_IN_REQUESTS = frozenset(
    {"wait_for_response", "wait_for_free_credits", "cifs_wait_for_server_reconnect"}
)
"""Functions that wait for a server, during the mount, too."""
_MAX_SERVERS = 1 << 16
_MAX_TOLD = 4
_MAX_PATIENCE = 3600
"""Seconds; echo_interval is 600 s at most."""
_INTERVALS = 3
"""Of echo_interval without an answer, after which the client connects again; 2 in old kernels."""
_FAILED = 30
"""Seconds after which requests of soft mounts fail then, if the client cannot connect: it gives a
negotiation up after 20 s, and waits for a connection for 10 s."""
_SHORT = 1.0
"""Least seconds of a wait for a finding."""


@dataclass(frozen=True)
class _Server:
    name: str
    """Name that the client was given; text is not safe to print."""
    host: str
    """Address; empty if unknown."""
    port: int
    state: str
    patience: float
    """Seconds without an answer after which the client connects again; 0 if unknown."""

    @property
    def is_connected(self) -> bool:
        return self.state in _CONNECTED

    @property
    def label(self) -> str:
        at = joined(self.host, self.port) if self.host else ""
        return f"{self.name} ({at})" if self.name and at and self.name != self.host else (
            at or self.name or "of unknown name"
        )  # fmt: skip


class SmbServers(Finder):
    """Finds the servers that must answer before tasks go on."""

    about = "SMB servers"
    kinds = (SERVER,)
    modules = ("cifs",)

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.servers: dict[int, _Server] = {}
        self.server_of: dict[int, int] = {}
        """Server by super block."""
        self.hard: set[int] = set()
        """Super blocks whose requests are repeated for ever: their mounts have the option hard."""

    def note(self) -> None:
        """Note the servers whose wait queues tasks are on.

        :raises LookupError: SMB is in use, and its debug info is missing
        """
        blocks = super_blocks(self.kernel)
        is_used = any(type_ in _TYPES for type_ in blocks.type)
        if not is_used and not len(self._having(_IN_REQUESTS)):
            return
        if not is_used and "cifs_tcp_ses_list" not in self.kernel.prog:
            return  # a function of that name elsewhere
        head = np.array([int(self.kernel.prog["cifs_tcp_ses_list"].address_)], np.uint64)
        _, nodes, cut = list_members(
            self.kernel.memory, head, self.faults, limit=_MAX_SERVERS, verify=not self.kernel.live
        )
        self.draft.torn += len(cut)
        address = nodes - self._offset(_SERVER, "tcp_ses_list")
        if not len(address):
            return
        self._read_servers(address)
        lanes = self._of_type("struct wait_queue_head", "struct __wait_queue_head")
        for member in _QUEUES:
            start = self.object[lanes] - self._offset(_SERVER, member)
            for lane, each in zip(lanes.tolist(), start.tolist(), strict=True):
                if each in self.servers:
                    self._note(lane, each, _SERVER, f"TCP_Server_Info.{member}")

    def _read_servers(self, address: Words) -> None:
        read = self._read(_SERVER, address, ["hostname", "tcpStatus"])
        known = read["hostname"] != 0
        words = iter(texts(self.kernel.memory, read["hostname"][known], self.faults))
        patience = self._patience(address)
        states = dict[int, str]()
        with suppress(LookupError):
            enumerators = self.kernel.prog.type("enum statusEnum").enumerators
            states |= {each.value: each.name for each in enumerators or ()}
        inside = int(self._offset(_SERVER, "dstaddr"))
        for row, each in enumerate(address.tolist()):
            host, port = address_at(self.kernel, each + inside)
            state = states.get(int(read["tcpStatus"][row]), "")
            name = next(words) if known[row] else ""
            self.servers[each] = _Server(name, host, port, state, patience[row])
            self.names[SERVER, each] = self.servers[each].label

    def _patience(self, address: Words) -> list[float]:
        """Return after how many seconds without an answer clients connect again; 0 if unknown."""
        try:
            interval = self._read(_SERVER, address, ["echo_interval"])["echo_interval"]
            seconds = interval * _INTERVALS / hz(self.kernel.prog)
        except MISSING:
            return [0.0] * len(address)
        return [float(each) if each <= _MAX_PATIENCE else 0.0 for each in seconds.tolist()]

    def find(self) -> None:
        """Add edges from pages of their file systems to the servers."""
        if not self.servers:
            return
        blocks = super_blocks(self.kernel)
        block = blocks.address[[type_ in _TYPES for type_ in blocks.type]]
        own = self._member("struct super_block", "s_fs_info", block)
        for type_, member in (
            ("struct cifs_sb_info", "master_tlink"),
            ("struct tcon_link", "tl_tcon"),
        ):
            own = self._member(type_, member, own)
        with suppress(LookupError):
            retry = self._member("struct cifs_tcon", "retry", own)
            self.hard = {*block[retry != 0].tolist()}
        for type_, member in (("struct cifs_tcon", "ses"), ("struct cifs_ses", "server")):
            own = self._member(type_, member, own)
        self.server_of = {
            each: server
            for each, server in zip(block.tolist(), own.tolist(), strict=True)
            if server in self.servers
        }
        lanes = np.flatnonzero((self.waits.inode != 0) & (self.object != 0))
        inode = self._member("struct inode", "i_sb", self.waits.inode[lanes], is_guess=True)
        kept = np.isin(inode, np.array([*self.server_of], np.uint64))
        self._serve(lanes[kept], inode[kept])

    def _serve(self, lanes: Numbers, block: Words) -> None:
        servers = np.array([self.server_of[each] for each in block.tolist()], np.uint64)
        kinds = [self.draft.kind_of(lane) for lane in lanes.tolist()]
        source, target = (kinds, self.object[lanes]), (SERVER, servers)
        self.build.edges(SERVED, source, target, "page.mapping", strength=Strength.DERIVED)

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a server that does not answer."""
        if kind is not SERVER or 0 <= stall.seconds < _SHORT:
            return None
        server = self.servers[address]
        blocks = super_blocks(self.kernel)
        mounts = {
            mount: each in self.hard
            for each, mount in zip(blocks.address.tolist(), blocks.mount, strict=True)
            if mount and self.server_of.get(each) == address
        }
        return stall.finding(
            "waits-smb",
            printable(server.label),
            f"SMB server {printable(server.label)}",
            "; ".join(_evidence(server, sorted(mounts))),
            [
                *remedies(
                    server.host,
                    server.port,
                    "SMB",
                    sorted(mounts),
                    is_connected=server.is_connected,
                ),
                *_ends(server, sorted(mounts), sorted(each for each in mounts if mounts[each])),
            ],
        )


def _evidence(server: _Server, mounts: list[str]) -> Iterator[str]:
    state = _STATES.get(server.state, f"is in state {server.state or '?'}")
    yield f"the client {state}"
    if mounts:
        yield "mounted on " + listed([printable(mount) for mount in mounts])
    if server.is_connected and server.patience:
        yield f"it connects again after {human_seconds(server.patience)} without an answer"


def _ends(server: _Server, mounts: list[str], hard: list[str]) -> Iterator[Remedy]:
    """Yield what ends requests to a server that accepts connections, and answers nothing.

    ``umount --force`` does not: in kernels from 5.10 to 7.3, cifs_umount_begin() wakes the tasks
    up, and they sleep again until there is an answer.

    A write that waits for credits may not see that the server is unreachable: in 6.12, one of a
    soft mount that was repeated after the client had connected again waited on.
    """
    try:
        address = ipaddress.ip_address(server.host)
    except ValueError:
        return
    has_route = not (address.is_loopback or address.is_link_local)
    if not mounts or not has_route or not server.is_connected:
        return
    seconds = f"{human_seconds(server.patience + _FAILED)} " if server.patience else "some minutes "
    ip = "ip" if address.version == 4 else "ip -6"
    places = listed([printable(mount) for mount in hard], _MAX_TOLD)
    yield Remedy(
        effect=f"If the server does not come back, make it unreachable: its requests fail within "
        f"{seconds}(`umount --force` ends none); writes "
        + (f"to hard mounts ({places}) wait on" if hard else "that need credits may wait on")
        + " until it answers or the machine restarts",
        command=f"{ip} route add unreachable {address}",
        risk=f"all connections to {address} end; programs get I/O errors, and data that is not on "
        "the server yet is lost",
        undo=f"{ip} route del unreachable {address}",
        until="reboot",
    )


FINDER = SmbServers
