# SPDX-License-Identifier: LGPL-2.1-or-later
"""Peers of connected sockets, by address; addresses are not in redacted capsules."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import drgn
import numpy as np

from kcensus.engine.gather import gather, gather_arrays
from kcensus.engine.layout import layout, number_dtype
from kcensus.engine.memory import Faults, Guess, Words
from kcensus.kernel.kernel import Kernel

_UNIX, _IPV4, _IPV6 = 1, 2, 10
"""Address families."""
_BYTES = {_IPV4: 4, _IPV6: 16}
_INSIDE = {_IPV4: 4, _IPV6: 8}
"""Offsets of ``sin_addr`` and ``sin6_addr``."""
_STATES = {1: "connected", 2: "connecting", 7: "closed", 8: "closed by the peer"}
"""``enum`` of TCP states, and SS_… of UNIX sockets for 1."""


CONNECTED = "connected"
"""State of a connection that is up."""


@dataclass(frozen=True)
class Peer:
    """The other end of a connection."""

    host: str
    """Address; empty for a UNIX socket, and if it is unknown."""
    port: int
    state: str
    """``connected`` or what else is known about it; may be empty."""
    is_local: bool
    """Whether it is a process of this machine, behind a UNIX socket."""

    @property
    def name(self) -> str:
        """Address and port; empty for none."""
        return joined(self.host, self.port) if self.host else ""


def joined(host: str, port: int | str) -> str:
    """Return address and port as one word."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check(host: str, port: int | str, service: str, *, is_connected: bool) -> tuple[str, str]:
    """Return what to check about a server that does not answer, and a command for it.

    :param service: of the server, such as ``NFS``
    :return: a sentence; and a command that connects for 5 seconds, empty if a connection says
        nothing, or if ``host`` is not an IP address
    """
    if is_connected:
        return f"The connection is up, but {service} does not answer: check it on the server", ""
    try:
        address, number = ipaddress.ip_address(host), int(port)
        if getattr(address, "scope_id", None):  # which may be any text
            raise ValueError(host)
    except ValueError:
        return "Check the server and the network first", ""
    connect = f"timeout 5 bash -c '</dev/tcp/{address}/{number}'"
    command = f"{connect} && echo connects || echo unreachable"
    return "Check the server and the network first", command


def peers(kernel: Kernel, sockets: Words, faults: Faults) -> list[Peer | None]:
    """Return the peer of each ``struct socket``; None for a socket that is damaged.

    :raises LookupError: the debug info lacks sockets
    """
    memory, prog = kernel.memory, kernel.prog
    own = gather(memory, sockets, layout(prog, "struct socket", ["sk"]), faults)["sk"]
    members = {
        "socket": "sk_socket",
        "family": "__sk_common.skc_family",
        "state": "__sk_common.skc_state",
    }
    read = gather(memory, own, layout(prog, "struct sock", members), faults)
    found: list[Peer | None] = []
    for row, socket in enumerate(sockets.tolist()):
        family = int(read["family"][row])
        if not read.readable[row] or not socket or int(read["socket"][row]) != socket:
            found.append(None)
            continue
        host, port = _address(kernel, int(own[row]), family)
        state = _STATES.get(int(read["state"][row]), "") if family in (*_BYTES, _UNIX) else ""
        found.append(Peer(host, port, state, family == _UNIX))
    return found


def _address(kernel: Kernel, sock: int, family: int) -> tuple[str, int]:
    """Return address and port of the peer of a ``struct sock``."""
    member = {_IPV4: "skc_daddr", _IPV6: "skc_v6_daddr"}.get(family)
    try:
        common = kernel.prog.type("struct sock_common")
        if member is None or not common.has_member(member):
            return "", 0
    except LookupError:
        return "", 0
    host = _host(kernel, sock + drgn.offsetof(common, member), family)
    return host, _port(kernel, sock + drgn.offsetof(common, "skc_dport"))


def address_at(kernel: Kernel, place: int) -> tuple[str, int]:
    """Return address and port in a ``struct sockaddr_in`` or ``sockaddr_in6``; empty for others."""
    raw = _bytes(kernel, place, 2)
    family = int(np.frombuffer(raw.ljust(2, b"\0"), number_dtype(kernel.prog, "u2"))[0])
    host = _host(kernel, place + _INSIDE.get(family, 0), family)
    return host, _port(kernel, place + 2) if host else 0


def _host(kernel: Kernel, place: int, family: int) -> str:
    """Return the text of the address at a place; empty for none."""
    raw = _bytes(kernel, place, _BYTES.get(family, 0))
    host = ipaddress.ip_address(raw) if raw else None
    return "" if host is None or host.is_unspecified else str(host)


def _port(kernel: Kernel, place: int) -> int:
    return int.from_bytes(_bytes(kernel, place, 2), "big")


def _bytes(kernel: Kernel, place: int, count: int) -> bytes:
    """Return bytes that no redacted capsule has; empty if they are unreadable."""
    if not count:
        return b""
    at = np.array([place], np.uint64)
    raw, readable = gather_arrays(kernel.memory, at, count, np.uint8, Guess(), None)
    return raw[0].tobytes() if readable[0] else b""
