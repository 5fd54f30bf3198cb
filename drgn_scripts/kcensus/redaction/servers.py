# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names and addresses of servers and of the ends of connections.

Analyses note no use of addresses in binary, but a guess at an address of a socket may.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import drgn
import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Guess, Words
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.lists import list_members
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.net.rpc import calls

MODULES = ("sunrpc", "scsi_transport_iscsi", "libiscsi", "cifs")
"""Modules with debug info of the places of these names."""
_MAX_LISTED = 1 << 18
_SOCKETS = re.compile(r"(request_sock_|tw_sock_)?(TCP|UDP|UDP-Lite|UDPLITE|RAW|PING|MPTCP)(v6)?")
"""Slab caches whose objects start with a ``struct sock_common``."""
_OF_SOCKETS = ("skc_daddr", "skc_rcv_saddr", "skc_dport", "skc_num", "skc_v6_daddr",
               "skc_v6_rcv_saddr")  # fmt: skip


def server_names(kernel: Kernel) -> Words:
    """Return the addresses of the names of servers; the kernel may lack them."""
    found = [np.empty(0, np.uint64)]
    for find in (_rpc, _iscsi, _smb):
        with suppress(*DAMAGED):
            found.append(find(kernel))
    every = np.concatenate(found)
    named: Words = every[every != 0]
    return named


def _rpc(kernel: Kernel) -> Words:
    transports = np.array([*calls(kernel).transports], np.uint64)
    members = {"name": "servername", "host": "address_strings[0]", "port": "address_strings[1]"}
    return _strings(kernel, "struct rpc_xprt", members, transports)


def _iscsi(kernel: Kernel) -> Words:
    class_, session = "struct iscsi_cls_session", "struct iscsi_session"
    every = _listed(kernel, "sesslist", class_, "sess_list")
    own = _strings(kernel, class_, {"own": "dd_data"}, every)
    connection = _strings(kernel, session, {"own": "leadconn"}, own)
    address = {"name": "persistent_address"}
    return np.concatenate(
        [
            _strings(kernel, session, {"name": "targetname"}, own),
            _strings(kernel, "struct iscsi_conn", address, connection),
        ]
    )


def _smb(kernel: Kernel) -> Words:
    type_ = "struct TCP_Server_Info"
    every = _listed(kernel, "cifs_tcp_ses_list", type_, "tcp_ses_list")
    return _strings(kernel, type_, {"name": "hostname"}, every)


def _listed(kernel: Kernel, head: str, type_: str, link: str) -> Words:
    """Return the structs on a list."""
    heads = np.array([int(kernel.prog[head].address_)], np.uint64)
    _, nodes, _ = list_members(kernel.memory, heads, Faults(), limit=_MAX_LISTED)
    return nodes - np.uint64(
        layout(kernel.prog, type_, {"link": f"{link}.next"}).fields["link"].offset
    )


def _strings(kernel: Kernel, type_: str, members: dict[str, str], structs: Words) -> Words:
    """Return the pointers in some members of structs."""
    read = gather(kernel.memory, structs, layout(kernel.prog, type_, members), Guess())
    found: Words = np.concatenate([read[name] for name in members])
    return found


def addresses(kernel: Kernel, report: ScanReport) -> Iterator[tuple[Words, int]]:
    """Yield the places of addresses and ports in binary, and the size of each in bytes."""
    for find in (_transport_addresses, _smb_addresses):
        with suppress(*DAMAGED):
            yield find(kernel)
    caches = [each for each in kernel.slab_map.caches if _SOCKETS.fullmatch(each.name)]
    with suppress(LookupError):
        common = kernel.prog.type("struct sock_common")
        columns = layout(kernel.prog, common, ["skc_family"])
        own, _ = allocated(kernel.slab_map, caches, columns, report)
        for name in filter(common.has_member, _OF_SOCKETS):
            place = np.uint64(drgn.offsetof(common, name))
            yield own + place, drgn.sizeof(common.member(name).type)


def _transport_addresses(kernel: Kernel) -> tuple[Words, int]:
    return _inside(
        kernel, "struct rpc_xprt", "addr", np.array([*calls(kernel).transports], np.uint64)
    )


def _smb_addresses(kernel: Kernel) -> tuple[Words, int]:
    type_ = "struct TCP_Server_Info"
    every = _listed(kernel, "cifs_tcp_ses_list", type_, "tcp_ses_list")
    return _inside(kernel, type_, "dstaddr", every)


def _inside(kernel: Kernel, type_: str, member: str, structs: Words) -> tuple[Words, int]:
    whole = kernel.prog.type(type_)
    size = drgn.sizeof(whole.member(member).type)
    return structs + np.uint64(drgn.offsetof(whole, member)), size
