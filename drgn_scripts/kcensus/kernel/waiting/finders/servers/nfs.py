# SPDX-License-Identifier: LGPL-2.1-or-later
"""NFS servers: what tasks wait for in calls, pages and inodes of NFS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from kcensus.engine.memory import Mask, Numbers, Words
from kcensus.human import counted, human_seconds, listed
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.net.nfsd import serving
from kcensus.kernel.net.rpc import Calls, Transport, calls
from kcensus.kernel.net.sockets import CONNECTED
from kcensus.kernel.net.unanswered import remedies
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.graph import SERVED, TASK, NodeKind
from kcensus.results import Figure, Finding
from kcensus.text import printable

CALL = NodeKind("NFS call", ("struct rpc_task",), is_io=True)
CLIENT = NodeKind("NFS client", ("struct nfs_client",), is_io=True)
"""A client whose state manager recovers leases, opens and locks."""
SERVER = NodeKind("NFS server", is_any=True, is_io=True)
"""At the address of the first transport to a port of a server."""
_TYPES = ("nfs", "nfs4")
_WORD = "unsigned long"
_SERVING = frozenset({"svc_process", "nfsd_dispatch"})
"""Functions that serve a call."""
_DIRECT = frozenset({"nfs_file_direct_read", "nfs_file_direct_write", "nfs_direct_wait"})
_IN_CALLS = frozenset({"rpc_wait_bit_killable", "__rpc_execute", "rpc_wait_for_completion_task"})
_OF_FILE = "rpc_task.tk_calldata"
_MAX_TOLD = 4
_SHORT = 1.0
"""Least seconds of a wait for a finding."""


class NfsServers(Finder):
    """Finds the servers that must answer before tasks go on."""

    about = "NFS servers"
    kinds = (CALL, CLIENT, SERVER)
    modules = ("sunrpc", "nfs", "nfsv3", "nfsv4", "nfsd")

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.calls: Calls | None = None
        self.client_of: dict[int, int] = {}
        """``struct rpc_clnt`` by super block of NFS."""
        self.ages: dict[int, float] = {}
        """Seconds of the oldest call that a task waits for, by the node of its server: a task that
        executes its call itself wakes up whenever it sends it again."""
        self.via: dict[int, tuple[int, str]] = {}
        """Transport that each task waits for, by lane, and its evidence."""
        self.possible: list[tuple[int, int]] = []
        """Lanes, and transports that they may wait for."""
        self.inode_of: dict[int, int] = {}
        """``struct inode *`` of the file that each task waits for, by lane."""

    def note(self) -> None:
        """Note the calls, clients and files of NFS that tasks wait for.

        :raises LookupError: NFS is in use, and its debug info is missing
        """
        blocks = super_blocks(self.kernel)
        is_nfs = np.array([type_ in _TYPES for type_ in blocks.type], np.bool_)
        if not is_nfs.any() and not len(self._having(_IN_CALLS)):
            return
        found = self.calls = calls(self.kernel)
        self.faults.update(found.faults)
        self.draft.torn += found.torn
        bits = self._of_type(_WORD)
        self._note_calls(found, bits)
        if not is_nfs.any():
            return
        block = blocks.address[is_nfs]
        private = self._member("struct super_block", "s_fs_info", block)
        servers = self._read("struct nfs_server", private, ["client", "nfs_client"])
        known = np.isin(servers["client"], np.array([*found.clients], np.uint64))
        clients = servers["client"][known].tolist()
        self.client_of = dict(zip(block[known].tolist(), clients, strict=True))
        self._note_clients(found, np.unique(servers["nfs_client"][known]), bits)
        self._note_files()
        self._note_calls_for_files(found)

    def _note_calls(self, found: Calls, bits: Numbers) -> None:
        start = self.object[bits] - self._offset("struct rpc_task", "tk_runstate")
        for lane, row in zip(bits.tolist(), found.rows(start).tolist(), strict=True):
            if row >= 0:
                address = int(found.address[row])
                self._note(lane, address, "struct rpc_task", "rpc_task.tk_runstate")
                self.names[CALL, address] = found.operation[row]
                self.via[lane] = int(found.transport[row]), "rpc_task.tk_xprt"
                if transport := found.transports.get(int(found.transport[row])):
                    node, age = found.servers[transport.server][0], found.age_ns[row] / 1e9
                    self.ages[node] = max(self.ages.get(node, 0.0), float(age))

    def _note_clients(self, found: Calls, clients: Words, bits: Numbers) -> None:
        """Note the clients whose state manager tasks wait for."""
        own = self._member("struct nfs_client", "cl_rpcclient", clients)
        known = dict(zip(clients.tolist(), own.tolist(), strict=True))
        start = self.object[bits] - self._offset("struct nfs_client", "cl_state")
        for lane, address in zip(bits.tolist(), start.tolist(), strict=True):
            if address in known:
                self._note(lane, address, "struct nfs_client", "nfs_client.cl_state")
                self.names[CLIENT, address] = "that recovers its state"
                transport = found.clients.get(known[address], 0)
                self.via[lane] = transport, "nfs_client.cl_rpcclient"

    def _note_files(self) -> None:
        """Note the servers of pages, inodes and I/O: objects that lead to a super block of NFS."""
        pages = np.flatnonzero((self.waits.inode != 0) & (self.object != 0))
        self._via_blocks(pages, "page.mapping", "struct inode", "i_sb", self.waits.inode[pages])
        direct = np.intersect1d(self._of_type("struct completion"), self._having(_DIRECT))
        start = self.object[direct] - self._offset("struct nfs_direct_req", "completion")
        inode = self._member("struct nfs_direct_req", "inode", start, is_guess=True)
        self._via_blocks(direct, "nfs_direct_req.inode", "struct inode", "i_sb", inode)
        bits = self._of_type(_WORD)
        if not len(bits):
            return
        for member in ("flags", "commit_info.rpcs_out"):
            start = self.object[bits] - self._offset("struct nfs_inode", member)
            what = f"nfs_inode.{member}"
            self._via_blocks(bits, what, "struct nfs_inode", "vfs_inode.i_sb", start)
        start = self.object[bits] - self._offset("struct nfs_page", "wb_flags")
        dentry = self._contexts(start)
        self._via_blocks(bits, "nfs_page.wb_flags", "struct dentry", "d_sb", dentry)

    def _note_calls_for_files(self, found: Calls) -> None:
        """Note the servers of the calls for files: of pNFS, these are not the server of the mount.

        A call that reads, writes or commits has the inode in its data.
        """
        wanted = np.array([*{*self.inode_of.values()}], np.uint64)
        if not len(wanted):
            return
        servers: dict[int, dict[str, int]] = {}
        for type_ in ("struct nfs_pgio_header", "struct nfs_commit_data"):
            own = self._member(type_, "inode", found.data, is_guess=True)
            for row in np.flatnonzero(np.isin(own, wanted) & (found.transport != 0)).tolist():
                transport = int(found.transport[row])
                server = found.transports[transport].server
                servers.setdefault(int(own[row]), {})[server] = transport
        for lane, file in self.inode_of.items():
            known = [*servers.get(file, {}).values()]
            if len(known) == 1:
                self.via[lane] = known[0], _OF_FILE
            elif known:
                # The task may wait for any of them.
                del self.via[lane]
                self.possible += [(lane, transport) for transport in known]

    def _contexts(self, pages: Words) -> Words:
        """Return ``struct dentry *`` of the file of each ``struct nfs_page``."""
        # Since v5.2 or before (commit not verified), a page names the context of its lock.
        type_ = self.kernel.prog.type("struct nfs_page")
        if type_.has_member("wb_lock_context"):
            lock = self._member(type_.type_name(), "wb_lock_context", pages, is_guess=True)
            context = self._member("struct nfs_lock_context", "open_context", lock, is_guess=True)
        else:
            context = self._member(type_.type_name(), "wb_context", pages, is_guess=True)
        return self._member("struct nfs_open_context", "dentry", context, is_guess=True)

    def _via_blocks(
        self, lanes: Numbers, evidence: str, type_: str, member: str, addresses: Words
    ) -> None:
        """Note the server of lanes whose structs name a super block of NFS."""
        assert self.calls is not None
        block = self._member(type_, member, addresses, is_guess=True)
        inner = int(self._offset(type_, "vfs_inode")) if type_ == "struct nfs_inode" else 0
        for lane, each, address in zip(
            lanes.tolist(), block.tolist(), addresses.tolist(), strict=True
        ):
            if each in self.client_of:
                transport = self.calls.clients[self.client_of[each]]
                self.via.setdefault(lane, (transport, evidence))
                if type_ != "struct dentry":
                    self.inode_of.setdefault(lane, address + inner)

    def find(self) -> None:
        """Add edges to the servers, and from those that are this kernel to their threads."""
        lanes = [lane for lane, (transport, _) in self.via.items() if transport]
        if self.calls is None or not (lanes or self.possible):
            return
        kinds = [self.draft.kind_of(lane) for lane in lanes]
        every = np.array(lanes, np.int64)
        self.build.edges(
            SERVED,
            (kinds, self.object[every]),
            (SERVER, self._servers(np.array([self.via[lane][0] for lane in lanes], np.uint64))),
            [self.via[lane][1] for lane in lanes],
            strength=np.where(
                [kind in (CALL, CLIENT) for kind in kinds],
                int(Strength.PROVEN),
                int(Strength.DERIVED),
            ),
        )
        maybe = np.array([lane for lane, _ in self.possible], np.int64)
        transports = np.array([transport for _, transport in self.possible], np.uint64)
        self.build.edges(
            SERVED,
            ([self.draft.kind_of(lane) for lane in maybe.tolist()], self.object[maybe]),
            (SERVER, self._servers(transports)),
            _OF_FILE,
            strength=Strength.POSSIBLE,
        )
        self.draft.attempt("threads of the NFS server", self._serve)

    def _servers(self, transports: Words) -> Words:
        """Return the node of the server of each transport, and note its name."""
        assert self.calls is not None
        first = np.empty(len(transports), np.uint64)
        for row, address in enumerate(transports.tolist()):
            transport = self.calls.transports[address]
            node = self.calls.servers[transport.server][0]
            first[row] = node
            self.names[SERVER, node] = _name(transport)
            self.types[SERVER, node] = "struct rpc_xprt"
        return first

    def _serve(self) -> None:
        """Add edges from servers to the threads of this kernel that serve their calls."""
        # An idle thread keeps the number of its last call.
        threads = np.intersect1d(self._having(frozenset({"nfsd"})), self._having(_SERVING))
        assert self.calls is not None
        if not len(threads):
            return
        task = self.waits.task[threads]
        row, call = serving(self.kernel, task, self.calls, self.faults)
        self.build.edges(
            SERVED,
            (SERVER, self._servers(self.calls.transport[call])),
            (TASK, task[row]),
            "svc_rqst.rq_xid",
            strength=Strength.DERIVED,
        )

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a server that does not answer."""
        if kind is not SERVER or self.calls is None:
            return None
        stall = stall.at_least(self.ages.get(address, -1.0))
        if 0 <= stall.seconds < _SHORT:
            return None
        transport = self.calls.transports[address]
        server, name = printable(transport.server), printable(_name(transport))
        mine = np.isin(self.calls.transport, self._transports(transport))
        mounts = self._mounts(transport)
        return stall.finding(
            "waits-nfs",
            server,
            f"NFS server {name}",
            "; ".join(self._evidence(transport, mine, mounts)),
            remedies(
                transport.host,
                transport.port,
                "NFS",
                mounts,
                "the calls of {}; repeat it, and unmount lazily (umount -l) once no program uses "
                "it",
                is_connected=transport.connection == CONNECTED,
            ),
            figures={"calls": Figure(int(mine.sum()))},
        )

    def _transports(self, transport: Transport) -> Words:
        assert self.calls is not None
        return np.array(self.calls.servers[transport.server], np.uint64)

    def _mounts(self, transport: Transport) -> list[str]:
        """Return the mount points of a server."""
        assert self.calls is not None
        blocks, own = super_blocks(self.kernel), set(self._transports(transport).tolist())
        rows = {int(address): row for row, address in enumerate(blocks.address)}
        found = [
            blocks.mount[rows[block]]
            for block, client in self.client_of.items()
            if self.calls.clients[client] in own
        ]
        return sorted(filter(None, found))

    def _evidence(self, transport: Transport, mine: Mask, mounts: list[str]) -> Iterator[str]:
        assert self.calls is not None
        known = self.calls
        states = Counter(
            known.transports[each].connection for each in self._transports(transport).tolist()
        )
        if len(states) == 1:
            yield f"the transport is {next(iter(states))}"
        else:
            yield listed(
                [f"{counted(count, 'transport')} {state}" for state, count in states.most_common()]
            )
        rows = np.flatnonzero(mine)
        if len(rows):
            names = Counter(known.operation[row] for row in rows.tolist()).most_common(_MAX_TOLD)
            oldest = rows[np.argmax(known.age_ns[rows])]
            age, sent = max(int(known.age_ns[oldest]), 0) / 1e9, int(known.sent[oldest])
            yield (
                f"{counted(len(rows), 'call')} without a reply ("
                f"{listed([f'{count:,} {printable(name)}' for name, count in names])}), the oldest "
                f"for {human_seconds(age)}, "
                + (f"sent {counted(sent, 'time')}" if sent else "not sent on this connection")
            )
        if mounts:
            yield f"mounted on {listed([printable(mount) for mount in mounts])}"


def _name(transport: Transport) -> str:
    is_named = transport.name not in ("", "?", transport.host)
    return f"{transport.server} ({transport.name})" if is_named else transport.server


FINDER = NfsServers
