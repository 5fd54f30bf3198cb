# SPDX-License-Identifier: LGPL-2.1-or-later
"""What memory tells about starved requests, on real kernels whose scheduler was made to starve."""

from __future__ import annotations

import itertools
import re

import drgn
import pytest

from kcensus.analyses.iosched.kernel.figures import Figures, Verdict
from kcensus.analyses.iosched.kernel.run import of_kernel
from kcensus.kernel.block import MODULES
from kcensus.kernel.kernel import Kernel
from kcensus.results import CheckStatus, Severity
from kcensus.sources import Target, open_target
from tests.lab import build
from tests.lab.truth import io
from tests.vm.cases import opened
from tests.vm.iosched.cases import SCHEDULERS, STARVED, usually
from tests.vm.oracles import block as oracle
from tests.vm.oracles import waits

pytestmark = [usually, pytest.mark.machines]


def _target(kernel: str, scenario: str) -> Target:
    return opened(build(kernel, scenario), *MODULES)


@pytest.mark.parametrize("scenario", STARVED)
def test_starved_writes_and_proven_sleepers_come_first(kernel: str, scenario: str) -> None:
    """The guest's stacks, and pointers followed one by one, say the same as the finding."""
    dump, prog = build(kernel, scenario), _target(kernel, scenario).prog
    figures = Figures(Kernel(prog))
    answer = of_kernel(figures.kernel)
    sleepers = answer.tables["sleepers"].frame
    # Only a device that does not answer comes before it.
    ids = [each.id for each in answer.findings]
    before = ids[: ids.index("requests-starved:vda-async")]
    assert before in ([], ["requests-stuck:vda"])
    first = answer.findings[len(before)]
    assert first.severity >= Severity.NOTICE
    late = [each for each in figures.queues if each.verdict is Verdict.STARVED]
    worst = max(filter(figures.is_async, late), key=lambda each: each.served_ns)
    assert worst.late_ns > figures.expiry_ns(worst)
    assert float(first.figures["late"].value or 0) == worst.late_ns / 1e9
    lists = oracle.queues(oracle.disk(prog, "vda"))
    pointer = prog.type("struct request *")
    queues = [[drgn.Object(prog, pointer, rq) for rq in own] for own in lists.values()]
    # The queue whose asynchronous writes were inserted first.
    starved = [own for own in queues if not oracle.is_sync(own[0])]
    queue = min(starved, key=lambda own: min(int(rq.start_time_ns) for rq in own))
    assert f"queue {_label(queue[0])} " in first.evidence
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
        if "xfs_buf_lock" in task.stack
        and any(waits.is_waiter(prog, "struct xfs_buf", buffer, tasks[pid]) for buffer in owners)
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


def _label(rq: drgn.Object) -> str:
    """Return the name of the queue of a request, as the scheduler's messages have it."""
    prog, elevator = rq.prog_, rq.q.elevator.type.elevator_name.string_()
    if elevator != b"bfq":
        # mq-deadline had one queue for all priorities.
        data = prog.type("struct deadline_data", "mq-deadline.c")
        return "BE write" if data.has_member("per_prio") else "write"
    queue = drgn.cast("struct bfq_queue *", rq.elv.priv[1])
    return f"bfq{'SHARED' if int(queue.pid) < 0 else int(queue.pid)}A"


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


@pytest.mark.usually("6.1")
def test_without_debug_info_of_the_scheduler(kernel: str) -> None:
    answer = of_kernel(Kernel(opened(build(kernel, "iosched-bfq"), "xfs").prog))
    assert answer.summary["requests"].value
    assert [gap.what for gap in answer.gaps] == ["schedulers of disks"]
    assert not any(finding.id.startswith("requests-starved") for finding in answer.findings)


@pytest.mark.parametrize("scenario", ["iosched-bfq", "iosched-deadline", "iosched-kyber"])
def test_without_debug_info_of_any_module(kernel: str, scenario: str) -> None:
    dump = build(kernel, scenario)
    sound, bare = opened(dump, *MODULES), open_target(str(dump.core), dump.debug[:1])
    expected, answer = (of_kernel(Kernel(target.prog)) for target in (sound, bare))
    # What is built into the kernel has debug info.
    gaps = {(gap.what, gap.reason) for gap in answer.gaps}
    reasons = " ".join(reason for what, reason in gaps if what == "kinds of waits")
    assert "XFS buffers" in reasons
    assert "XFS logs" in reasons
    lacking = {"schedulers of disks", "stacked disks", "kinds of waits", "waits of tasks"}
    assert {what for what, _ in gaps} <= lacking
    for name in ("requests", "dispatched", "sleepers"):
        assert answer.summary[name] == expected.summary[name], name
    sleeping = [each.tables["sleepers"].frame["function"].tolist() for each in (answer, expected)]
    assert sleeping[0] == sleeping[1]
