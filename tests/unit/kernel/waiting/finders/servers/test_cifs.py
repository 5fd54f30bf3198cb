# SPDX-License-Identifier: LGPL-2.1-or-later
"""SMB servers of *synthetic* kernels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.io.pages import PAGE
from kcensus.kernel.waiting.finders.servers.cifs import SERVER, SmbServers
from kcensus.kernel.waiting.graph import SERVED
from kcensus.results import Severity
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = """
struct task_struct 64
struct list_head 16 : 0 struct list_head * next; 8 struct list_head * prev
struct super_block 64 : 8 void * s_fs_info
struct inode 64 : 16 struct super_block * i_sb
struct cifs_sb_info 64 : 8 struct tcon_link * master_tlink
struct tcon_link 64 : 8 struct cifs_tcon * tl_tcon
struct cifs_tcon 64 : 8 struct cifs_ses * ses
struct cifs_ses 64 : 8 struct TCP_Server_Info * server
struct wait_queue_head 24
struct TCP_Server_Info 256 : 0 struct list_head tcp_ses_list; 16 char * hostname; \
24 unsigned int tcpStatus; 32 char [128] dstaddr; 160 struct wait_queue_head response_q; \
192 struct wait_queue_head request_q
"""
_QUEUE, _PAGE = "struct wait_queue_head", 0xFFFF_EA00_0000_1000


class Mounted(Sleepers):
    """A mount of SMB."""

    def __init__(self, *functions: str, mount: str = "/share", is_listed: bool = True) -> None:
        super().__init__(_TYPES, *functions)
        k = self.k
        server = k.alloc("struct TCP_Server_Info", tcpStatus=3, hostname=k.string(b"filer"))
        self.server = int(server.address_)
        self.address = int(server.dstaddr.address_)
        head = int(k.variable("cifs_tcp_ses_list", "struct list_head").address_)
        self.ring(head, *([self.server] if is_listed else []))
        session = k.alloc("struct cifs_ses", server=server)
        tree = k.alloc("struct cifs_tcon", ses=session)
        link = k.alloc("struct tcon_link", tl_tcon=tree)
        own = k.alloc("struct cifs_sb_info", master_tlink=link)
        block = k.alloc("struct super_block", s_fs_info=own)
        self.inode = int(k.alloc("struct inode", i_sb=block).address_)
        blocks = SimpleNamespace(address=words(int(block.address_)), type=["cifs"], mount=[mount])
        self.remember(super_blocks, blocks)

    def page(self, lane: int) -> None:
        self.wait(lane, _PAGE, "struct folio")
        self.waits.kind[lane], self.waits.inode[lane] = WaitKind.FOLIO, self.inode


def test_queues_and_pages_lead_to_their_server() -> None:
    scene = Mounted("wait_for_response", "wait_for_free_credits", "folio_wait_writeback", "other")
    for lane, place in enumerate((160, 192)):
        scene.wait(lane, scene.server + place, _QUEUE)
    scene.page(2)
    scene.wait(3, scene.server + 168, _QUEUE)
    graph, finder = scene.run(SmbServers)
    assert links(graph) == {(PAGE, _PAGE, SERVED, scene.server, int(Strength.DERIVED))}
    assert finder.object[:2].tolist() == [scene.server] * 2
    assert finder.type[:2] == ["struct TCP_Server_Info"] * 2
    assert finder.type[3] == _QUEUE


def test_a_server_on_no_list_is_none() -> None:
    scene = Mounted("wait_for_response", is_listed=False)
    scene.wait(0, scene.server + 160, _QUEUE)
    scene.page(0)
    graph, finder = scene.run(SmbServers)
    assert len(graph) == 0
    assert finder.servers == {}


@pytest.mark.parametrize(
    ("mount", "commands"),
    [("/share", ["", "umount --force --no-canonicalize /share"]), ("/\x1b", [""])],
)
def test_the_finding(mount: str, commands: list[str]) -> None:
    scene = Mounted("wait_for_response", mount=mount)
    scene.wait(0, scene.server + 160, _QUEUE)
    _, finder = scene.run(SmbServers)
    found = finder.finding(SERVER, scene.server, Stall(frozenset({100}), 1, 12.0))
    assert found is not None
    assert (found.id, found.severity) == ("waits-smb:filer", Severity.WARNING)
    assert [remedy.command for remedy in found.remedies] == commands
    assert "state ?" in found.evidence
    assert "\x1b" not in found.evidence
    assert finder.finding(SERVER, scene.server, Stall(frozenset({100}), 1, 0.5)) is None
