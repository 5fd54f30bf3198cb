# SPDX-License-Identifier: LGPL-2.1-or-later
"""Remote procedure calls of the kernel's clients (NFS, lockd), and the transports to servers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import drgn
import numpy as np

from kcensus.engine.gather import Gathered, gather, gather_words
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Numbers, Words
from kcensus.engine.rows import Addressed
from kcensus.kernel.clock import clock
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.lists import list_members
from kcensus.kernel.net.sockets import joined
from kcensus.kernel.vfs.paths import texts

_MAX_NAMESPACES = 1 << 16
_MAX_CLIENTS = 1 << 18
_MAX_CALLS = 1 << 22
_CONNECTED, _CONNECTING = 1 << 1, 1 << 2
"""XPRT_CONNECTED and XPRT_CONNECTING, macros of bits in ``rpc_xprt.state``."""
_ADDRESS, _PORT = 0, 1
"""RPC_DISPLAY_ADDR and RPC_DISPLAY_PORT."""


@dataclass(frozen=True)
class Transport:
    """A ``struct rpc_xprt``; text is not safe to print."""

    address: int
    host: str
    """Address of the server, such as ``192.0.2.7``."""
    port: str
    name: str
    """Name of the server, as the client was given it."""
    state: int

    @property
    def server(self) -> str:
        """Address and port."""
        return joined(self.host, self.port)

    @property
    def connection(self) -> str:
        """State of the connection, in a word or two."""
        if self.state & _CONNECTED:
            return "connected"
        return "connecting" if self.state & _CONNECTING else "not connected"


@dataclass(frozen=True)
class Calls(Addressed):
    """Clients, their calls as columns, and their transports."""

    address: Words
    """``struct rpc_task *``: one row per call in progress."""
    transport: Words
    """``struct rpc_xprt *``; 0 for none."""
    operation: list[str]
    """Name of the procedure, such as ``WRITE``; not safe to print."""
    age_ns: Numbers
    """Nanoseconds since the start of the call; -1 if unknown."""
    sent: Numbers
    """How often it was sent."""
    xid: Words
    """Number of the call, as sent; 0 for none."""
    data: Words
    """``rpc_task.tk_calldata``, which depends on the operation."""
    clients: dict[int, int]
    """Transport of each client, by ``struct rpc_clnt *``; 0 if it is damaged."""
    transports: dict[int, Transport]
    """By address."""
    torn: int = 0
    """Lists of clients or of calls that could not be followed to their end."""
    faults: Faults = field(default_factory=Faults)

    @cached_property
    def servers(self) -> dict[str, list[int]]:
        """Transports of each server, by address and port."""
        known: dict[str, list[int]] = {}
        for each in sorted(self.transports.values(), key=lambda each: each.address):
            known.setdefault(each.server, []).append(each.address)
        return known


@once
def calls(kernel: Kernel) -> Calls:
    """Return all calls in progress, of the clients of all network namespaces.

    A client has its calls on a list, and each call names its client.

    :raises LookupError: the debug info of sunrpc is missing
    :raises drgn.FaultError: the list of network namespaces is not in the dump
    """
    memory, prog, faults = kernel.memory, kernel.prog, Faults()
    nets, own, torn = _namespaces(kernel, faults)
    client_type, task_type = prog.type("struct rpc_clnt"), prog.type("struct rpc_task")
    heads = own + _offset(prog, "struct sunrpc_net", "all_clients")
    _, nodes, cut = list_members(memory, heads, faults, limit=_MAX_CLIENTS, verify=not kernel.live)
    client = nodes - _offset(prog, client_type, "cl_clients")
    heads = client + _offset(prog, client_type, "cl_tasks")
    lane, nodes, cut_too = list_members(
        memory, heads, faults, limit=_MAX_CALLS, total=_MAX_CALLS, verify=not kernel.live
    )
    address = nodes - _offset(prog, task_type, "tk_task")
    members = {
        "client": "tk_client",
        "call": "tk_rqstp",
        "procedure": "tk_msg.rpc_proc",
        "data": "tk_calldata",
        # Since Linux kernel commit 2456e8553544 ("ktime: Get rid of
        # the union") (in v4.10), ktime_t is a number.
        "start": ("tk_start.tv64", "tk_start"),
    }
    read = gather(memory, address, layout(prog, task_type, members), faults)
    kept = read.readable & (read["client"] == client[lane])
    read, address = read.rows(kept), address[kept]
    request = ("struct rpc_rqst", {"task": "rq_task", "sent": "rq_ntrans", "xid": "rq_xid"})
    sent = gather(memory, read["call"], layout(prog, *request), faults)
    is_own = sent.readable & (sent["task"] == address)
    default = gather(memory, client, layout(prog, client_type, ["cl_xprt"]), faults)["cl_xprt"]
    transport = _transports_of(kernel, address, faults)
    if transport is None:
        transport = default[lane][kept]
    known = _transports(kernel, np.unique(np.concatenate([default, transport])), nets, faults)
    return Calls(
        address=address,
        transport=np.where(np.isin(transport, [*known]), transport, np.uint64(0)),
        operation=_operations(kernel, read, faults),
        age_ns=np.where(read["start"] != 0, clock(kernel).since(read["start"]), -1),
        sent=np.where(is_own, sent["sent"].astype(np.int64), 0),
        xid=np.where(is_own, sent["xid"].astype(np.uint64), np.uint64(0)),
        data=read["data"],
        clients={
            each: via if via in known else 0
            for each, via in zip(client.tolist(), default.tolist(), strict=True)
        },
        transports=known,
        torn=torn + len(cut) + len(cut_too) + int((~kept).sum()),
        faults=faults,
    )


def _offset(prog: drgn.Program, type_: drgn.Type | str, member: str) -> np.uint64:
    return np.uint64(drgn.offsetof(prog.type(type_) if isinstance(type_, str) else type_, member))


def _namespaces(kernel: Kernel, faults: Faults) -> tuple[Words, Words, int]:
    """Return ``struct net`` and ``struct sunrpc_net`` of each namespace, and torn lists."""
    memory, prog = kernel.memory, kernel.prog
    head = np.array([int(prog["net_namespace_list"].address_)], np.uint64)
    _, nodes, cut = list_members(memory, head, faults, limit=_MAX_NAMESPACES, verify=False)
    net = nodes - _offset(prog, "struct net", "list")
    generic = gather(memory, net, layout(prog, "struct net", ["gen"]), faults)["gen"]
    first = _offset(prog, "struct net_generic", "ptr")
    # Since Linux kernel commit 6af2d5fff2fd ("netns: fix net_generic() "id - 1" bloat")
    # (in v4.10), the pointers begin with the struct, and its header takes the place of the first
    # ones; before, number 1 was the first pointer.
    number = int(prog["sunrpc_net_id"]) - (1 if first else 0)
    word = word_dtype(prog)
    places = generic + first + np.uint64(word.itemsize * number)
    own, readable = gather_words(memory, places, word, faults)
    kept = readable & (own != 0)
    return net[kept], own[kept], len(cut)


def _transports_of(kernel: Kernel, address: Words, faults: Faults) -> Words | None:
    """Return the transport that each call has itself; None where calls use that of their client."""
    try:
        member = layout(kernel.prog, "struct rpc_task", ["tk_xprt"])
    except LookupError:
        return None
    return gather(kernel.memory, address, member, faults)["tk_xprt"]


def _operations(kernel: Kernel, read: Gathered, faults: Faults) -> list[str]:
    """Return the names of the procedures of calls."""
    procedures, row = np.unique(read["procedure"], return_inverse=True)
    member = layout(kernel.prog, "struct rpc_procinfo", ["p_name"])
    named = gather(kernel.memory, procedures, member, faults)["p_name"]
    names = texts(kernel.memory, named, faults)
    return [names[each] if procedures[each] else "?" for each in row.tolist()]


def _transports(
    kernel: Kernel, addresses: Words, nets: Words, faults: Faults
) -> dict[int, Transport]:
    """Return the transports of known network namespaces."""
    addresses = addresses[addresses != 0]
    members = {
        "state": "state",
        "net": ("xprt_net.net", "xprt_net"),
        "name": "servername",
        "host": f"address_strings[{_ADDRESS}]",
        "port": f"address_strings[{_PORT}]",
    }
    read = gather(kernel.memory, addresses, layout(kernel.prog, "struct rpc_xprt", members), faults)
    rows = np.flatnonzero(read.readable & np.isin(read["net"], nets))
    words = {
        each: texts(kernel.memory, read[each][rows], faults) for each in ("host", "port", "name")
    }
    return {
        int(addresses[row]): Transport(
            address=int(addresses[row]),
            host=words["host"][at],
            port=words["port"][at],
            name=words["name"][at],
            state=int(read["state"][row]),
        )
        for at, row in enumerate(rows.tolist())
    }
