# SPDX-License-Identifier: LGPL-2.1-or-later
"""Disks of *synthetic* kernels whose host, target or server does not answer."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import requests
from kcensus.kernel.block.scsi import Device, Host, Scsi, scsi
from kcensus.kernel.block.stacks import Stacks, stacks
from kcensus.kernel.clock import clock
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Finder, Stall
from kcensus.kernel.waiting.finders.io.devices import DISK
from kcensus.kernel.waiting.finders.servers import iscsi, nbd
from kcensus.kernel.waiting.finders.servers.scsi import BLOCKED, HOST, KEPT, RECOVERED, ScsiHosts
from kcensus.kernel.waiting.graph import COMPLETION, SERVED
from kcensus.results import Severity
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = """
struct task_struct 64
struct completion 32
struct list_head 16 : 0 struct list_head * next; 8 struct list_head * prev
struct device 64
struct Scsi_Host 64
struct iscsi_cls_session 256 : 0 struct list_head sess_list; 16 int state; 24 void * dd_data; \
32 int recovery_tmo; 64 struct device dev
struct iscsi_session 64 : 0 char * targetname; 8 struct iscsi_conn * leadconn; \
16 struct iscsi_cls_session * cls_session
struct iscsi_conn 64 : 0 char * persistent_address; 8 int persistent_port
struct socket 64 : 8 struct sock * sk
struct sock_common 32 : 0 unsigned int skc_daddr; 4 unsigned short skc_dport; \
8 unsigned short skc_family; 10 unsigned char skc_state
struct sock 128 : 0 struct sock_common __sk_common; 64 struct socket * sk_socket
struct nbd_sock 32 : 0 struct socket * sock; 8 bool dead
struct nbd_config 64 : 0 struct nbd_sock ** socks; 8 int num_connections
"""
_NBD = {
    "6.1": "struct nbd_device 64 : 0 void * disk; 8 struct nbd_config * config; 16 int pid",
    "5.10": """
struct nbd_device 64 : 0 void * disk; 8 struct nbd_config * config; \
16 struct task_struct * task_recv
""",
}
_SDA, _SDB, _SCSI_HOST, _DEVICE, _OTHER = (0xFFFF_8881_0000_0000 + 0x1000 * at for at in range(5))
_DERIVED = int(Strength.DERIVED)
_STALL = Stall(frozenset({100}), 1, 2.0)


class Disks(Sleepers):
    """Two disks, the first of which has a request of 20 s."""

    def __init__(
        self, *functions: str, names: tuple[str, str] = ("sda", "sdb"), era: str = "6.1"
    ) -> None:
        super().__init__(_TYPES + _NBD[era], *functions)
        self.disks = [
            SimpleNamespace(address=at, name=name, private=0, number=8 << 20, queue=0)
            for at, name in zip((_SDA, _SDB), names, strict=True)
        ]
        self.remember(block_devices, SimpleNamespace(disks=self.disks))
        self.remember(stacks, Stacks(()))
        stamp = SimpleNamespace(allocated_ns=words(7), disk=np.zeros(1, np.int64))
        self.remember(requests, stamp)
        ages = SimpleNamespace(since=lambda stamps: np.full(len(stamps), 20_000_000_000))
        self.remember(clock, ages)

    def devices(
        self, *states: str, host: str = "RUNNING", deadline: int = -1, target: int = 0
    ) -> None:
        own = Host(_SCSI_HOST, 2, "lpfc", host, 3, self.task[0], deadline)
        made = [
            Device(row, _DEVICE + row * 0x1000, own, state, target, 10)
            for row, state in enumerate(states)
        ]
        self.remember(scsi, Scsi(made, {_SCSI_HOST: own}))


def _commands(finder: Finder, kind: object, address: int) -> tuple[str, Severity, list[str]]:
    found = finder.finding(kind, address, _STALL)  # type: ignore[arg-type]  # a NodeKind
    assert found is not None
    assert bool(found.no_remedy) == (not found.remedies)
    return found.id, found.severity, [remedy.command for remedy in found.remedies]


@pytest.mark.parametrize("state", ["RECOVERY", "CANCEL_RECOVERY", "DEL_RECOVERY"])
@pytest.mark.parametrize(("deadline", "undo"), [(-1, "off"), (30, "30")])
def test_a_host_in_recovery_keeps_its_disks(state: str, deadline: int, undo: str) -> None:
    scene = Disks("scsi_send_eh_cmnd")
    scene.devices("RUNNING", "RUNNING", host=state, deadline=deadline)
    completion = int(scene.k.alloc("struct completion").address_)
    scene.wait(0, completion, "struct completion")
    graph, finder = scene.run(ScsiHosts)
    assert links(graph) == {
        (DISK, _SDA, RECOVERED, _SCSI_HOST, _DERIVED),
        (DISK, _SDB, RECOVERED, _SCSI_HOST, _DERIVED),
        (COMPLETION, completion, RECOVERED, _SCSI_HOST, _DERIVED),
    }
    assert finder.draft.causes == dict.fromkeys((_SDA, _SDB), "waits-scsi:host2")
    place = "/sys/class/scsi_host/host2/eh_deadline"
    # The request is older than the wait of the task.
    assert _commands(finder, HOST, _SCSI_HOST) == (
        "waits-scsi:host2",
        Severity.WARNING,
        ["", f"echo 60 > {place}"],
    )
    found = finder.finding(HOST, _SCSI_HOST, _STALL)
    assert found is not None
    assert found.remedies[1].undo == f"echo {undo} > {place}"


@pytest.mark.parametrize("state", ["BLOCK", "QUIESCE"])
def test_a_blocked_device_keeps_its_disk(state: str) -> None:
    scene = Disks("io_schedule")
    scene.devices(state, "OFFLINE")
    graph, finder = scene.run(ScsiHosts)
    assert links(graph) == {(DISK, _SDA, KEPT, _DEVICE, _DERIVED)}
    assert finder.draft.causes == {_SDA: "waits-blocked:sda"}
    assert _commands(finder, BLOCKED, _DEVICE) == ("waits-blocked:sda", Severity.WARNING, [])
    assert finder.finding(HOST, _SCSI_HOST, _STALL) is None
    assert finder.finding(BLOCKED, _OTHER + 8, _STALL) is None


@pytest.mark.parametrize("names", ["known", "damaged", "none"])
@pytest.mark.parametrize("patience", [120, 0])
def test_a_failed_session_of_iscsi(names: str, patience: int) -> None:
    scene = Disks("io_schedule")
    k = scene.k
    session = k.alloc("struct iscsi_cls_session", recovery_tmo=patience)
    k.enum("iscsi_session_state", ["ISCSI_SESSION_LOGGED_IN", "ISCSI_SESSION_FAILED"])
    k.set(session.state, 1)
    head = int(k.variable("sesslist", "struct list_head").address_)
    scene.ring(head, int(session.address_))
    connection = k.alloc("struct iscsi_conn", persistent_port=3260)
    own = k.alloc("struct iscsi_session", leadconn=connection, cls_session=session)
    if names == "known":
        k.set(own.targetname, k.string(b"iqn.disk"))
        k.set(connection.persistent_address, k.string(b"192.0.2.9"))
    elif names == "damaged":
        k.set(own.cls_session, _OTHER)
    k.set(session.dd_data, own)
    scene.devices("BLOCK", "BLOCK", target=int(session.dev.address_))
    graph, finder = scene.run(iscsi.IscsiTargets)
    address = int(session.address_)
    assert links(graph) == {
        (BLOCKED, _DEVICE + at, iscsi.REACHED, address, _DERIVED) for at in (0, 0x1000)
    }
    label = "iqn.disk" if names == "known" else hex(address)
    found, _, (probe, restart) = _commands(finder, iscsi.TARGET, address)
    assert found == f"waits-iscsi:{label}"
    assert finder.draft.causes == dict.fromkeys((_SDA, _SDB), found)
    assert ("/dev/tcp/192.0.2.9/3260" in probe) == (names == "known")
    assert restart == "systemctl restart iscsid"


@pytest.mark.parametrize("era", _NBD)
@pytest.mark.parametrize("is_asleep", [True, False])
def test_network_block_devices(era: str, is_asleep: bool) -> None:
    function = "nbd_start_device_ioctl" if is_asleep else "schedule"
    scene = Disks(function, names=("nbd0", "nbd1"), era=era)
    k = scene.k
    made = []
    for state, dead, family in ((1, 0, 2), (7, 1, 2), (1, 0, 1)):
        socket, sock = k.alloc("struct socket"), k.alloc("struct sock")
        k.set(socket.sk, sock)
        k.set(sock.sk_socket, socket)
        common = sock.member_("__sk_common")
        k.fill(common, skc_family=family, skc_state=state)
        k.set(common.skc_daddr, int.from_bytes(bytes([192, 0, 2, 5]), "little"))
        k.set(common.skc_dport, int.from_bytes((10809).to_bytes(2, "big"), "little"))
        made.append(int(k.alloc("struct nbd_sock", sock=socket, dead=dead).address_))
    array = int(k.alloc("char [64]").address_)
    k.write_words(array, *made)
    config = k.alloc("struct nbd_config", socks=array, num_connections=len(made))
    device = k.alloc("struct nbd_device", disk=_SDA, config=config)
    if era == "6.1":
        k.set(device.pid, 100)
    else:
        k.set(device.task_recv, scene.task[0])
    for disk in scene.disks:
        # The second disk contradicts its device.
        disk.number, disk.private = 43 << 20, int(device.address_)
    graph, finder = scene.run(nbd.NetworkDisks)
    address = int(device.address_)
    assert links(graph) == {(DISK, _SDA, SERVED, address, _DERIVED)}
    assert finder.names[nbd.SERVER, address] == "192.0.2.5:10809 of nbd0"
    found, how, (probe, end) = _commands(finder, nbd.SERVER, address)
    assert (found, how) == ("waits-nbd:nbd0", Severity.WARNING)
    assert "/dev/tcp/192.0.2.5/10809" in probe
    assert end == ("kill -KILL 100" if is_asleep else "nbd-client -d /dev/nbd0")
    finding = finder.finding(nbd.SERVER, address, _STALL)
    assert finding is not None
    assert "2 connections of 3" in finding.evidence
    assert "UNIX socket" in finding.evidence
