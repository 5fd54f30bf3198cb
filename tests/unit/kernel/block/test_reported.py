# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages of the log about disks that do not answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kcensus.kernel.block import reported as module
from kcensus.kernel.block.reported import Messages, Reported, log_advice, log_evidence, parse
from kcensus.kernel.tasks.hung import Hang
from kcensus.results import Machine

_LINES = [
    (1.0, "nvme nvme1: Shutdown timeout set to 10 seconds"),
    (10.0, "nvme nvme0: I/O 12 QID 3 timeout, aborting"),
    (40.0, "nvme nvme0: I/O tag 12 (100c) opcode 0x2 (I/O Cmd) QID 3 timeout, reset controller"),
    (41.0, "sd 2:0:0:0: [sdb] tag#5 timing out command, waited 180s"),
    (42.0, "sd 2:0:0:0: [sdb] tag#5 FAILED Result: hostbyte=DID_TIME_OUT driverbyte=DRIVER_OK"),
    (43.0, "I/O error, dev vda, sector 4096 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2"),
    (None, "block nbd1: Possible stuck request 0x12: control (read@0,4096B). Runtime 30 seconds"),
    (44.0, "sd 2:0:0:0: [sdc] Attached SCSI disk"),
    (45.0, "INFO: task dd:12 blocked for more than 122 seconds."),
    (46.0, "INFO: task dd:12 blocked for more than 245 seconds."),
]


def test_messages_by_disk() -> None:
    found = parse(_LINES)
    counts = {name: (own.count, own.stamp) for name, own in found.disks.items()}
    assert counts == {"nvme0": (2, 40.0), "sdb": (2, 42.0), "vda": (1, 43.0), "nbd1": (1, -1.0)}
    assert found.hung == {12: Hang(46.0, 245)}


@pytest.mark.parametrize(
    ("disk", "pids", "start"),
    [
        ("nvme0n1", (), 'the log has 2 messages about nvme0, the last 10.0 s before the dump: "'),
        ("nvme0c1n1", (13,), "the log has 2 messages about nvme0, "),
        ("sdb", (12, 13), "the log reports 1 of these tasks as blocked for more than 4 min 5 s"),
        ("nvme00", (), ""),
    ],
)
def test_a_phrase_about_a_disk(
    monkeypatch: pytest.MonkeyPatch, disk: str, pids: tuple[int, ...], start: str
) -> None:
    known = Reported(
        {"nvme0": Messages(2, 40.0, "nvme nvme0: I/O 12 QID 3 timeout")}, {12: Hang(46.0, 245)}
    )
    monkeypatch.setattr(module, "reported", lambda _: known)
    monkeypatch.setattr(module, "present", lambda _, hangs: dict.fromkeys(hangs, 245))
    monkeypatch.setattr(module, "tasks", lambda _: SimpleNamespace(now_ns=50 * 10**9))
    kernel: Any = None  # no reader looks at it
    found = log_evidence(kernel, disk, pids)
    assert found.startswith(start)
    assert bool(found) == bool(start)


def _advice(
    monkeypatch: pytest.MonkeyPatch, *lines: str, names: list[str], has_pseudonyms: bool = False
) -> str:
    """The advice about a disk that is late for 20 s, 100 s after boot; lines are from 90 s on."""
    stamped = [(1.0, "Linux version"), *((90.0 + at, line) for at, line in enumerate(lines))]
    monkeypatch.setattr("kcensus.kernel.log.records", lambda _: stamped)
    monkeypatch.setattr(module, "tasks", lambda _: SimpleNamespace(now_ns=100 * 10**9))
    disk: Any = SimpleNamespace(name=names[0])
    monkeypatch.setattr(module, "_names", lambda *_: names)
    known = Machine(time=1_000_000_100.0, uptime_seconds=100.0)
    monkeypatch.setattr(module, "machine", lambda _: known)
    kernel: Any = SimpleNamespace(prog=None, live=True, _read={}, has_pseudonyms=has_pseudonyms)
    return log_advice(kernel, disk, 20.0)


@pytest.mark.parametrize(
    "line",
    [
        "sd 2:0:0:0: Power-on or device reset occurred",
        "XFS (sdb1): metadata I/O error",
        "scsi host2: iSCSI session recovery",
        " connection1:0: detected conn error (1020)",
    ],
)
def test_lines_about_a_disk_are_quoted(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    names = ["sdb", "2:0:0:0", "host2", "connection1:0"]
    found = _advice(monkeypatch, line, "sd 2:0:0:0: [sdb] Attached SCSI disk", names=names)
    assert f'"90.00 s: {line.strip()}"' in found
    assert "Attached" not in found


def test_only_the_last_lines_are_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"nvme nvme0: reset {number} {'x' * 200}" for number in range(5)]
    found = _advice(monkeypatch, *lines, names=["nvme0n1", "nvme0"])
    assert "the last of 5 lines" in found
    assert [f"reset {number}" in found for number in range(5)] == [False, False, True, True, True]
    assert len(found) < 500


@pytest.mark.parametrize(
    "line",
    [
        "sd 12:0:0:0: Power-on or device reset occurred",
        "XFS (sdbc): metadata I/O error",
        "task:kworker/sdb   state:D",
        "Workqueue: xfs-cil/sdb xlog_cil_push_work [xfs]",
        " scsi_eh_ready_devs+0x6d4/0xc80 [host2]",
    ],
)
def test_a_log_without_lines_about_a_disk(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    found = _advice(monkeypatch, line, names=["sdb", "2:0:0:0", "host2"])
    assert "sdb (2:0:0:0, host2) between 75.0 s and 100.0 s" in found
    assert "2001-09-09 01:47:55 to 01:48:20 UTC" in found
    assert "hypervisor" not in found
    for names in (["vda"], ["vdz", "virtio0"]):
        assert "administrator of the hypervisor" in _advice(monkeypatch, line, names=names)


@pytest.mark.parametrize(
    ("name", "line", "is_about"),
    [
        ("nbd1", "block nbd1: Connection timed out", True),
        ("nbd1", "block nbd12: Connection timed out", False),
        ("dm-1", "Buffer I/O error on dev dm-12, logical block 0", False),
        ("nvme0n1", "EXT4-fs (nvme0n1p2): I/O error", True),
        ("nvme0n1", "EXT4-fs (nvme0n12): I/O error", False),
        ("sda", "EXT4-fs (sda12): I/O error", True),
    ],
)
def test_partitions_have_the_name_of_their_disk(
    monkeypatch: pytest.MonkeyPatch, name: str, line: str, is_about: bool
) -> None:
    assert (line in _advice(monkeypatch, line, names=[name])) == is_about


def test_names_in_a_redacted_log_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _advice(monkeypatch, "sd 2:0:0:0: reset", names=["sdb"], has_pseudonyms=True)
    assert found.startswith("Look in the kernel log")
