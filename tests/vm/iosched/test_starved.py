# SPDX-License-Identifier: LGPL-2.1-or-later
"""What memory tells about starved requests, on real kernels whose scheduler was made to starve."""

from __future__ import annotations

from pathlib import Path

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

# Six guests for each kernel take some minutes to make.
pytestmark = pytest.mark.usually("6.1", "7.3")

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


@pytest.mark.parametrize("scenario", ["iosched-starved", "iosched-starved-deadline"])
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


def test_checks_agree_and_nothing_is_missing(kernel: str) -> None:
    for scenario in ("iosched-bfq", "iosched-deadline", "iosched-kyber", "iosched-none"):
        answer = of_kernel(Kernel(_target(kernel, scenario).prog))
        # In older kernels, blk-mq does not use the counters of disks.
        statuses = {check.status for check in answer.checks}
        assert CheckStatus.AGREE in statuses
        assert statuses <= {CheckStatus.AGREE, CheckStatus.ABSENT}, answer.checks
        assert answer.gaps == []
        assert answer.summary["requests"].value == len(answer.tables["requests"].frame)
        assert answer.summary["clock"].value in ("timekeeper", "idle")


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
