# SPDX-License-Identifier: LGPL-2.1-or-later
"""When a queue is starved, requests are stuck and tags exhausted, on plain arrays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

from kcensus.analyses.iosched.kernel import figures as module
from kcensus.analyses.iosched.kernel import findings as findings_module
from kcensus.analyses.iosched.kernel import tasks as tasks_module
from kcensus.analyses.iosched.kernel.figures import Figures, Verdict
from kcensus.analyses.iosched.kernel.findings import scheduler as starved_module
from kcensus.analyses.iosched.kernel.findings.device import exhausted, frozen, overdue, stuck
from kcensus.analyses.iosched.kernel.findings.scheduler import starved, switches
from kcensus.analyses.iosched.kernel.tasks import blocked
from kcensus.arch.model import UPPER_HALF
from kcensus.kernel.block.disks import QueueKind
from kcensus.kernel.block.operations import Operations
from kcensus.kernel.block.reported import Reported, reported
from kcensus.kernel.block.requests import State
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.waiting.graph import Builder
from kcensus.results import Finding, Severity
from kcensus.sources import open_target
from tests.leads import references
from tests.unit.readers import set_read

NONE = np.empty(0, np.int64)
SECOND = 10**9
NOW = 100 * SECOND
QUEUE, OTHER, _SDA = 0xA000, 0xB000, 0xC000
READ, WRITE, FLUSH, DRV_IN = 0, 1, 2, 34
REALTIME, BEST_EFFORT, IDLE = 1, 2, 3


def figures(**driver: Any) -> Figures:
    """Return one disk with BFQ: two writes that expired 10 s ago, and a request in the driver.

    :param driver: what differs of that request: by default, a read of another queue that was
        allocated 2 s and dispatched 1 s ago
    """
    request: dict[str, Any] = {"operation": READ, "allocated": 2.0, "dispatched": 1.0}
    request |= {"at_latest": False, "sched_tag": 7, "owner": OTHER, "late": 10.0, "slice_ms": 0}
    request |= {"class": BEST_EFFORT, "own_class": BEST_EFFORT, "is_sync": 0} | driver
    dispatched_ns = NOW - request["dispatched"] * SECOND if request["dispatched"] else 0
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
        dispatched_ns=np.array([0, 0, dispatched_ns], np.uint64),
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
    freeze = {"freeze_depth": request.get("freeze", 0), "quiesce_depth": 0}
    disk = SimpleNamespace(
        kind=QueueKind.MULTI, name="sda", address=_SDA, scheduler="bfq", **freeze
    )
    found = Figures.__new__(Figures)
    plain: dict[str, Any] = {
        "requests": requests,
        "schedulers": (scheduler,),
        "disks": (disk,),
        "stacks": SimpleNamespace(bottom=lambda row: {row}, lower=lambda row: []),
        "waiting": SimpleNamespace(causes={}, graph=Builder().graph(), finders=()),
        "hardware": SimpleNamespace(disk=np.zeros(1, np.int64), is_stopped=np.array([False])),
        "kernel": SimpleNamespace(
            memory=SimpleNamespace(places=UPPER_HALF),
            _read={},
            has_pseudonyms=True,
            untyped_modules=frozenset(),
            prog=SimpleNamespace(type=lambda name: SimpleNamespace(has_member=lambda member: True)),
        ),
        "clock": SimpleNamespace(ns=NOW, hz=250),
        "inserted_by": np.array([97, 97, 105]),
        "waits": SimpleNamespace(
            function=request.get("functions", ()),
            kind=[],
            disk=np.empty(0, np.uint64),
            pid=NONE,
            since_ns=NONE,
        ),
        "joins": SimpleNamespace(wait=NONE, request=NONE, is_proven=np.empty(0, np.bool_)),
    }
    vars(found).update(plain)
    set_read(plain["kernel"], reported, Reported())
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
    found = figures(dispatched=0)
    (queue,) = found.queues
    assert (queue.verdict, queue.served_ns) == (Verdict.OVERDUE, 0)
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
    found = [each.figures["longest"].value for each in stuck(figures(**driver), 0)]
    assert found == ([longest] if longest else [])


def found_of(monkeypatch: pytest.MonkeyPatch, **driver: Any) -> dict[str, Finding]:
    monkeypatch.setattr(starved_module, "tasks", lambda kernel: SimpleNamespace(pid=NONE, comm=[]))
    found = figures(**driver)
    return {each.id: each for kind in (stuck, overdue, starved) for each in kind(found, 0)}


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


@pytest.mark.parametrize(("dispatched", "expected"), [(8.0, "CRITICAL"), (1.0, "NOTICE")])
def test_a_silent_device_comes_before_what_it_prolongs(
    dispatched: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Finding(id="requests-starved:sda-async", severity=Severity.CRITICAL, title="")
    device = Finding(id="requests-stuck:sda", severity=Severity.NOTICE, title="")
    monkeypatch.setattr(findings_module, "starved", lambda figures, row: [late])
    monkeypatch.setattr(findings_module, "stuck", lambda figures, row: [device])
    monkeypatch.setattr(findings_module, "exhausted", lambda figures, row: ())
    monkeypatch.setattr(findings_module, "blocked", lambda figures, ids: ())
    made = findings_module.findings(figures(allocated=9.0, dispatched=dispatched))
    assert {each.id: each.severity.name for each in made} == {
        "requests-stuck:sda": expected, "requests-starved:sda-async": "CRITICAL"
    }  # fmt: skip
    assert made[0].id == (device.id if expected == "CRITICAL" else late.id)


def test_what_keeps_a_disk_explains_its_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Finding(id="tags-exhausted:sda", severity=Severity.INFO, title="", part_of="device")
    device = Finding(id="requests-stuck:sda", severity=Severity.NOTICE, title="")
    for kind, found in (("stuck", device), ("exhausted", part)):
        monkeypatch.setattr(findings_module, kind, lambda figures, row, found=found: [found])
    for kind in ("starved", "blocked"):
        monkeypatch.setattr(findings_module, kind, lambda figures, row: ())
    known = figures(allocated=9.0, dispatched=8.0)
    known.waiting.causes[_SDA] = "waits-nbd:sda"
    made = {each.id: each.part_of for each in findings_module.findings(known)}
    assert made == {"requests-stuck:sda": "waits-nbd:sda", "tags-exhausted:sda": "device"}


def test_pids_in_a_row_are_a_range() -> None:
    words = starved_module._words([7, 9, 10, 11, 20, 21, 22, 23, 24])
    assert words == "7 9 10 11 $(seq 20 24)"


def test_starved_while_the_device_works(monkeypatch: pytest.MonkeyPatch) -> None:
    (scheduler,) = found_of(monkeypatch).values()
    assert (scheduler.id, scheduler.severity) == ("requests-starved:sda-async", Severity.WARNING)
    assert "scheduler" in scheduler.remedies[0].command


def test_a_higher_class_overtakes_and_the_idle_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    (scheduler,) = found_of(monkeypatch, **{"class": REALTIME}).values()
    assert scheduler.remedies[0].command == "ionice -t -c best-effort -p 105"
    assert scheduler.remedies[0].undo == "ionice -t -c realtime -n 4 -p 105"
    # Without the PIDs, there is no command, but a table of the tasks.
    monkeypatch.setattr(starved_module, "_MAX_PIDS", 0)
    scheduler = found_of(monkeypatch, **{"class": REALTIME})["requests-starved:sda-async"]
    assert scheduler.remedies == ()
    assert references(scheduler) == ["kcensus iosched TARGET --table request_owners"]
    assert found_of(monkeypatch, own_class=IDLE) == {}


def test_no_remedy_helps_while_the_device_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = {"class": REALTIME, "allocated": 9.0, "dispatched": 8.0}
    found = found_of(monkeypatch, **driver)
    remedy, setter = found["requests-starved:sda-async"].remedies
    other, same = found_of(monkeypatch, **{"class": REALTIME})[
        "requests-starved:sda-async"
    ].remedies
    assert remedy.command == other.command
    assert "device" in remedy.effect
    assert "device" not in other.effect
    assert setter == same


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


@pytest.mark.parametrize("functions", [(), ("__bio_queue_enter", "schedule")])
def test_a_frozen_queue(functions: tuple[str, ...]) -> None:
    (found,) = frozen(figures(freeze=1, functions=functions), 0)
    assert (found.severity, found.figures["requests"].value) == (Severity.WARNING, 3)
    assert found.figures["sleepers"].value == len(functions[:1])


class Waits(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.kind)


def test_tasks_that_no_request_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "disk_names", lambda *args: ["sda", "", "", "", "", "sda"])
    monkeypatch.setattr(tasks_module, "behind_tasks", lambda *args: NONE)
    found: Any = figures()
    found.waits = Waits(
        function=["blk_mq_get_tag", "mutex_lock", "msleep", "mutex_lock", "pipe_write", "xfs_buf"],
        kind=[*(WaitKind[name] for name in ("TAG", "LOCK", "TIMER", "LOCK", "PIPE", "XFS_BUF"))],
        is_timed=np.array([False, False, True, False, False, False]),
        since_ns=np.array([130, 20, 300, 9, 40, 500]) * SECOND,
        comm=["a", "b", "c", "d", "e", "f"],
        pid=np.arange(1, 7),
    )
    # The last one waits for a request that is known.
    found.joins.wait = np.array([5])
    (finding,) = blocked(found)
    assert (finding.id, finding.severity) == ("tasks-blocked", Severity.WARNING)
    assert [finding.figures[key].value for key in ("sleepers", "longest")] == [3, 130.0]
    assert WaitKind.PIPE.words in finding.evidence


@pytest.mark.parametrize("kind", WaitKind)
def test_tasks_that_wait_for_an_object_of_any_kind(
    kind: WaitKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_module, "disk_names", lambda *args: [""])
    monkeypatch.setattr(tasks_module, "behind_tasks", lambda *args: NONE)
    found: Any = figures()
    found.waits = Waits(
        function=["f"],
        kind=[kind],
        is_timed=np.array([False]),
        since_ns=np.array([130]) * SECOND,
        comm=["a"],
        pid=np.array([1]),
    )
    (finding,) = blocked(found)
    assert kind.words
    assert kind.words in finding.evidence


@pytest.mark.parametrize(
    ("ids", "kinds", "part_of"),
    [
        ({"tags-exhausted:sda"}, [WaitKind.TAG] * 2, "tags-exhausted:sda"),
        ({"tags-exhausted:sdb"}, [WaitKind.TAG] * 2, ""),
        ({"tags-exhausted:sda"}, [WaitKind.TAG, WaitKind.LOCK], ""),
    ],
)
def test_tasks_without_a_tag_are_part_of_the_finding_that_there_is_none(
    ids: set[str], kinds: list[WaitKind], part_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_module, "disk_names", lambda *args: ["sda", "sda"])
    monkeypatch.setattr(tasks_module, "behind_tasks", lambda *args: NONE)
    found: Any = figures()
    found.waits = Waits(
        function=["blk_mq_get_tag"] * 2,
        kind=kinds,
        is_timed=np.zeros(2, np.bool_),
        since_ns=np.array([30, 20]) * SECOND,
        comm=["a", "b"],
        pid=np.arange(1, 3),
    )
    found.stacks.lower = lambda row: [0]
    (finding,) = blocked(found, ids)
    assert (finding.part_of, finding.tasks) == (part_of, frozenset({1, 2}))
    assert "sda is stacked on sda" in finding.evidence


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
    hardware = SimpleNamespace(disk=np.zeros(2, np.int64), tags=sets.address, tag_sets=sets)
    vars(found)["hardware"] = hardware
    assert found.exhausted(0) == (queues, tags)
    assert [each.figures["tags"].value for each in exhausted(found, 0)] == [tags] * bool(tags)


@pytest.mark.parametrize(
    ("name", "scheduler", "file", "undo"),
    [
        ("sda", "bfq", "/sys/block/sda/queue/scheduler", True),
        ("cciss/c0d0", "bfq", "'/sys/block/cciss!c0d0/queue/scheduler'", True),
        ("sda", "b;reboot", "/sys/block/sda/queue/scheduler", False),
        ("sda;reboot", "bfq", "", False),
        ("$(reboot)", "bfq", "", False),
        ("", "bfq", "", False),
    ],
)
def test_commands_have_only_plain_names(name: str, scheduler: str, file: str, undo: bool) -> None:
    disk: Any = SimpleNamespace(name=name, scheduler=scheduler, kind=QueueKind.MULTI)
    commands = [(each.command, each.undo) for each in switches(disk)]
    back = f"echo {scheduler} > {file}" if undo else ""
    assert commands == ([(f"echo mq-deadline > {file}", back)] if file else [])


def test_files_are_not_those_of_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Direct I/O may read into a file that is mapped; only the others' paths are looked up."""
    inodes = np.uint64(0xFFFF_8881_0000_0000) + np.array([0x11, 0x33, 0x22], np.uint64)
    paths = Mock(
        return_value=dict(zip(inodes.tolist(), ("/written", "/second", "/buffer"), strict=True))
    )
    monkeypatch.setattr(module, "file_paths", paths)
    bios = MagicMock(page_bio=np.array([0, 0, 1]), inode=inodes)
    bios.__len__.return_value = 2
    found = figures()
    owners = ["xfs_end_bio", "iomap_dio_bio_end_io", ""]
    vars(found).update(owners=owners, first_bio=np.array([0, 1, -1]), bios=bios)
    assert found.files == ["/written", "", ""]
    assert paths.call_args.args[1].tolist() == [inodes[0], 0, 0]
