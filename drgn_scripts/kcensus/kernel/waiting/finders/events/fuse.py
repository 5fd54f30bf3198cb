# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers of the FUSE requests that tasks wait for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from kcensus.engine.memory import Words
from kcensus.human import listed
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import MISSING
from kcensus.kernel.vfs.files import open_files
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.graph import PROCESS, SERVED, NodeKind
from kcensus.results import Remedy
from kcensus.text import printable, task_name

FUSE = NodeKind(
    "fuse request", ("struct fuse_req",), is_any=True, shows_stopped=True, ignores_signals=True
)
_ABORT = "/sys/fs/fuse/connections/{}/abort"


class FuseRequests(Finder):
    """Finds the processes that must answer FUSE requests."""

    about = "FUSE requests"
    kinds = (FUSE,)
    modules = ("fuse",)
    queues = {"request_wait_answer": ("struct fuse_req", ("waitq",))}

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.connections: dict[int, int] = {}
        """Number of the connection of each request, as in /sys/fs/fuse/connections."""
        self.mounts: dict[int, str] = {}
        """Mount point of the file system of each request; not safe to print."""
        self.servers: dict[int, list[str]] = {}
        """Processes that have the device of its connection open."""

    def find(self) -> None:
        """Find the servers of the awaited requests."""
        lanes = [lane for lane, type_ in enumerate(self.type) if type_ == "struct fuse_req"]
        if not lanes:
            return
        files = open_files(self.kernel)
        operations = int(self.kernel.prog["fuse_dev_operations"].address_of_())
        is_device = self._member("struct file", "f_op", files.address) == operations
        rows = np.flatnonzero(is_device)
        # Since v7.2 or v7.3 (commit not verified), device and request have a channel.
        connection = self._member("struct fuse_dev", ("chan", "fc"), files.private[rows])
        requests = np.unique(self.object[lanes])
        # Since Linux kernel commit fcee216beb9c ("fuse: split fuse_mount off of fuse_conn") (in
        # v5.10), a request knows its mount.
        type_ = self.kernel.prog.type("struct fuse_req")
        is_channel = type_.has_member("chan")
        if is_channel:
            wanted = self._member("struct fuse_req", "chan", requests)
        elif type_.has_member("fm"):
            mounts = self._member("struct fuse_req", "fm", requests)
            wanted = self._member("struct fuse_mount", "fc", mounts)
        elif len(np.unique(connection)) == 1:
            wanted = np.full(len(requests), connection[0])
        else:
            return
        self._name_connections(requests, wanted, is_channel=is_channel)
        request, row = np.nonzero(wanted[:, None] == connection[None, :])
        served = files.files[rows[row]]
        self.build.edges(
            SERVED,
            (FUSE, requests[request]),
            (PROCESS, served),
            [f"file descriptor {files.descriptor[each]}" for each in rows[row].tolist()],
            strength=Strength.DERIVED,
            place=files.address[rows[row]],
        )
        self._add_threads(files.tables, served)
        for each, process in zip(requests[request].tolist(), served.tolist(), strict=True):
            members = np.flatnonzero(files.tables == process)
            if len(members):
                first = int(members[np.argmin(self.known.pid[members])])
                name = task_name(self.known.comm[first], int(self.known.pid[first]))
                self.servers.setdefault(each, []).append(name)

    def _name_connections(self, requests: Words, owner: Words, *, is_channel: bool) -> None:
        """Note the number of each request's connection, for the command that aborts it."""
        if is_channel:
            owner = self._member("struct fuse_chan", "conn", owner)
        read = self._read("struct fuse_conn", owner, ["dev"])
        for row in np.flatnonzero(read.readable).tolist():
            self.connections[int(requests[row])] = int(read["dev"][row])
        with contextlib.suppress(*MISSING):
            blocks = super_blocks(self.kernel)
            is_fuse = np.array([type_.startswith("fuse") for type_ in blocks.type], np.bool_)
            for request, device in self.connections.items():
                own = np.flatnonzero(is_fuse & (blocks.device == device)).tolist()
                if len(own) == 1 and blocks.mount[own[0]]:
                    self.mounts[request] = blocks.mount[own[0]]
                    self.names[FUSE, request] = f"of {blocks.mount[own[0]]}"

    def remedies(self, kind: NodeKind, address: int, waiter: str) -> Iterator[Remedy]:
        """Yield the abort of a connection: once its server has read a request, no signal helps."""
        number = self.connections.get(address, -1)
        if kind is FUSE and number >= 0:
            server = listed(self.servers.get(address, []), 2)
            about = f"{self.served(kind, address)}{f', server {server}' * bool(server)}"
            yield Remedy(
                effect=f"Abort FUSE connection {number} ({about}) that {waiter} waits for",
                command=f"echo 1 > {_ABORT.format(number)}",
                risk="users of the file system get errors until it is mounted again",
            )

    def served(self, kind: NodeKind, address: int) -> str:
        """Return the file system that the server of a request ends with."""
        if kind is not FUSE:
            return ""
        mount = self.mounts.get(address, "")
        return f"the FUSE file system{f' on {printable(mount)}' * bool(mount)}"


FINDER = FuseRequests
