# SPDX-License-Identifier: LGPL-2.1-or-later
"""Verdicts on pairs of targets, with invented figures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pandas as pd
import pytest
from msgspec import structs

import kcensus
from kcensus import cli
from kcensus.catalogue import CatalogueError, Detected, State, load, result, validate
from kcensus.catalogue.schema import read_file
from kcensus.catalogue.validate import Refused, Side, Verdict, judge, look_at, validation_result
from kcensus.kernel.kernel import Kernel
from kcensus.results import Answer, Bound, Figure, Machine, Result, Severity, Unit
from kcensus.results.tables import Column, Table, TableSpec
from kcensus.sources.model import Target
from tests.catalogue import PATCHES
from tests.pages import ROOT
from tests.running import analysis_of
from tests.unit import distributions as known
from tests.unit import synthetic
from tests.unit.analyses.iosched.test_trace import starving
from tests.unit.patches.test_catalogue import FIGURE, GOOD, patch_file
from tests.unit.sources.blktrace.recorded import WRITE, Event, life, packed

pytestmark = pytest.mark.ends

SERIES = PATCHES["list-lru-memory"]
MIB = 1 << 20


def measured(bytes_: int, **figures: int) -> Result:
    values = {"super_blocks": 100, "memcgs_online": 100, "projected_xarray_bytes": MIB}
    values |= {
        "shrinker_map_bytes": 0,
        "projected_xarray_map_bytes": 0,
        "structural_bytes": bytes_,
    } | figures
    return Result("list-lru", "x", "0", summary=synthetic.figures(**values))


def side(name: str, state: State, bytes_: int, **figures: int) -> Side:
    return Side(
        target=name,
        kernel="6.1",
        detected=Detected(SERIES, state, "made up"),
        results={"list-lru": measured(bytes_, **figures)},
        failed={},
        ram_bytes=1000 * MIB,
        cpus=2,
        uptime_seconds=100.0,
    )


BEFORE = side("A", State.ABSENT, 100 * MIB)
AFTER = side("B", State.PRESENT, 10 * MIB)


def verdict(before: Side = BEFORE, after: Side = AFTER) -> tuple[Verdict, str]:
    judgement = judge(SERIES, [look_at(SERIES, before, after)])
    return judgement.verdict, "; ".join(judgement.reasons)


def test_confirmed() -> None:
    assert verdict() == (Verdict.CONFIRMED, "")
    judgement = judge(SERIES, [look_at(SERIES, BEFORE, AFTER)])
    assert judgement.change == judgement.low == judgement.high == 0.9
    assert judgement.pairs[0].predicted == MIB
    # 24,464 MB and 4,367 MB were published.
    assert judgement.claimed == pytest.approx(0.8215, abs=1e-4)


def test_a_claim_is_of_bytes_alone() -> None:
    # Its run has a stall of 27 seconds, too.
    patch = PATCHES["dm-snapshot-cow-semaphore"]
    figures = tuple(
        structs.replace(one, value=1e12) if one.name == "stall" else one for one in patch.figures
    )
    pair = look_at(SERIES, BEFORE, AFTER)
    claimed = judge(structs.replace(patch, figures=figures), [pair]).claimed
    assert claimed == pytest.approx(1 - 130 / 10240)


@pytest.mark.parametrize("size", [100, 150])
def test_contradicted(size: int) -> None:
    assert verdict(after=side("B", State.PRESENT, size * MIB))[0] is Verdict.CONTRADICTED


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (side("A", State.ABSENT, 1000), AFTER, "A does not show the symptom"),
        (side("A", State.UNDETERMINED, 100 * MIB), AFTER, "list-lru-memory is undetermined"),
        (BEFORE, replace(AFTER, cpus=4), "the sides are not alike: CPUs 2 and 4"),
        (BEFORE, replace(AFTER, ram_bytes=2000 * MIB), "RAM 1,000.0 MiB and 2.0 GiB"),
        (BEFORE, replace(AFTER, uptime_seconds=500.0), "uptime 1 min 40 s and 8 min 20 s"),
        (BEFORE, side("B", State.PRESENT, 1, super_blocks=80), "super blocks 100 and 80"),
        (
            side("A", State.ABSENT, 100 * MIB, memcgs_online=2),
            side("B", State.PRESENT, 1, memcgs_online=2),
            "the workload is too small: 2 and 2 memory cgroups, at least 10 are needed",
        ),
    ],
)
def test_inconclusive(before: Side, after: Side, why: str) -> None:
    found, reasons = verdict(before, after)
    assert found is Verdict.INCONCLUSIVE
    assert why in reasons


@pytest.mark.parametrize(
    ("predicted", "after", "expected"),
    [
        # A reduction of 80 % is predicted: half of it confirms, and noise contradicts.
        (20, 59, Verdict.CONFIRMED),
        (20, 61, Verdict.INCONCLUSIVE),
        (20, 90, Verdict.INCONCLUSIVE),
        (20, 91, Verdict.CONTRADICTED),
        # Of 15 %, noise cannot be told from the effect.
        (85, 90, Verdict.CONFIRMED),
        (85, 91, Verdict.INCONCLUSIVE),
        (85, 100, Verdict.CONTRADICTED),
    ],
)
def test_the_prediction_says_what_contradicts(
    predicted: int, after: int, expected: Verdict
) -> None:
    before = side("A", State.ABSENT, 100 * MIB, projected_xarray_bytes=predicted * MIB)
    pair = look_at(SERIES, before, side("B", State.PRESENT, after * MIB))
    judgement = judge(SERIES, [pair])
    assert judgement.verdict is expected
    assert judgement.predicted == pytest.approx(1 - predicted / 100)
    summary = validation_result(SERIES, judgement).summary
    limits = [summary[key].value for key in ("confirmed_from", "contradicted_below")]
    assert limits == ([0.4, 0.1] if predicted == 20 else [0.1, 0.0])


def test_what_is_near_enough_counts() -> None:
    after = replace(side("B", State.PRESENT, 10 * MIB, super_blocks=95), ram_bytes=980 * MIB)
    assert verdict(after=replace(after, uptime_seconds=399.0))[0] is Verdict.CONFIRMED
    # Nor do unknown conditions count against a pair.
    after = replace(AFTER, cpus=None, uptime_seconds=None)
    judgement = judge(SERIES, [look_at(SERIES, BEFORE, after)])
    assert judgement.verdict is Verdict.CONFIRMED
    made = validation_result(SERIES, judgement)
    assert "(unknown: CPUs, uptime)" in made.findings[0].evidence


def test_other_kernels_and_nodes_are_conditions_that_discard_no_pair() -> None:
    pair = look_at(SERIES, replace(BEFORE, nodes=1), replace(AFTER, nodes=2, kernel="6.12.1-x"))
    unlike = {each.what for each in pair.conditions if each.alike is False}
    assert (unlike, pair.counts) == ({"kernels", "NUMA nodes"}, True)
    pair = look_at(SERIES, replace(BEFORE, nodes=1), replace(AFTER, nodes=1, kernel="6.1.9-x"))
    assert all(each.alike for each in pair.conditions)


def test_shrinker_maps_are_no_list_lrus() -> None:
    before = side("A", State.ABSENT, 100 * MIB, shrinker_map_bytes=20 * MIB)
    pair = look_at(SERIES, before, side("B", State.PRESENT, 70 * MIB, shrinker_map_bytes=62 * MIB))
    assert (pair.old, pair.new, pair.change) == (80 * MIB, 8 * MIB, 0.9)


def test_an_unknown_workload_is_inconclusive() -> None:
    results = {"list-lru": measured(10 * MIB)}
    del results["list-lru"].summary["super_blocks"]
    found, reasons = verdict(after=replace(AFTER, results=results))
    assert found is Verdict.INCONCLUSIVE
    assert "the workload is unknown: list-lru does not report super_blocks" in reasons


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (State.ABSENT, State.ABSENT, "neither of A and B has list-lru-memory"),
        (State.PARTIALLY_APPLIED, State.ABSENT, "neither of A and B has list-lru-memory"),
        (State.PRESENT, State.PRESENT, "both of A and B have list-lru-memory"),
        (State.SUPERSEDED, State.PRESENT, "both of A and B have list-lru-memory"),
        (State.PRESENT, State.ABSENT, "A has list-lru-memory and B lacks it: swap BEFORE and AF"),
    ],
)
def test_invalid_pairs(before: State, after: State, why: str) -> None:
    with pytest.raises(Refused, match=why):
        look_at(SERIES, side("A", before, MIB), side("B", after, MIB))


def test_a_pair_needs_the_figure() -> None:
    broken = replace(AFTER, results={}, failed={"list-lru": "no debug info"})
    with pytest.raises(Refused, match=r"is not available: list-lru has no result \(no debug"):
        look_at(SERIES, BEFORE, broken)


assert SERIES.validation is not None
SWITCHED = structs.replace(SERIES, validation=structs.replace(SERIES.validation, switch="limit"))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (5, 5, "and limit is 5 on both"),
        (5, 9, "limit is 5 on A and 9 on B: swap them"),
        (None, 5, "and limit cannot be read"),
    ],
)
def test_switches(before: int | None, after: int, why: str) -> None:
    has_it = [side(name, State.PRESENT, 100 * MIB) for name in "AB"]
    with pytest.raises(Refused, match=why):
        look_at(SWITCHED, replace(has_it[0], switch=before), replace(has_it[1], switch=after))


def test_a_patch_that_is_switched_off_makes_a_pair() -> None:
    off = replace(side("A", State.PRESENT, 100 * MIB), switch=2**32 - 1)
    on = replace(AFTER, switch=2048)
    judgement = judge(SWITCHED, [look_at(SWITCHED, off, on)])
    assert judgement.verdict is Verdict.INCONCLUSIVE
    # It shows that the switch works, which is the patch only if the user says so.
    assert "both sides have" in validation_result(SWITCHED, judgement).findings[0].evidence
    given = judge(SWITCHED, [look_at(SWITCHED, off, on, as_given=True)])
    assert given.verdict is Verdict.CONFIRMED


CFQ = PATCHES["cfq-async-starvation"]
BY_TRACES = structs.replace(CFQ, validation=CFQ.trace_validation)


def trace_side(
    name: str,
    wait: float | None,
    state: State = State.UNDETERMINED,
    bound: Bound = Bound.EXACT,
    *,
    unended: bool = False,
    queues: tuple[str, ...] = ("cfq7A", "cfq8S"),
    device: str = "8,0",
    workload: dict[str, float] | None = None,
) -> Side:
    whole = Bound.AT_LEAST if unended else Bound.EXACT
    figures = {
        "trace_worst_async_write_wait": Figure(wait, Unit.SECONDS, bound=whole),
        "trace_async_writes": Figure(50),
        "trace_sync_requests": Figure(1000, bound=bound),
        "trace_duration": Figure(30.0, Unit.SECONDS),
    } | {key: Figure(value) for key, value in (workload or {}).items()}
    text = Column(Unit.TEXT, "name")
    tables = {
        "trace_queues": Table(pd.DataFrame({"queue": [*queues]}), {"queue": text}),
        "trace_devices": Table(pd.DataFrame({"device": [device]}), {"device": text}),
    }
    results = {"iosched": Result("iosched", name, "", summary=figures, tables=tables)}
    detected = Detected(CFQ, state, "made up")
    return Side(name, "", detected, results, {}, is_trace=True)


def test_two_traces_are_a_pair_without_types() -> None:
    pair = look_at(BY_TRACES, trace_side("A", 15.626265317), trace_side("B", 0.131))
    judgement = judge(BY_TRACES, [pair])
    assert judgement.verdict is Verdict.CONFIRMED
    # 15.6 s in the scheduler and 131 ms were published: the same on these two.
    assert judgement.claimed == pytest.approx(judgement.change)
    assert judgement.claimed == pytest.approx(1 - 0.131 / 15.626265317)
    evidence = validation_result(BY_TRACES, judgement).findings[0].evidence
    assert "assumes that only AFTER has it" in evidence
    conditions = {condition.what for condition in pair.conditions}
    assert conditions == {"async writes", "sync requests", "duration"}
    proven = look_at(BY_TRACES, trace_side("A", 15.6, State.ABSENT), trace_side("B", 0.131))
    assert "absent before and undetermined after (made up)" in proven.note


def test_a_trace_without_some_of_its_events_proves_nothing() -> None:
    torn = trace_side("A", 15.6, bound=Bound.AT_LEAST)
    judgement = judge(BY_TRACES, [look_at(BY_TRACES, torn, trace_side("B", 0.131))])
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any("the trace A lacks events" in reason for reason in judgement.reasons)


SLOW = trace_side("A", 15.6)
BFQ = trace_side("B", 0.131, queues=("bfq112S", "bfqSHAREDS"))


@pytest.mark.parametrize(
    ("before", "after", "as_given", "why"),
    [
        (SLOW, trace_side("B", 0.131, State.ABSENT), False, "B comes from a kernel"),
        (SLOW, trace_side("B", None), False, "B has no longest waits of async wr"),
        (SLOW, BFQ, True, "B uses bfq, but cfq-async-starvation changes cfq"),
        (BFQ, SLOW, True, "B uses bfq, but cfq-async-starvation changes cfq"),
    ],
)
def test_traces_that_are_refused(before: Side, after: Side, as_given: bool, why: str) -> None:
    with pytest.raises(Refused, match=why):
        look_at(BY_TRACES, before, after, as_given=as_given)


@pytest.mark.parametrize("state", [State.PRESENT, State.ABSENT, State.UNDETERMINED])
def test_the_word_of_the_user_replaces_states(state: State) -> None:
    sides = side("A", state, 100 * MIB), side("B", state, 10 * MIB)
    judgement = judge(SERIES, [look_at(SERIES, *sides, as_given=True)])
    assert judgement.verdict is Verdict.CONFIRMED
    finding = validation_result(SERIES, judgement).findings[0]
    assert state.value in finding.evidence
    assert "--as-given" in finding.evidence
    assert not finding.patch
    small = side("A", state, 1000)
    judgement = judge(SERIES, [look_at(SERIES, small, sides[1], as_given=True)])
    assert judgement.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("first", "second"), [(State.PRESENT, State.ABSENT), (State.SUPERSEDED, State.SUPERSEDED)]
)
def test_the_word_of_the_user_does_not_replace_what_types_prove(
    first: State, second: State
) -> None:
    sides = side("A", first, 100 * MIB), side("B", second, 10 * MIB)
    with pytest.raises(Refused, match=r"swap BEFORE and AFTER|superseded on both"):
        look_at(SERIES, *sides, as_given=True)


@pytest.mark.parametrize(
    "after",
    [
        trace_side("B", 0.131, queues=()),
        trace_side("B", 0.131, queues=("cfq7A", "bfq7A")),
        trace_side("B", 0.131, device="253,0"),
    ],
)
def test_a_trace_of_an_unknown_scheduler_or_another_disk_needs_the_word_of_the_user(
    after: Side,
) -> None:
    judgement = judge(BY_TRACES, [look_at(BY_TRACES, SLOW, after)])
    assert judgement.verdict is Verdict.INCONCLUSIVE
    judgement = judge(BY_TRACES, [look_at(BY_TRACES, SLOW, after, as_given=True)])
    assert judgement.verdict is Verdict.CONFIRMED
    finding = validation_result(BY_TRACES, judgement).findings[0]
    assert "--as-given asserts scheduler and disk" in finding.evidence


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ((15.6, False), (5.0, True), Verdict.INCONCLUSIVE),
        ((15.6, False), (16.0, True), Verdict.CONTRADICTED),
        ((15.6, True), (5.0, False), Verdict.CONFIRMED),
        ((15.6, True), (16.0, False), Verdict.INCONCLUSIVE),
    ],
)
def test_a_wait_that_lasts_beyond_its_trace_is_a_lower_bound(
    before: tuple[float, bool], after: tuple[float, bool], verdict: Verdict
) -> None:
    sides = [
        trace_side(name, wait, unended=unended)
        for name, (wait, unended) in (("A", before), ("B", after))
    ]
    assert judge(BY_TRACES, [look_at(BY_TRACES, *sides)]).verdict is verdict


@pytest.mark.parametrize(
    "workload", [{"trace_duration": 9.0}, {"trace_async_writes": 20}, {"trace_sync_requests": 2100}]
)
def test_traces_of_other_workloads_prove_nothing(workload: dict[str, float]) -> None:
    pair = look_at(BY_TRACES, SLOW, trace_side("B", 0.131, workload=workload))
    assert [condition.alike for condition in pair.conditions].count(False) == 1
    assert judge(BY_TRACES, [pair]).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("scheduler", "is_valid"), [("cfq", True), ("mq-deadline", False)])
def test_dumps_of_another_scheduler_are_refused(scheduler: str, is_valid: bool) -> None:
    figures = {"requests": Figure(100), "dispatched": Figure(8)}
    figures["worst_async_delay"] = Figure(9.0, Unit.SECONDS)
    text, count = Column(Unit.TEXT, "scheduler"), Column(Unit.COUNT, "requests")
    # A disk of device mapper has no scheduler, and an idle one does not matter.
    disks = {"scheduler": [scheduler, "none", "kyber"], "requests": [100, 100, 0]}
    tables = {"disks": Table(pd.DataFrame(disks), {"scheduler": text, "requests": count})}
    results = {"iosched": Result("iosched", "A", "", summary=figures, tables=tables)}
    detected = Detected(CFQ, State.UNDETERMINED, "made up")
    sides = Side("A", "", detected, results, {}), Side("B", "", detected, results, {})
    if is_valid:
        assert look_at(CFQ, *sides, as_given=True).counts
        return
    with pytest.raises(Refused, match="A uses mq-deadline"):
        look_at(CFQ, *sides, as_given=True)


@pytest.mark.slow
def test_the_command_reads_traces(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for name, wait in (("before", 15.6), ("after", 1.2)):
        made = starving(wait, 120, dispatched=True)
        for step in range(12):
            start = int(wait * 1e9) + 10_000 + step
            made += life(10_000 + 8 * step, *(start + each for each in range(5)), flags=WRITE)
        made.append(Event("P", 16_000_000_000, flags=0))
        made.sort(key=lambda each: each.time)
        (tmp_path / f"{name}.blktrace.0").write_bytes(packed(made))
    targets = [str(tmp_path / name) for name in ("before", "after")]
    command = ["validate", "cfq-async-starvation", *targets, "--traces", "--json"]
    # Nothing in the traces names their scheduler.
    assert cli.main(command) == 5
    assert json.loads(capsys.readouterr().out)["summary"]["verdict"] == "inconclusive"
    assert cli.main([*command, "--as-given"]) == 0
    found = json.loads(capsys.readouterr().out)["summary"]
    assert found["verdict"] == "confirmed"
    assert [found["before"], found["after"]] == pytest.approx([15.6, 1.2])
    made = kcensus.validate("cfq-async-starvation", *targets, traces=True, as_given=True)
    assert made.summary["before"] == found["before"]
    assert kcensus.validate("cfq-async-starvation", *targets, traces=True).summary["verdict"] == (
        "inconclusive"
    )
    with pytest.raises(LookupError, match="by traces is defined"):
        kcensus.validate("list-lru-memory", *targets, traces=True)
    with pytest.raises(kcensus.TargetError, match="no such file"):
        kcensus.validate("cfq-async-starvation", *targets)
    assert cli.main(["validate", "list-lru-memory", *targets, "--traces"]) == 2
    assert "no validation by traces is defined for" in capsys.readouterr().err


def pairs(*after: int) -> list[Any]:
    return [look_at(SERIES, BEFORE, side("B", State.PRESENT, one * MIB)) for one in after]


def test_several_pairs() -> None:
    judgement = judge(SERIES, pairs(10, 20, 30))
    assert judgement.verdict is Verdict.CONFIRMED
    assert [judgement.low, judgement.change, judgement.high] == pytest.approx([0.7, 0.8, 0.9])
    made = validation_result(SERIES, judgement)
    assert made.summary["after"].value == 20 * MIB
    assert made.summary["change_low"].value == judgement.low
    assert made.target.endswith("and 2 more")
    # They may disagree.
    judgement = judge(SERIES, pairs(10, 200, 20, 150, 30))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.low < 0 < judgement.high
    assert judge(SERIES, pairs(110, 120, 130)).verdict is Verdict.CONTRADICTED


def test_pairs_that_are_not_alike_do_not_count() -> None:
    odd = look_at(SERIES, BEFORE, replace(side("B", State.PRESENT, 500 * MIB), cpus=64))
    judgement = judge(SERIES, [*pairs(10, 20), odd])
    assert judgement.verdict is Verdict.CONFIRMED
    assert judgement.high <= 0.9
    made = validation_result(SERIES, judgement)
    assert made.tables["pairs"].frame["useful"].tolist() == [True, True, False]
    # The medians leave out its 500 MiB.
    assert (made.summary["before"].value, made.summary["after"].value) == (100 * MIB, 15 * MIB)


def test_interval_is_always_the_same() -> None:
    changes = [0.1, 0.5, 0.52, 0.55, 0.9]
    low, high = validate.interval(changes)
    assert (low, high) == validate.interval(list(reversed(changes)))
    assert 0.1 <= low < 0.52 < high <= 0.9
    assert validate.interval([0.3]) == (0.3, 0.3)


def test_severity_follows_the_verdict() -> None:
    for after, severity in ((10, Severity.INFO), (100, Severity.WARNING), (60, Severity.NOTICE)):
        judgement = judge(SERIES, pairs(after))
        (finding,) = validation_result(SERIES, judgement).findings
        assert finding.title.startswith(judgement.verdict.value)
        assert (finding.patch, finding.severity) == (SERIES.id, severity)


VALIDATE = """
[validate]
symptom-at-least = 1
metric = { analysis = "slab", key = "slab_bytes", what = "slabs" }
[[validate.workload]]
metric = { analysis = "slab", key = "caches", what = "caches" }
within = 0.1
at-least = 1
"""


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("symptom-at-least = 1", "", "validate.symptom-at-least: is missing"),
        ("within = 0.1", "", "validate.workload[0].within: is missing"),
        ("[validate]", '[validate]\nclaim = "x"', "'x' is not the run of any published figure"),
        ("[validate]", '[validate]\nswitch = "a b"', "switch: 'a b' is not"),
        (VALIDATE[VALIDATE.index("[[") :], "", "validate.workload: is missing"),
    ],
)
def test_files(tmp_path: Any, old: str, new: str, complaint: str) -> None:
    assert read_file(patch_file(tmp_path, GOOD + FIGURE + VALIDATE))
    with pytest.raises(CatalogueError) as caught:
        read_file(patch_file(tmp_path, GOOD + FIGURE + VALIDATE.replace(old, new)))
    assert complaint in str(caught.value)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    specs: list[tuple[object, str]] = []
    sizes = {"old": 100, "new": 10, "worse": 200, "small": 0, "odd": 80}

    def open_target(spec: str, symbols: object = (), **_: object) -> Target:
        kernel = known.RHEL_9_0 if spec in ("old", "small") else known.RHEL_9_2
        prog = kernel.program()
        specs.append((prog, spec))
        return Target(prog, spec, "vmcore", "synthetic", False, kernel.release, False, False)

    def analyse(kernel: Kernel) -> Answer:
        (spec,) = (spec for prog, spec in specs if prog is kernel.prog)
        return Answer(summary=measured(sizes[spec] * MIB).summary)

    analysis = analysis_of("list-lru", analyse)
    size = Machine(ram_bytes=1 << 30, cpus=2, uptime_seconds=60.0)
    with (
        mock.patch("kcensus.sources.open_target", open_target),
        mock.patch("kcensus.analyses._discover", return_value={"list-lru": analysis}),
        mock.patch("kcensus.reports.machine", return_value=size),
    ):

        def run(*args: str) -> tuple[int, str, str]:
            status = cli.main(["validate", *args])
            return (status, *capsys.readouterr())

        yield run


@pytest.mark.parametrize(
    ("targets", "status", "word"),
    [
        (("old", "new"), 0, "confirmed"),
        (("old", "worse"), 1, "contradicted"),
        (("old", "odd"), 5, "inconclusive"),
        (("small", "new"), 5, "inconclusive"),
        (("old", "new", "--more", "old", "worse"), 5, "inconclusive"),
    ],
)
def test_exit_status_follows_the_verdict(
    run: Any, targets: tuple[str, ...], status: int, word: str
) -> None:
    done, out, err = run("list-lru-memory", *targets, "--json")
    assert (done, err) == (status, "")
    assert json.loads(out)["summary"]["verdict"] == word
    assert json.loads(out)["findings"][0]["patch_status"] == "merged in 5.18"
    assert run("list-lru-memory", *targets)[0] == status


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("list-lru-memory", "old", "old"), "'old' and 'old' are the same target"),
        (("list-lru-memory", "old", "./old"), "'old' and './old' are the same target"),
        (("list-lru-memory", "new", "old"), "new has list-lru-memory and old lacks it: swap BEFO"),
        (("nothing", "old", "new"), "unknown patch 'nothing' (choose from "),
        (("cfq-removal", "old", "new"), "no validation is defined for 'cfq-removal' (choose from "),
        (("list-lru-memory", "old", "new", "--more", "old", "new"), "a pair is given twice"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(
    run: Any, args: tuple[str, ...], complaint: str
) -> None:
    status, out, err = run(*args)
    assert (status, out) == (2, "")
    sentence, hint = err.splitlines()
    assert complaint in sentence
    assert hint == "Try 'kcensus validate --help'."


@pytest.mark.parametrize("spec", [*result.TABLES, result.CATALOGUE, *validate.TABLES])
def test_every_column_has_a_line_of_help(spec: TableSpec) -> None:
    assert spec.help.endswith(".")
    assert all(column.help for column in spec.columns.values())


def test_the_page_has_the_patches_that_can_be_judged() -> None:
    page = (ROOT / "docs" / "analyses" / "patches.md").read_text("utf-8")
    listed = page.partition("These patches can be judged: ")[2].partition("\n\n")[0]
    names = [each for each in re.findall("`([a-z0-9-]+)`", listed) if each[0] != "-"]
    assert sorted(names) == sorted(each.id for each in PATCHES.values() if each.validation)
    by_traces = {each.id for each in PATCHES.values() if each.trace_validation}
    assert {*names[-4:]} == by_traces


def test_a_stage_names_its_series() -> None:
    with pytest.raises(LookupError, match="kcensus validate list-lru-memory"):
        load().validated("list-lru-xarray", traces=False)


def test_a_patch_is_no_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["patches", "list-lru-memory"]) == 2
    assert "kcensus patches show list-lru-memory" in capsys.readouterr().err
