# SPDX-License-Identifier: LGPL-2.1-or-later
"""When a queue is starved, requests are stuck and tags exhausted, on plain arrays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kcensus.analyses.iosched.kernel import figures as module
from kcensus.analyses.iosched.kernel.figures import Figures, Verdict
from kcensus.analyses.iosched.kernel.findings import scheduler as starved_module
from kcensus.analyses.iosched.kernel.findings import tasks as tasks_module
from kcensus.analyses.iosched.kernel.findings.device import exhausted, frozen, overdue, stuck
from kcensus.analyses.iosched.kernel.findings.scheduler import starved, switches
from kcensus.analyses.iosched.kernel.findings.tasks import blocked
from kcensus.kernel.block.disks import QueueKind
from kcensus.kernel.block.operations import Operations
from kcensus.kernel.block.requests import State
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.results import Finding, Severity
from kcensus.sources import open_target

NONE = np.empty(0, np.int64)
SECOND = 10**9
NOW = 100 * SECOND
QUEUE, OTHER = 0xA000, 0xB000
READ, WRITE, FLUSH, DRV_IN = 0, 1, 2, 34
REALTIME, BEST_EFFORT, IDLE = 1, 2, 3


def figures(**driver: Any) -> Figures:
    """Return one disk with BFQ: two writes that expired 10 s ago, and a request in the driver.

    :param driver: what differs of that request: by default, a read of another queue that was
        allocated 2 s and dispatched 1 s ago
    """
    request = {
        "operation": READ,
        "allocated": 2.0,
        "dispatched": 1.0,
        "at_latest": False,
        "sched_tag": 7,
        "owner": OTHER,
        "late": 10.0,
        "class": BEST_EFFORT,
        "own_class": BEST_EFFORT,
        "is_sync": 0,
        "slice_ms": 0,
    } | driver
    ago = np.array([10.25, 10.0, request["allocated"]])
    requests = SimpleNamespace(
        disk=np.zeros(3, np.int64),
        rows=lambda found: np.where(found < 3, found.astype(np.int64), -1),
        operation=np.array([WRITE, WRITE, request["operation"]]),
        operations=Operations(open_target("sample").prog),
        flags=np.zeros(3, np.uint64),
        is_sync=np.array([True, True, True]),
        state=np.array([State.INSERTED, State.INSERTED, State.DISPATCHED]),
        sched_tag=np.array([5, 6, request["sched_tag"]]),
        private=(np.array([QUEUE, QUEUE, request["owner"]], np.uint64), np.zeros(3, np.uint64)),
        allocated_ns=(NOW - ago * SECOND).astype(np.uint64),
        age_ns=(ago * SECOND).astype(np.int64),
        dispatched_ns=np.array(
            [0, 0, NOW - request["dispatched"] * SECOND if request["dispatched"] else 0], np.uint64
        ),
        in_driver_ns=np.array([-1, -1, request["dispatched"] * SECOND], np.int64),
        is_at_latest=np.array([False, False, request["at_latest"]]),
        late_ns=np.array([request["late"] * SECOND, 9 * SECOND, 0], np.int64),
        waiting_ns=np.array([10.25 * SECOND, 10 * SECOND, -1], np.int64),
        priority_class=np.array([request["own_class"]] * 2 + [request["class"]]),
        priority_level=np.array([4, 4, 4]),
        queue=np.array([0, 0, -1]),
    )
    scheduler = SimpleNamespace(
        scheduler="bfq",
        label=["bfq97A"],
        pid=np.array([0]),
        tunables={"timeout_sync": request["slice_ms"]},
        address=np.array([QUEUE], np.uint64),
        row=np.array([0, 0, 0]),
        # The third is not allocated.
        request=np.array([0, 1, 9], np.uint64),
        late_ns=np.array([request["late"] * SECOND, 9 * SECOND, 90 * SECOND], np.int64),
        expiry_ns=np.array([SECOND // 4]),
        is_sync=np.array([request["is_sync"]]),
        direction=None,
    )
    found = Figures.__new__(Figures)
    plain: dict[str, Any] = {
        "requests": requests,
        "schedulers": (scheduler,),
        "disks": (
            SimpleNamespace(
                kind=QueueKind.MULTI,
                name="sda",
                scheduler="bfq",
                freeze_depth=request.get("freeze", 0),
                quiesce_depth=0,
            ),
        ),
        "stacks": SimpleNamespace(bottom=lambda row: {row}),
        "hardware": SimpleNamespace(disk=np.zeros(1, np.int64), is_stopped=np.array([False])),
        "kernel": SimpleNamespace(
            prog=SimpleNamespace(type=lambda name: SimpleNamespace(has_member=lambda member: True))
        ),
        "clock": SimpleNamespace(ns=NOW, hz=250),
    }
    vars(found).update(plain)
    return found


def test_overtaken_by_a_later_request() -> None:
    (queue,) = figures().queues
    assert (queue.verdict, queue.overtakers.tolist()) == (Verdict.STARVED, [2])
    # The one that is not allocated neither counts nor expired first.
    assert (queue.late_ns, queue.overdue, len(queue.requests)) == (10 * SECOND, 2, 2)
    assert queue.served_ns == 9 * SECOND


@pytest.mark.parametrize(
    "driver",
    [
        {"operation": FLUSH},
        {"operation": DRV_IN},
        {"sched_tag": -1},
        {"owner": QUEUE},
        {"allocated": 10.5},  # before the first was inserted
        {"dispatched": 10.5},  # before it expired
        {"dispatched": 9.995},  # within two ticks
        {"at_latest": True},  # perhaps much earlier
    ],
)
def test_others_that_did_not_overtake(driver: dict[str, Any]) -> None:
    (queue,) = figures(**driver).queues
    assert queue.verdict is Verdict.DEVICE


def test_what_was_dispatched_last_may_have_been_its_own() -> None:
    (queue,) = figures(dispatched=0).queues
    assert (queue.verdict, queue.served_ns) == (Verdict.OVERDUE, 0)


def test_the_kind_is_that_of_the_queue() -> None:
    found = figures()
    (queue,) = found.queues
    assert found.is_async(queue)  # although its requests are synchronous


@pytest.mark.parametrize(
    ("driver", "longest"),
    [
        ({"allocated": 50.0, "dispatched": 40.0}, 40.0),
        ({"allocated": 50.0, "dispatched": 4.0}, 0),
        ({"allocated": 50.0, "dispatched": 4.0, "at_latest": True}, 50.0),
    ],
)
def test_stuck_in_the_driver(driver: dict[str, Any], longest: float) -> None:
    found = [each.figures["longest"].value for each in stuck(figures(**driver), asleep(), 0)]
    assert found == ([longest] if longest else [])


def asleep(*functions: str) -> Any:
    """Return tasks that sleep in functions, and wait for no request."""
    return SimpleNamespace(
        behind=lambda rows: np.empty(0, np.int64),
        waits=SimpleNamespace(function=[*functions]),
        joins=SimpleNamespace(
            wait=np.empty(0, np.int64),
            request=np.empty(0, np.int64),
            is_proven=np.empty(0, np.bool_),
        ),
    )


def found_of(monkeypatch: pytest.MonkeyPatch, **driver: Any) -> dict[str, Finding]:
    """Return what is found out about the disk, in its order."""
    monkeypatch.setattr(starved_module, "tasks", lambda kernel: SimpleNamespace(pid=NONE, comm=[]))
    monkeypatch.setattr(starved_module, "inserted_by", lambda *args: np.array([97, 97, 105]))
    found, sleepers = figures(**driver), asleep()
    every = (
        *stuck(found, sleepers, 0),
        *overdue(found, sleepers, 0),
        *starved(found, sleepers, 0),
    )
    return {each.id: each for each in every}


def test_what_overtook_counts_not_what_the_device_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds late, of which the scheduler caused two, and the device the rest."""
    found = found_of(monkeypatch, allocated=9.0, dispatched=8.0)
    device, scheduler = found.values()
    assert (device.id, device.severity) == ("requests-stuck:sda", Severity.NOTICE)
    assert (device.figures["silent"].value, device.figures["waiting"].value) == (8.0, 2)
    assert (scheduler.id, scheduler.severity) == ("requests-starved:sda-async", Severity.NOTICE)
    assert scheduler.figures["served"].value == 2.0
    assert scheduler.figures["times_expiry"].value == 8.0
    # To switch the scheduler would hang.
    assert scheduler.remedies == ()


def test_starved_while_the_device_works(monkeypatch: pytest.MonkeyPatch) -> None:
    (scheduler,) = found_of(monkeypatch).values()
    assert (scheduler.id, scheduler.severity) == ("requests-starved:sda-async", Severity.WARNING)
    assert "scheduler" in scheduler.remedies[0].command


def test_a_higher_class_is_what_overtook(monkeypatch: pytest.MonkeyPatch) -> None:
    (scheduler,) = found_of(monkeypatch, **{"class": REALTIME}).values()
    assert scheduler.remedies[0].command == "ionice -c best-effort -p 105"
    assert scheduler.remedies[0].undo == "ionice -c realtime -n 4 -p 105"


def test_the_idle_class_waits_by_intention(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_of(monkeypatch, own_class=IDLE) == {}


@pytest.mark.parametrize(
    ("is_sync", "slice_ms", "verdict"),
    [
        (0, 10_000, Verdict.STARVED),
        (1, 10_000, Verdict.DEVICE),  # the other queue had its turn
        (1, 8_000, Verdict.STARVED),  # more than its turn
    ],
)
def test_a_round_of_all_queues_is_fair(is_sync: int, slice_ms: int, verdict: Verdict) -> None:
    (queue,) = figures(is_sync=is_sync, slice_ms=slice_ms).queues
    assert queue.verdict is verdict


def test_an_empty_driver_is_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = found_of(monkeypatch, dispatched=0).values()
    assert (found.id, found.severity) == ("requests-overdue:sda", Severity.CRITICAL)
    assert (found.figures["waiting"].value, found.figures["longest"].value) == (2, 10.25)


def test_a_slow_device_serves_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = found_of(monkeypatch, allocated=11.0).values()
    assert (found.id, found.severity) == ("requests-overdue:sda", Severity.NOTICE)
    assert found.figures["overdue"].value == 2


@pytest.mark.parametrize(
    ("functions", "severity"),
    [((), Severity.WARNING), (("__bio_queue_enter", "schedule"), Severity.WARNING)],
)
def test_a_frozen_queue(functions: tuple[str, ...], severity: Severity) -> None:
    (found,) = frozen(figures(freeze=1), asleep(*functions), 0)
    assert (found.severity, found.figures["requests"].value) == (severity, 3)
    assert found.figures["sleepers"].value == len(functions[:1])


def test_tasks_that_no_request_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "disk_names", lambda *args: ["sda", "", "", "", "sda"])

    class Waits(SimpleNamespace):
        def __len__(self) -> int:
            return 5

    sleepers: Any = asleep()
    sleepers.waits = Waits(
        function=["blk_mq_get_tag", "mutex_lock", "msleep", "mutex_lock", "xfs_buf_lock"],
        kind=[WaitKind.TAG, WaitKind.LOCK, WaitKind.TIMER, WaitKind.LOCK, WaitKind.XFS_BUF],
        since_ns=np.array([130, 20, 300, 9, 500]) * SECOND,
        comm=["a", "b", "c", "d", "e"],
        pid=np.arange(1, 6),
    )
    # The last one waits for a request that is known.
    sleepers.joins.wait = np.array([4])
    (finding,) = blocked(figures(), sleepers)
    assert (finding.id, finding.severity) == ("tasks-blocked", Severity.WARNING)
    assert {name: each.value for name, each in finding.figures.items()} == {
        "sleepers": 2,
        "longest": 130.0,
    }


@pytest.mark.parametrize(
    ("used", "reserved", "queues", "tags"),
    [
        ([range(4), range(4)], 0, 2, 8),
        ([range(4), range(2)], 0, 1, 4),  # the other one has tags left
        ([range(1, 4), range(2)], 1, 1, 3),  # the reserved one is free
        ([range(3), range(2)], 1, 0, 0),  # an ordinary one is
    ],
)
def test_tags(used: list[range], reserved: int, queues: int, tags: int) -> None:
    found = figures()
    sets = SimpleNamespace(
        address=np.array([0x10, 0x20], np.uint64),
        rows=lambda found: (found // 0x10).astype(np.int64) - 1,
        depth=np.array([4, 4]),
        reserved=np.array([reserved, reserved]),
        bit_row=np.repeat([0, 1], [len(each) for each in used]),
        bit_tag=np.concatenate([np.array(each) for each in used]),
    )
    hardware: Any = SimpleNamespace(
        disk=np.zeros(2, np.int64), tags=np.array([0x10, 0x20], np.uint64), tag_sets=sets
    )
    found.hardware = hardware
    assert found.exhausted(0) == (queues, tags)
    assert [each.figures["tags"].value for each in exhausted(found, 0)] == [tags] * bool(tags)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("sda", "/sys/block/sda/queue/scheduler"),
        ("cciss/c0d0", "'/sys/block/cciss!c0d0/queue/scheduler'"),
        ("sda;reboot", ""),
        ("$(reboot)", ""),
        ("", ""),
    ],
)
def test_commands_name_only_plain_disks(name: str, file: str) -> None:
    disk: Any = SimpleNamespace(name=name, scheduler="bfq", kind=QueueKind.MULTI)
    commands = [each.command for each in switches(disk)]
    assert commands == ([f"echo mq-deadline > {file}"] if file else [])


def test_files_are_not_those_of_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Direct I/O may read into a file that is mapped; only the others' paths are looked up."""
    looked_up = []

    def paths(kernel: Any, inodes: Any, faults: Any) -> dict[int, str]:
        looked_up.extend(inodes.tolist())
        return {0x11: "/written", 0x22: "/buffer", 0x33: "/second"}

    class Bios(SimpleNamespace):
        def __len__(self) -> int:
            return 2

    monkeypatch.setattr(module, "file_paths", paths)
    found = figures()
    plain: dict[str, Any] = {
        "kernel": None,
        "owners": ["xfs_end_bio", "iomap_dio_bio_end_io", ""],
        "first_bio": np.array([0, 1, -1]),
        "bios": Bios(
            page_bio=np.array([0, 0, 1]),
            inode=np.array([0x11, 0x33, 0x22], np.uint64),
            faults=None,
        ),
    }
    vars(found).update(plain)
    assert found.files == ["/written", "", ""]
    assert looked_up == [0x11, 0, 0]


def test_no_undo_of_a_scheduler_with_a_damaged_name() -> None:
    disk: Any = SimpleNamespace(name="sda", scheduler="b;reboot", kind=QueueKind.MULTI)
    assert [each.undo for each in switches(disk)] == [""]
