# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guests with a slow disk: their steps, the limit that the host sets, and what they report."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab import dumps, image, scenario
from tests.lab.debian.machines import AMD64, architecture
from tests.lab.host import LabError
from tests.lab.qemu import THROTTLED, Machine
from tests.lab.truth import io

KERNEL: Any = SimpleNamespace(
    nodes=1,
    closure=lambda _: [],
    release="6.1",
    version="1",
    machine=AMD64,
    cpu="",
    architecture=architecture(AMD64),
)


def test_a_disk_is_read_before_the_dump_and_its_traces_are_kept_after_it() -> None:
    case = scenario.load("iosched-bfq", "6.1")
    steps = image.guest_steps(KERNEL, case)
    said = [(step.verb, *step.arguments[:1]) for step in steps]
    last = said.index(("record-output", "disks.last"))
    assert said.index(("truth-again", "throttle 0")) < said.index(("record-output", "disks.first"))
    assert said.index(("truth", "before")) < last < said.index(("wait", "busy"))
    assert said[last + 1 : last + 3] == [("record-output", "tasks.last"), ("truth-again", "last")]
    assert said.index(("truth-again", "after")) < said.index(("run", "/bin/tar"))
    assert "bfq" in case.modules
    assert {path.name for path in image.program_sources(case)} == {"io-load.c", "io-truth.c"}


def test_guests_without_a_disk_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    without = scenario.load("one", "6.1")
    steps = image.guest_steps(KERNEL, without)
    assert image.program_sources(without) == []
    assert not any("io-truth" in step.line() for step in steps)
    cases = [without, scenario.load("iosched-bfq", "6.1")]
    keys = [dumps._key(KERNEL, case) for case in cases]
    sources = {False: [], True: [Path(__file__)]}
    monkeypatch.setattr(image, "program_sources", lambda case, _: sources[bool(case.disk)])
    again = [dumps._key(KERNEL, case) for case in cases]
    assert [key == other for key, other in zip(keys, again, strict=True)] == [True, False]


def test_a_disk_needs_a_dump_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "_DIRECTORY", tmp_path)
    text = 'memory = 1\nformats = ["kdump-elf"]\ndisk = { size = 1, depth = 8 }\n'
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(LabError):
        scenario.load("wrong", "6.1")


@pytest.fixture
def machine() -> Iterator[tuple[Machine, socket.socket, socket.socket]]:
    tested = Machine.__new__(Machine)
    tested._serial, serial = socket.socketpair()
    tested._qmp, qmp = socket.socketpair()
    tested._received, tested._answers = bytearray(), bytearray()
    tested._deadline = time.monotonic() + 10
    with serial, qmp, tested._serial, tested._qmp:
        yield tested, serial, qmp


@pytest.mark.parametrize(("iops", "limit"), [(100, {"iops": 100, "bps": 0}), (0, {"bps": 1})])
def test_the_guest_asks_for_a_limit(
    iops: int, limit: dict[str, int], machine: tuple[Machine, socket.socket, socket.socket]
) -> None:
    tested, serial, qmp = machine
    serial.sendall(b"\nBEGIN throttle %d\nFILE early 2\nabEND throttle %d\n" % (iops, iops))
    serial.sendall(b"\nBEGIN before\nFILE late 3\ncdeEND before\n")
    qmp.sendall(b'{"return": {}}\n')
    assert tested.phase("before") == {"early": "ab", "late": "cde"}
    command = json.loads(qmp.recv(4096))
    assert command["execute"] == "block_set_io_throttle"
    assert command["arguments"].items() >= {"device": THROTTLED, **limit}.items()
    assert serial.recv(16) == b"\n"


_BUSY = (
    "ffff8a4013d18480 {.op=READ, .cmd_flags=, .rq_flags=STARTED|IO_STAT, .state=in_flight, "
    ".tag=4, .internal_tag=3}\n"
    "ffff8a4013d18900 {.op=WRITE, .cmd_flags=SYNC|META, .rq_flags=FLUSH_SEQ, .state=idle, "
    ".tag=-1, .internal_tag=6}\n"
)


def packed(**files: str) -> str:
    return "".join(
        f"FILE {path} {len(text.encode(errors='surrogateescape'))}\n{text}"
        for path, text in files.items()
    )


def _truth(which: str, seconds: int, **changed: str) -> dict[str, str]:
    debug, queue = "/sys/kernel/debug/block/vda", "/sys/block/vda/queue"
    clocks = f"monotonic {seconds}.000000007\nboottime 1.0\n"
    disks = {
        "clocks": clocks,
        "/sys/block/vda/inflight": "       2        1\n",
        "/sys/block/vda/stat": f"{seconds}\n",
        f"{debug}/hctx0/busy": _BUSY,
        f"{debug}/hctx0/run": f"{seconds}\n",
        f"{debug}/hctx0/tags_bitmap": "00000000: 1d00 0000 0080\n",
        f"{debug}/rqos/wbt/inflight": "0: inflight 0\n",
        f"{queue}/scheduler": "none [mq-deadline] kyber\n",
        f"{queue}/iosched/fifo_batch": "16\n",
    }
    tasks = {
        "clocks": clocks,
        "/proc/7/comm": "a \udcff)\nb\n",
        "/proc/7/wchan": "xfs_buf_lock",
        "/proc/7/stack": "[<0>] xfs_buf_lock+0x10/0x20\n[<0>] open.part.0+0x1/0x2\n",
        "/proc/7/status": f"State:\tD (disk sleep)\nvoluntary_ctxt_switches:\t{seconds}\n",
        "/proc/9/comm": "gone\n",
    }
    for files in (disks, tasks):
        files.update({path: text for path, text in changed.items() if path in files})
    return {f"disks.{which}": packed(**disks), f"tasks.{which}": packed(**tasks)}


def test_requests_and_tasks_of_a_guest() -> None:
    found = io.read(_truth("last", 12))
    assert found.monotonic_ns == 12_000_000_007
    disk = found.disks["vda"]
    assert (list(found.disks), disk.scheduler, disk.inflight) == (["vda"], "mq-deadline", (2, 1))
    assert disk.settings["iosched/fifo_batch"] == "16"
    assert disk.tags("hctx0/tags_bitmap") == {0, 2, 3, 4, 47}
    assert list(disk.requests) == ["hctx0/busy"]
    first, second = disk.requests["hctx0/busy"]
    assert (first.address, first.op, first.flags) == (0xFFFF8A4013D18480, "READ", frozenset())
    assert (first.state, first.tag, first.internal_tag) == ("in_flight", 4, 3)
    assert (second.flags, second.tag) == (frozenset({"SYNC", "META"}), -1)
    task = found.tasks[7]
    assert (task.comm, task.stack) == ("a \udcff)\nb", ("xfs_buf_lock", "open.part.0"))
    assert task.status["State"] == "D (disk sleep)"
    assert found.tasks[9].stack == ()


def test_requests_before_the_kernel_has_random_numbers() -> None:
    [request, _] = io.requests(_BUSY.replace("ffff8a4013d18480", "(____ptrval____)"))
    assert (request.address, request.tag) == (0, 4)


def test_what_moved_between_the_reads() -> None:
    first = _truth("first", 12)
    assert io.moved(first | _truth("last", 15)) == []
    changed = {"/sys/block/vda/inflight": "1 1\n", "/proc/9/comm": "other\n"}
    assert io.moved(first | _truth("last", 15, **changed)) == sorted(changed)


def test_a_throttled_writer_may_be_caught_awake() -> None:
    stack = {"/proc/7/stack": "[<0>] balance_dirty_pages+0x1/0x2\n"}
    first, last = _truth("first", 12), _truth("last", 15, **stack)
    assert io.moved(first | last) == []
