# SPDX-License-Identifier: LGPL-2.1-or-later
"""NFS servers of *synthetic* kernels."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.engine.memory import Faults
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.net.rpc import Calls, Transport, calls
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.servers.nfs import CALL, CLIENT, SERVER, NfsServers
from kcensus.kernel.waiting.graph import BIT, COMPLETION, SERVED
from kcensus.results import Severity
from tests.unit.kernel.waiting.making import Sleepers, links, words

_COMMON = """
struct task_struct 64
struct super_block 64 : 8 void * s_fs_info
struct inode 64 : 16 struct super_block * i_sb
struct dentry 64 : 24 struct super_block * d_sb
struct completion 32
struct rpc_task 128 : 64 unsigned long tk_runstate
struct nfs_server 64 : 0 void * client; 8 struct nfs_client * nfs_client
struct nfs_client 64 : 8 unsigned long cl_state; 16 void * cl_rpcclient
struct nfs_direct_req 96 : 8 struct inode * inode; 32 struct completion completion
struct nfs_mds_commit_info 16 : 8 unsigned long rpcs_out
struct nfs_inode 256 : 8 unsigned long flags; 32 struct nfs_mds_commit_info commit_info; \
128 struct inode vfs_inode
struct nfs_pgio_header 64 : 0 struct inode * inode
struct nfs_commit_data 64 : 24 struct inode * inode
struct nfs_open_context 64 : 8 struct dentry * dentry
"""
_PAGES = {
    "lock": """
struct nfs_lock_context 64 : 8 struct nfs_open_context * open_context
struct nfs_page 128 : 16 struct nfs_lock_context * wb_lock_context; 64 unsigned long wb_flags
""",
    "open": """
struct nfs_page 128 : 16 struct nfs_open_context * wb_context; 64 unsigned long wb_flags
""",
}
_FIRST, _SECOND, _OTHER = (0xFFFF_8881_0000_0000 + at for at in (0, 0x1000, 0x2000))
_RPC = 0xFFFF_8881_0000_3000
_DERIVED, _PROVEN = int(Strength.DERIVED), int(Strength.PROVEN)


class Mounted(Sleepers):
    """A mount of NFS, whose client has two transports to its server."""

    def __init__(self, *functions: str, era: str = "lock", mount: str = "/home") -> None:
        super().__init__(_COMMON + _PAGES[era], *functions)
        k = self.k
        self.call = int(k.alloc("struct rpc_task").address_)
        self.data = int(k.alloc("struct nfs_pgio_header").address_)
        self.client = k.alloc("struct nfs_client", cl_rpcclient=_RPC)
        server = k.alloc("struct nfs_server", client=_RPC, nfs_client=self.client)
        self.block = k.alloc("struct super_block", s_fs_info=server)
        blocks = SimpleNamespace(
            address=words(int(self.block.address_)), type=["nfs4"], mount=[mount]
        )
        self.remember(super_blocks, blocks)
        transports = [
            Transport(_FIRST, "192.0.2.7", "2049", "filer", 2),
            Transport(_SECOND, "192.0.2.7", "2049", "filer", 0),
            Transport(_OTHER, "2001:db8::1", "2049", "", 0),
        ]
        known = Calls(
            address=words(self.call),
            transport=words(_SECOND),
            operation=["WRITE"],
            age_ns=np.array([30_000_000_000]),
            sent=np.array([3]),
            xid=words(0),
            data=words(self.data),
            clients={_RPC: _FIRST},
            transports={each.address: each for each in transports},
            faults=Faults(),
        )
        self.remember(calls, known)

    def bit(self, lane: int, address: int) -> None:
        self.wait(lane, address, "unsigned long")


def test_a_call_leads_to_its_server() -> None:
    scene = Mounted("rpc_wait_bit_killable")
    scene.bit(0, scene.call + 64)
    graph, finder = scene.run(NfsServers)
    # All transports to a port are one server.
    assert links(graph) == {(CALL, scene.call, SERVED, _FIRST, _PROVEN)}
    assert finder.names[CALL, scene.call] == "WRITE"
    assert finder.names[SERVER, _FIRST] == "192.0.2.7:2049 (filer)"


def test_a_client_in_recovery_leads_to_its_server() -> None:
    scene = Mounted("nfs4_wait_clnt_recover")
    scene.bit(0, int(scene.client.address_) + 8)
    graph, _ = scene.run(NfsServers)
    assert links(graph) == {(CLIENT, int(scene.client.address_), SERVED, _FIRST, _PROVEN)}


@pytest.mark.parametrize("era", _PAGES)
def test_inodes_and_requests_lead_to_their_super_block(era: str) -> None:
    scene = Mounted(*["nfs_wait_bit_killable"] * 3, "nfs_file_direct_read", era=era)
    k = scene.k
    inode = k.alloc("struct nfs_inode")
    k.set(inode.vfs_inode.i_sb, scene.block)
    dentry = k.alloc("struct dentry", d_sb=scene.block)
    context = k.alloc("struct nfs_open_context", dentry=dentry)
    if era == "lock":
        lock = k.alloc("struct nfs_lock_context", open_context=context)
        page = k.alloc("struct nfs_page", wb_lock_context=lock)
    else:
        page = k.alloc("struct nfs_page", wb_context=context)
    direct = k.alloc("struct nfs_direct_req")
    k.set(direct.inode, inode.vfs_inode.address_)
    objects = [int(inode.address_) + 8, int(inode.address_) + 40, int(page.address_) + 64]
    for lane, each in enumerate(objects):
        scene.bit(lane, each)
    scene.wait(3, int(direct.address_) + 32, "struct completion")
    graph, _ = scene.run(NfsServers)
    assert links(graph) == {
        *((BIT, each, SERVED, _FIRST, _DERIVED) for each in objects),
        (COMPLETION, int(direct.address_) + 32, SERVED, _FIRST, _DERIVED),
    }


@pytest.mark.parametrize("servers", [1, 2])
def test_a_call_for_the_file_tells_the_server_of_its_data(servers: int) -> None:
    """With pNFS, the server of the mount has no data."""
    scene = Mounted("nfs_wait_bit_killable")
    k = scene.k
    inode = k.alloc("struct nfs_inode")
    k.set(inode.vfs_inode.i_sb, scene.block)
    own = int(inode.vfs_inode.address_)
    header = k.alloc("struct nfs_pgio_header", inode=own)
    commit = k.alloc("struct nfs_commit_data", inode=own)
    made = [int(header.address_), int(commit.address_)][:servers]
    known = calls(scene.kernel)
    several = replace(
        known,
        address=words(*(scene.call + at for at in range(servers))),
        transport=words(_OTHER, _SECOND)[:servers],
        data=words(*made),
    )
    scene.remember(calls, several)
    scene.bit(0, int(inode.address_) + 8)
    graph, _ = scene.run(NfsServers)
    strength = _DERIVED if servers == 1 else int(Strength.POSSIBLE)
    ends = [_OTHER, _FIRST][:servers]
    assert links(graph) == {(BIT, int(inode.address_) + 8, SERVED, each, strength) for each in ends}


def test_other_bits_lead_nowhere() -> None:
    scene = Mounted("rpc_wait_bit_killable", "bit_wait")
    other = scene.k.alloc("struct super_block")
    inode = scene.k.alloc("struct nfs_inode")
    scene.k.set(inode.vfs_inode.i_sb, other)
    scene.bit(0, scene.call + 72)
    scene.bit(1, int(inode.address_) + 8)
    assert len(scene.run(NfsServers)[0]) == 0


@pytest.mark.parametrize(
    ("mount", "seconds", "severity", "unmounts"),
    [
        ("/home", -1.0, Severity.WARNING, ["umount --force --no-canonicalize /home"]),
        ("/a b", 40.0, Severity.WARNING, ["umount --force --no-canonicalize '/a b'"]),
        ("/\x1b", 2.0, Severity.WARNING, []),
        ("", 2.0, Severity.WARNING, []),
    ],
)
def test_the_finding(mount: str, seconds: float, severity: Severity, unmounts: list[str]) -> None:
    scene = Mounted("rpc_wait_bit_killable", mount=mount)
    scene.bit(0, scene.call + 64)
    _, finder = scene.run(NfsServers)
    found = finder.finding(SERVER, _FIRST, Stall(frozenset({100}), 1, seconds))
    assert found is not None
    assert (found.id, found.severity) == ("waits-nfs:192.0.2.7:2049", severity)
    # A connection says nothing about a server that is connected.
    assert [remedy.command for remedy in found.remedies] == ["", *unmounts]
    # The task wakes up whenever it sends its call again.
    assert found.figures["oldest"].value == max(seconds, 30.0)
    assert "1 transport connected, 1 transport not connected" in found.evidence
    assert "1 WRITE" in found.evidence
    assert "\x1b" not in found.evidence
    assert finder.finding(CALL, scene.call, Stall(frozenset(), 0, 0.0)) is None


def test_a_short_wait_is_no_finding() -> None:
    scene = Mounted("nfs4_wait_clnt_recover")
    scene.bit(0, int(scene.client.address_) + 8)
    _, finder = scene.run(NfsServers)
    assert finder.finding(SERVER, _FIRST, Stall(frozenset({100}), 1, 0.5)) is None


@pytest.mark.parametrize(
    ("state", "words_"), [(0b10, "connected"), (0b100, "connecting"), (0, "not connected")]
)
def test_transports(state: int, words_: str) -> None:
    transport = Transport(_OTHER, "2001:db8::1", "2049", "", state)
    assert (transport.server, transport.connection) == ("[2001:db8::1]:2049", words_)
