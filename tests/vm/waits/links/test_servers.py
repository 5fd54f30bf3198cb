# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers that do not answer, against what each guest says of its mounts, disks and connections."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path

import drgn
import numpy as np
import pytest

from kcensus.analyses import analyses
from kcensus.capsule import create
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.waiting.cycles import roots
from kcensus.kernel.waiting.finders.locks.frozen import FREEZER
from kcensus.kernel.waiting.finders.servers import cifs, iscsi, nbd, nfs, scsi
from kcensus.kernel.waiting.graph import NodeKind
from kcensus.kernel.waiting.reader import waiting
from kcensus.results import Finding, Result, Severity
from kcensus.sources import open_target
from tests.lab.truth import waits as truth_of
from tests.sample.block.poked import Poked
from tests.vm.capsules import KEY, Capsules, pages
from tests.vm.cases import analyzed, opened
from tests.vm.waits.scenarios import FOUND, cases, params
from tests.vm.waits.test_graph import Case

_CLIENTS = ("nfs-", "disk-", "smb-")
_ESTABLISHED = "01"
_GONE, _SILENT = "0200007F:0802", "0500007F:0802"
"""Addresses of the relays, as /proc/net/tcp has them."""
_BENT = 60
"""Words to bend, one at a time."""


def _behind(case: Case) -> dict[tuple[NodeKind, str], set[int]]:
    """PIDs of the tasks behind each root, by kind and name."""
    graph, found = case.found.graph, dict[tuple[NodeKind, str], set[int]]()
    for node in roots(graph.sure, case.cycles):
        kind = graph.kind[node]
        tasks = np.flatnonzero(graph.sure.reached([node], back=True) & graph.is_task)
        name = case.found.names.get((kind, int(graph.address[node])), "")
        found[kind, name] = {case.pid(each) for each in tasks.tolist()}
    return found


def _asleep(case: Case, which: str = truth_of.BEFORE) -> dict[int, str]:
    """The tasks in state D, as the guest reads them."""
    tasks = truth_of.read(case.dump.truth, which).tasks
    return {pid: task.comm for pid, task in tasks.items() if task.state == "D"}


def _of_kind(result: Result, kind: str) -> dict[str, Finding]:
    found = [each for each in result.findings if each.kind == kind]
    return {each.id.partition(":")[2]: each for each in found}


@cases("waits-servers")
def test_all_tasks_end_at_their_server(case: Case) -> None:
    behind, asleep = _behind(case), _asleep(case)
    frozen, gone = (FREEZER, "on /srv"), (nfs.SERVER, "127.0.0.2:2050")
    silent, disk = (nfs.SERVER, "127.0.0.5:2050"), (nbd.SERVER, "127.0.0.3:10809 of nbd0")
    smb = cifs.SERVER, "127.0.0.6:4450"
    assert behind.keys() == {frozen, gone, silent, disk, smb}
    assert set().union(*behind.values()) == asleep.keys()
    comms = {root: sorted(asleep[pid] for pid in pids) for root, pids in behind.items()}
    assert comms == {
        # Threads of the server, and the clients that wait for them.
        frozen: ["nfs-create", "nfs-mkdir", "nfs-mkdir", "nfs-write", *["nfsd"] * 4],
        gone: ["nfs-direct", "nfs-list", "nfs-read", "nfs-stat", "nfs-write"],
        silent: ["nfs-direct", "nfs-read", "nfs-stat", "nfs-write"],
        disk: ["disk-read"] * 2,
        smb: ["smb-mount"],
    }
    # The guest has started the clients of one mount after those of the other.
    clients = [
        sorted(pid for pid in behind[each] if asleep[pid].startswith("nfs-"))
        for each in (frozen, gone, silent)
    ]
    assert clients[0][-1] < clients[1][0] <= clients[1][-1] < clients[2][0]


@cases("waits-servers")
def test_connections_are_those_of_the_guest(case: Case) -> None:
    (finder,) = (each for each in case.found.finders if isinstance(each, nfs.NfsServers))
    assert finder.calls is not None
    states = {each.server: each.connection for each in finder.calls.transports.values()}
    lines = [line.split() for line in case.dump.truth["connections"].splitlines()]
    connected = {line[2] for line in lines if line[3] == _ESTABLISHED}
    assert _SILENT in connected
    assert states["127.0.0.5:2050"] == "connected"
    assert _GONE not in connected
    assert states["127.0.0.2:2050"] in ("connecting", "not connected")


@cases("waits-servers")
def test_remedies_end_the_stall(case: Case, result: Result) -> None:
    servers = _of_kind(result, "waits-nfs")
    assert servers.keys() == {"127.0.0.2:2050", "127.0.0.5:2050"}
    (disk,) = _of_kind(result, "waits-nbd").values()
    (smb,) = _of_kind(result, "waits-smb").values()
    commands = [each.command for finding in (*servers.values(), disk) for each in finding.remedies]
    pid = case.dump.truth["nbd-pid"].strip()
    # What the guest does in its trial.
    assert {
        *(f"umount --force --no-canonicalize {mount}" for mount in ("/gone", "/silent")),
        f"kill -KILL {pid}",
    } <= set(commands)
    ended = set().union(*(each.tasks for each in (*servers.values(), disk)))
    later = _asleep(case, "aborted").keys()
    assert not ended & later
    (frozen,) = _of_kind(result, "waits-frozen").values()
    # The mount of SMB gives up by itself.
    assert frozen.tasks <= later <= frozen.tasks | smb.tasks
    assert all(each.severity is Severity.WARNING for each in (*servers.values(), disk, smb))


@cases("waits-servers")
def test_the_server_explains_a_silent_disk(case: Case) -> None:
    (stuck,) = _of_kind(analyzed(case.target, "iosched"), "requests-stuck").values()
    assert stuck.part_of == "waits-nbd:nbd0"


@cases("waits-scsi")
def test_all_tasks_end_at_their_host_or_target(case: Case) -> None:
    behind, asleep = _behind(case), _asleep(case)
    host = scsi.HOST, "0 (scsi_debug)"
    target = iscsi.TARGET, "iqn.2026-11.lab:disk at 127.0.0.4, port 3260"
    assert behind.keys() == {host, target}
    assert set().union(*behind.values()) == asleep.keys()
    comms = {root: sorted(asleep[pid] for pid in pids) for root, pids in behind.items()}
    assert comms == {host: ["disk-read"] * 3 + ["scsi_eh_0"], target: ["disk-read"] * 2}


@cases("waits-scsi")
def test_states_are_those_of_the_guest(case: Case, result: Result) -> None:
    (finder,) = (each for each in case.found.finders if isinstance(each, scsi.ScsiHosts))
    hosts = {host.number: host.state.lower() for host in finder.found.hosts.values()}
    assert hosts == dict(enumerate(case.dump.truth["hosts"].split()))
    assert case.dump.truth["devices"].split() == ["running", "blocked"]
    assert [device.state for device in finder.found.devices] == ["RUNNING", "BLOCK"]
    state, name, seconds = case.dump.truth["session"].split()
    assert state == "FAILED"
    (finding,) = _of_kind(result, "waits-iscsi").values()
    assert finding.id.endswith(f":{name}")
    assert f"{seconds} s" in finding.evidence
    assert [*_of_kind(result, "waits-scsi")] == ["host0"]
    assert _of_kind(result, "waits-blocked") == {}


_ADDRESSES = {
    "waits-servers": [f"127.0.0.{last}" for last in (2, 3, 5, 6)],
    "waits-scsi": ["127.0.0.4", "iqn.2026-11.lab:disk"],
}


@pytest.mark.parametrize(
    "case", params({name: FOUND[name][-1:] for name in _ADDRESSES}), indirect=True
)
def test_redacted_capsules_name_no_server(case: Case, tmp_path: Path) -> None:
    """All findings stay; no address is left, neither as text nor in binary."""
    paths, wanted = Capsules.below(tmp_path), [analyses()["waits"]]
    create(case.target, paths.plain, wanted)
    made = create(case.target, paths.redacted, wanted, redact=["names"], key=KEY)
    assert made.unredacted == []
    plain, redacted = (
        analyzed(open_target(str(path)), "waits") for path in (paths.plain, paths.redacted)
    )
    assert [(each.kind, each.tasks) for each in redacted.findings] == [
        (each.kind, each.tasks) for each in plain.findings
    ]
    before, after = pages(paths.plain), pages(paths.redacted)
    for name in _ADDRESSES[case.dump.scenario]:
        forms = [name.encode()]
        forms += [ipaddress.ip_address(name).packed] if name[0].isdigit() else []
        assert any(form in before for form in forms), name
        assert not any(form in after for form in forms), name


_POINTERS = {
    "waits-servers": {
        nfs.CALL: ("struct rpc_task", ("tk_client", "tk_xprt", "tk_rqstp", "tk_task.next")),
        nfs.SERVER: ("struct rpc_xprt", ("xprt_net", "address_strings[0]", "servername")),
        nbd.SERVER: ("struct nbd_device", ("config", "disk")),
        cifs.SERVER: ("struct TCP_Server_Info", ("tcp_ses_list.next", "hostname")),
    },
    "waits-scsi": {
        scsi.HOST: ("struct Scsi_Host", ("__devices.next", "hostt", "ehandler")),
        scsi.BLOCKED: (
            "struct scsi_device",
            ("host", "request_queue", "siblings.next", "sdev_target"),
        ),
        iscsi.TARGET: ("struct iscsi_cls_session", ("sess_list.next", "dd_data")),
    },
}


def _places(case: Case) -> Iterator[int]:
    """Yield the addresses of pointers that lead to roots."""
    graph, prog = case.found.graph, case.target.prog
    for node, kind in enumerate(graph.kind):
        type_, members = _POINTERS[case.dump.scenario].get(kind, ("", ()))
        for member in members:
            yield int(graph.address[node]) + drgn.offsetof(prog.type(type_), member)


@pytest.mark.parametrize(
    "case", params({name: FOUND[name][:1] for name in _POINTERS}), indirect=True
)
def test_bent_pointers_invent_nothing(case: Case) -> None:
    """No task ends at a server that it does not wait for, and none is in a cycle."""
    sound = _behind(case)
    prog = opened(case.dump).prog
    poked, places = Poked(prog), [*_places(case)][:_BENT]
    values = (0xFFFF_C1F0_DEAD_B000, int(case.found.graph.address[0]), 0x5A5A_5A5A_5A5A_5A5A, 0)
    for at, place in enumerate(places):
        poked.word(place, values[at % len(values)])
        damaged = Case.__new__(Case)
        damaged.dump, damaged.found = case.dump, waiting(Kernel(prog))
        damaged.cycles = []
        for (kind, name), pids in _behind(damaged).items():
            if kind in (nfs.SERVER, nbd.SERVER, cifs.SERVER, scsi.HOST, iscsi.TARGET):
                known = [own for (each, _), own in sound.items() if each is kind and pids <= own]
                assert known, (hex(place), kind.value, name, pids)
        poked.restore()
