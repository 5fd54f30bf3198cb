# SPDX-License-Identifier: LGPL-2.1-or-later
"""What memory tells about starved requests, on real kernels whose scheduler was made to starve."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

import drgn
import pytest

from kcensus.analyses import Analysis
from kcensus.analyses.iosched.kernel.figures import Figures, Verdict
from kcensus.analyses.iosched.kernel.run import of_kernel
from kcensus.capsule import create
from kcensus.kernel.block import MODULES
from kcensus.kernel.kernel import Kernel
from kcensus.results import CheckStatus, Severity
from kcensus.sources import Target, open_target
from tests.lab import build
from tests.lab.truth import io
from tests.vm.iosched.cases import SCHEDULERS, STARVED, usually
from tests.vm.oracles import block as oracle
from tests.vm.oracles import waits

pytestmark = usually

_ANALYSIS = Analysis(
    name="iosched",
    question="what is starved?",
    runner="kcensus.analyses.iosched.kernel.run:of_kernel",
    modules=MODULES,
)


def _target(kernel: str, scenario: str) -> Target:
    dump = build(kernel, scenario)
    target = open_target(str(dump.formats["elf"]), dump.debug)
    target.need_modules(*MODULES)
    return target


@pytest.mark.parametrize("scenario", STARVED)
def test_starved_writes_are_named_first(kernel: str, scenario: str) -> None:
    figures = Figures(Kernel(_target(kernel, scenario).prog))
    answer = of_kernel(figures.kernel)
    first, *_ = answer.findings
    assert first.id == "requests-starved:vda-async"
    assert first.severity >= Severity.NOTICE
    starved = [
        queue
        for queue in figures.queues
        if queue.verdict is Verdict.STARVED and figures.is_async(queue)
    ]
    worst = max(starved, key=lambda queue: queue.served_ns)
    assert worst.late_ns > figures.expiry_ns(worst)
    assert float(first.figures["late"].value or 0) == worst.late_ns / 1e9


@pytest.mark.parametrize("scenario", STARVED)
def test_who_sleeps_behind_the_first_finding_is_proven(kernel: str, scenario: str) -> None:
    """The guest's stacks, and pointers followed one by one, say the same as the finding."""
    dump, target = build(kernel, scenario), _target(kernel, scenario)
    prog, answer = target.prog, of_kernel(Kernel(target.prog))
    first, sleepers = answer.findings[0], answer.tables["sleepers"].frame
    assert first.id == "requests-starved:vda-async"
    lists = oracle.queues(oracle.disk(prog, "vda"))
    pointer = prog.type("struct request *")
    queues = [[drgn.Object(prog, pointer, rq) for rq in own] for own in lists.values()]
    # The queue whose asynchronous writes were inserted first.
    starved = [own for own in queues if not oracle.is_sync(own[0])]
    (queue,) = starved if len(starved) == 1 else [min(starved, key=_oldest)]
    assert f"The queue {_label(queue[0])} " in first.evidence
    assert f" holds {len(queue):,} writes" in first.evidence
    owners: dict[int, set[int]] = {}
    for rq in itertools.chain(*starved):
        for bio in oracle.bios(rq):
            owners.setdefault(int(oracle.origin(bio).bi_private), set()).add(int(rq))
    tasks = waits.sleepers(prog)
    seen = io.read(dump.truth).tasks
    behind = {
        pid
        for pid, task in seen.items()
        if "xfs_buf_lock" in task.stack and _waits_for(prog, tasks[pid], owners)
    }
    assert behind
    rows = sleepers[sleepers["pid"].isin(behind)]
    assert len(rows) == len(behind)
    assert set(rows["link"]) == {"proven"}
    assert set(rows["function"]) == {"xfs_buf_lock"}
    for buffer, rq in zip(rows["object"].tolist(), rows["request_address"].tolist(), strict=True):
        assert rq in owners[buffer]
    (pids,) = re.findall(r"look-up \(PID ([\d, ]+)[^)]*\) in xfs_buf_lock for", first.evidence)
    assert {int(pid) for pid in re.findall(r"\d+", pids)} <= behind
    assert "(likely)" not in first.evidence
    assert int(first.figures["sleepers"].value or 0) >= len(behind)


def _oldest(queue: list[drgn.Object]) -> int:
    return min(int(rq.start_time_ns) for rq in queue)


def _label(rq: drgn.Object) -> str:
    """Return the name of the queue of a request, as the scheduler's messages have it."""
    prog, elevator = rq.prog_, rq.q.elevator.type.elevator_name.string_()
    if elevator != b"bfq":
        return "write" if _is_old(prog) else "BE write"
    queue = drgn.cast("struct bfq_queue *", rq.elv.priv[1])
    return f"bfq{'SHARED' if int(queue.pid) < 0 else int(queue.pid)}A"


def _is_old(prog: drgn.Program) -> bool:
    """Return whether mq-deadline has one queue for all priorities."""
    return not prog.type("struct deadline_data", "mq-deadline.c").has_member("per_prio")


def _waits_for(prog: drgn.Program, task: drgn.Object, buffers: Iterable[int]) -> bool:
    """Return whether a task is on the list of waiters of one of some XFS buffers."""
    return any(waits.is_waiter(prog, "struct xfs_buf", buffer, task) for buffer in buffers)


@pytest.mark.parametrize("scenario", SCHEDULERS)
def test_checks_agree_and_nothing_is_missing(kernel: str, scenario: str) -> None:
    answer = of_kernel(Kernel(_target(kernel, scenario).prog))
    # In older kernels, blk-mq does not use the counters of disks.
    statuses = {check.status for check in answer.checks}
    assert CheckStatus.AGREE in statuses
    assert statuses <= {CheckStatus.AGREE, CheckStatus.ABSENT}, answer.checks
    assert answer.gaps == []
    assert answer.summary["requests"].value == len(answer.tables["requests"].frame)
    assert answer.summary["clock"].value in ("timekeeper", "idle")


@pytest.mark.usually("7.3")
def test_a_capsule_replays_it(kernel: str, tmp_path: Path) -> None:
    target = _target(kernel, "iosched-starved")
    create(target, tmp_path / "capsule", [_ANALYSIS])
    answers = [
        of_kernel(Kernel(prog))
        for prog in (target.prog, open_target(str(tmp_path / "capsule")).prog)
    ]
    assert answers[0].summary == answers[1].summary
    assert answers[0].findings == answers[1].findings
    for name, table in answers[0].tables.items():
        assert table.frame.equals(answers[1].tables[name].frame)


@pytest.mark.usually("6.1")
def test_without_debug_info_of_the_scheduler(kernel: str) -> None:
    dump = build(kernel, "iosched-bfq")
    target = open_target(str(dump.formats["elf"]), dump.debug)
    target.need_modules("xfs")
    answer = of_kernel(Kernel(target.prog))
    assert answer.summary["requests"].value
    assert [gap.what for gap in answer.gaps] == ["schedulers of disks"]
    assert not any(finding.id.startswith("requests-starved") for finding in answer.findings)


@pytest.mark.parametrize("scenario", ["iosched-bfq", "iosched-deadline", "iosched-kyber"])
def test_without_debug_info_of_any_module(kernel: str, scenario: str) -> None:
    dump = build(kernel, scenario)
    sound, bare = (
        open_target(str(dump.formats["elf"]), debug) for debug in (dump.debug, dump.debug[:1])
    )
    sound.need_modules(*MODULES)
    expected, answer = (of_kernel(Kernel(target.prog)) for target in (sound, bare))
    # What is built into the kernel has debug info.
    gaps = {(gap.what, gap.reason) for gap in answer.gaps}
    assert {("waits of tasks", "XFS buffers"), ("waits of tasks", "XFS logs")} <= gaps
    lacking = {"schedulers of disks", "stacked disks", "waits of tasks"}
    assert {what for what, _ in gaps} <= lacking
    for name in ("requests", "dispatched", "sleepers"):
        assert answer.summary[name] == expected.summary[name], name
    sleeping = [each.tables["sleepers"].frame["function"].tolist() for each in (answer, expected)]
    assert sleeping[0] == sleeping[1]
