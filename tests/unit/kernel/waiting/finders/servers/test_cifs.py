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
from kcensus.kernel.waiting.finders.servers import cifs
from kcensus.kernel.waiting.finders.servers.cifs import SERVER, SmbServers
from kcensus.kernel.waiting.graph import SERVED
from kcensus.results import Finding, Severity
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = """
struct task_struct 64
struct list_head 16 : 0 struct list_head * next; 8 struct list_head * prev
struct super_block 64 : 8 void * s_fs_info
struct inode 64 : 16 struct super_block * i_sb
struct cifs_sb_info 64 : 8 struct tcon_link * master_tlink
struct tcon_link 64 : 8 struct cifs_tcon * tl_tcon
struct cifs_tcon 64 : 8 struct cifs_ses * ses; 16 bool retry
struct cifs_ses 64 : 8 struct TCP_Server_Info * server
struct wait_queue_head 24
struct TCP_Server_Info 256 : 0 struct list_head tcp_ses_list; 16 char * hostname; \
24 unsigned int tcpStatus; 32 char [128] dstaddr; 160 struct wait_queue_head response_q; \
192 struct wait_queue_head request_q; 216 unsigned long echo_interval
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
        self.tree = k.alloc("struct cifs_tcon", ses=session)
        link = k.alloc("struct tcon_link", tl_tcon=self.tree)
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


def _finding(scene: Mounted) -> Finding:
    scene.wait(0, scene.server + 160, _QUEUE)
    _, finder = scene.run(SmbServers)
    found = finder.finding(SERVER, scene.server, Stall(frozenset({100}), 1, 12.0))
    assert found is not None
    assert finder.finding(SERVER, scene.server, Stall(frozenset({100}), 1, 0.5)) is None
    return found


@pytest.mark.parametrize("mount", ["/share", "/\x1b"])
def test_the_finding(mount: str) -> None:
    found = _finding(Mounted("wait_for_response", mount=mount))
    assert (found.id, found.severity) == ("waits-smb:filer", Severity.WARNING)
    assert [remedy.command for remedy in found.remedies] == [""]
    assert "state ?" in found.evidence
    assert "\x1b" not in found.evidence


@pytest.mark.parametrize(
    ("host", "commands"),
    [
        ("10.0.0.6", ["", "ip route add unreachable 10.0.0.6"]),
        ("2001:db8::6", ["", "ip -6 route add unreachable 2001:db8::6"]),
        # No route comes before the machine's own addresses, and one link has no route to another.
        ("127.0.0.6", [""]),
        ("fe80::6", [""]),
    ],
)
@pytest.mark.parametrize("is_hard", [False, True])
def test_a_silent_server_is_made_unreachable(
    host: str, commands: list[str], is_hard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifs, "hz", lambda _: 250)
    monkeypatch.setattr(cifs, "address_at", lambda *_: (host, 445))
    scene = Mounted("wait_for_response")
    scene.k.write_words(scene.server + 216, 60 * 250)
    monkeypatch.setitem(cifs._STATES, "", "is connected")
    monkeypatch.setattr(cifs, "_CONNECTED", ("",))
    if is_hard:
        scene.k.set(scene.tree.retry, 1)
    found = _finding(scene)
    assert [remedy.command for remedy in found.remedies] == commands
    assert "after 3 min 0 s without" in found.evidence
    if commands[1:]:
        assert found.remedies[1].undo == commands[1].replace("add", "del")
        assert ("hard mounts (/share)" in found.remedies[1].effect) is is_hard


def test_an_impossible_interval_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifs, "hz", lambda _: 250)
    monkeypatch.setattr(cifs, "address_at", lambda *_: ("10.0.0.6", 445))
    monkeypatch.setattr(cifs, "_CONNECTED", ("",))
    scene = Mounted("wait_for_response")
    scene.k.write_words(scene.server + 216, 1 << 60)
    found = _finding(scene)
    assert "without an answer" not in found.evidence
    assert "some minutes" in found.remedies[1].effect
