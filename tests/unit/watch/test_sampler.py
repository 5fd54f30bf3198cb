# SPDX-License-Identifier: LGPL-2.1-or-later
"""When samples and censuses are taken, what they hold, and what is kept of them."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kcensus.analyses import AnalysisError, analyses
from kcensus.analyses.runner import Context
from kcensus.kernel import machine
from kcensus.kernel.kernel import Kernel
from kcensus.results import Gauge
from kcensus.watch import MAX_ROWS
from kcensus.watch import sampler as sampling
from kcensus.watch.exposition import text
from kcensus.watch.history import MAX_VALUES, History
from kcensus.watch.lines import document, lines
from kcensus.watch.metrics import Metrics
from kcensus.watch.sampler import CPU_SHARE, Sampler
from kcensus.watch.samples import Sample
from kcensus.watch.screen import View
from tests.unit.watch import making
from tests.unit.watch.making import MADE, START, clock, state

INTERVAL = 10


def taken(sampler: Sampler, count: int) -> Iterator[Sample]:
    """Take samples at intervals; a census delays the next one."""
    for _ in range(count):
        clock.now = (clock.now // INTERVAL + 1) * INTERVAL
        yield sampler.take()


def test_a_sample_has_the_counters_and_what_it_took() -> None:
    first, second = taken(making.sampler(census=0), 2)
    assert (first.number, second.number) == (1, 2)
    assert (first.elapsed, second.elapsed) == (0, INTERVAL)
    assert second.time == START + 2 * INTERVAL
    assert second.cpu_seconds == pytest.approx(0.01)
    assert [gauge.value for gauge in second.gauges["made-up"]] == [100]
    assert second.machine.ram_bytes
    assert second.census is None


def test_counters_take_no_more_than_their_share() -> None:
    """Each time, they take a hundredth of a second: half a percent of two."""
    sampler, history, read, last = making.sampler(census=0), History((MADE,)), [], []
    for state.counter in range(100, 109):
        sample = sampler.take()
        history.add(sample)
        read += [gauge.value for gauges in sample.gauges.values() for gauge in gauges]
        last += [gauge.value for gauge in sample.last_gauges[MADE.name]]
        clock.now += 1
    # The first time, which finds types, does not count.
    assert read == [100, 101, 102, 104, 106, 108]
    assert last == [100, 101, 102, 102, 104, 104, 106, 106, 108]
    (series,) = history.of(MADE.name)
    assert [*series.values] == read
    assert series.rate == 1


def test_rates_are_over_the_time_between_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, history, rates = making.sampler(census=0), History((MADE,)), []
    delays = itertools.cycle((3, 0, 1))

    def gauges(kernel: Kernel) -> Iterator[Gauge]:
        clock.cpu += 0.02
        clock.now += next(delays)  # as the analyses before it do when they find their types
        yield Gauge("nr_made", 100 + int(clock.now))

    monkeypatch.setattr(making, "gauges", gauges)
    for _ in range(50):
        sample = sampler.take()
        history.add(sample)
        rates += document(sample, history, "sample")["rates"].get(MADE.name, {}).values()
        clock.now += 1
    assert 10 < len(rates) < 40
    assert rates[0] is None
    assert {*rates[1:]} == {1}


def test_the_first_time_costs_nothing_later() -> None:
    sampler = making.sampler(census=0)
    state.gauges_cpu_seconds = 1000.0
    sampler.take()
    state.gauges_cpu_seconds = 0.001
    assert all(sample.gauges for sample in taken(sampler, 5))
    sampler.attach(making.context())
    state.gauges_cpu_seconds = 1000.0
    assert next(taken(sampler, 1)).gauges
    state.gauges_cpu_seconds = 0.001
    assert all(sample.gauges for sample in taken(sampler, 5))


def test_counters_that_fail_take_no_more_than_their_share() -> None:
    sampler = making.sampler(census=0)
    state.gauge_fault = ValueError("torn")
    cpu = clock.cpu
    for _ in range(200):
        sample = sampler.take()
        assert {*sample.errors} == {MADE.name}, "until they can be read"
        assert not sample.last_gauges
        clock.now += 0.1
    assert 5 < (clock.cpu - cpu) / 0.01 < 15
    state.gauge_fault = None
    clock.now += 100
    sample = sampler.take()
    assert not sample.errors
    assert sample.gauges == sample.last_gauges != {}


@pytest.mark.slow
def test_censuses_take_no_more_than_their_share() -> None:
    samples = list(taken(making.sampler(), 200))
    numbers = [sample.number for sample in samples if sample.is_census]
    assert numbers[0] == 1
    spent = 2.0 * len(numbers)
    assert 0.5 * CPU_SHARE < spent / samples[-1].elapsed <= 1.5 * CPU_SHARE
    # 2 s of CPU time are 1 % of 200 s.
    assert samples[numbers[1] - 1].elapsed == pytest.approx(200, abs=INTERVAL)


def test_an_interval_of_censuses_is_kept() -> None:
    samples = taken(making.sampler(census=3), 7)
    assert [sample.is_census for sample in samples] == [True, False, False] * 2 + [True]


@pytest.mark.slow
def test_an_analysis_that_fails_does_not_stop_the_others() -> None:
    sampler = making.sampler(MADE, analyses()["dentries"], census=1)
    state.fault, state.gauge_fault = AnalysisError("no such type"), ValueError("torn")
    (sample,) = taken(sampler, 1)
    assert {*sample.errors} == {"made-up"}
    assert sample.census is not None
    assert {*sample.census.errors} == {"made-up"}
    assert {*sample.census.results} == {"dentries"}
    assert {gauge.key for gauge in sample.gauges["dentries"]} >= {"nr_dentry"}
    making.reset()
    clock.now = INTERVAL
    assert not next(taken(sampler, 1)).errors


def test_a_census_is_condensed() -> None:
    state.rows = {f"/{number}": number for number in range(100)}
    state.findings = ("full:a", "full:b")
    (sample,) = taken(making.sampler(), 1)
    assert sample.census is not None
    counted = sample.census.results["made-up"]
    assert (counted.gaps, counted.checks_differ) == (1, 1)
    assert [*counted.findings] == ["full:a", "full:b"]
    (rows,) = counted.tables
    assert len(rows.largest.rows) == MAX_ROWS
    assert rows.largest.rows[0] == (("/99",), (99,))
    assert rows.largest.left_out == 80
    # Rows of nothing are left out.
    state.rows = {"/none": 0, "/some": 1, "/unknown": float("nan")}
    (sample,) = taken(making.sampler(), 1)
    assert sample.census is not None
    (rows,) = sample.census.results["made-up"].tables
    assert [name for name, _ in rows.largest.rows] == [("/some",), ("/unknown",)]


@pytest.mark.parametrize("boot", [None, "another"])
def test_a_kernel_that_started_again_is_noticed(
    monkeypatch: pytest.MonkeyPatch, boot: str | None
) -> None:
    sampler, history = making.sampler(), History((MADE,))
    for sample in taken(sampler, 2):
        history.add(sample)

    def read(prog: object) -> str:
        if boot is None:
            raise ValueError("closed")
        return boot

    monkeypatch.setattr(sampling, "boot_id", read)
    for sample in taken(sampler, 2):
        assert sample.unreadable
        assert not sample.gauges
        assert sampler.is_lost
        history.add(sample)
    monkeypatch.undo()
    sampler.attach(making.context())
    (sample,) = taken(sampler, 1)
    assert not sample.unreadable
    assert sample.gauges


@pytest.mark.parametrize(("boot", "is_kept"), [(None, True), ("another", False), ("", False)])
def test_censuses_are_of_one_boot(
    monkeypatch: pytest.MonkeyPatch, boot: str | None, is_kept: bool
) -> None:
    sampler, history = making.sampler(), History((MADE,))
    state.findings = ("old",)
    history.add(next(taken(sampler, 1)))
    assert history.is_first_census
    context = making.context()
    if boot is not None:
        machine = replace(context.machine, boot=boot)
        monkeypatch.setattr(Context, "machine", machine)
        monkeypatch.setattr(sampling, "boot_id", lambda prog: boot)
    state.findings = ("new",)
    sampler.attach(context)
    sample = sampler.sample()
    assert (sample.census is not None) == is_kept
    assert sampler.is_due(sample) != is_kept
    sample = sampler.with_census(sample)
    assert sample.census is not None
    assert sample.census.number == 2, "since the start"
    assert [finding.id for _, finding in sample.census.findings] == ["new"]
    history.add(sample)
    assert history.is_first_census != is_kept
    lengths = {len(series.values) for series in history.of(MADE.name)}
    assert lengths == ({2} if is_kept else {1})
    seen = " ".join(lines(sample, history, [MADE.name]))
    assert "new is full" in seen
    assert ("old is full" in seen) == is_kept


def test_a_kernel_without_a_canary_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    def boot_id(prog: object) -> str:
        raise AttributeError("'struct task_struct' has no member 'stack_canary'")

    monkeypatch.setattr(machine, "boot_id", boot_id)
    monkeypatch.setattr(sampling, "boot_id", boot_id)
    for sample in taken(making.sampler(), 2):
        assert not sample.unreadable
        assert not sample.machine.boot
        assert sample.gauges


def test_a_kernel_that_ended_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = making.sampler()

    class Ended:
        def __getitem__(self, name: str) -> object:
            raise ConnectionError("closed")

    assert sampler._context is not None
    kernel = sampler._context.kernel
    monkeypatch.setattr(type(kernel), "renewed", lambda _: SimpleNamespace(prog=Ended()))
    (sample,) = taken(sampler, 1)
    assert sample.unreadable
    assert sampler.is_lost


def test_rates_and_changes() -> None:
    sampler, history = making.sampler(census=0), History((MADE,))
    for counter in (100, 130, 120):
        state.counter = counter
        history.add(next(taken(sampler, 1)))
    (series,) = history.of("made-up")
    assert series.rate == -10 / INTERVAL
    assert series.last - series.first == 20
    assert series.has_moved
    assert [*series.values] == [100, 130, 120]


def test_findings_that_appear_and_go() -> None:
    sampler, history = making.sampler(census=1), History((MADE,))
    seen = []
    for findings in (("a",), ("a", "b"), ("b",)):
        state.findings = findings
        history.add(next(taken(sampler, 1)))
        seen.append([(event.finding.id, event.has_appeared) for event in history.new_events])
    assert seen == [[], [("b", True)], [("a", False)]]
    state.fault = AnalysisError("no such type")
    history.add(next(taken(sampler, 1)))
    assert not history.new_events, "what could not be looked for has not gone"
    state.fault, state.findings = None, ("b", "c")
    history.add(next(taken(sampler, 1)))
    assert [event.finding.id for event in history.new_events] == ["c"]


@pytest.mark.slow
def test_half_a_day_of_counters_takes_no_more_memory_than_an_hour() -> None:
    wanted = (MADE, analyses()["dentries"])
    hour = 360
    end = 12 * hour
    sampler = making.sampler(*wanted, census=0)
    counting = making.sampler(census=1)
    history, metrics = History(wanted), Metrics()
    view = View("sample", [each.name for each in wanted], INTERVAL, history)

    def keep(sample: Sample) -> None:
        history.add(sample)
        metrics.set(sample, every=10, cpu_seconds=1)
        view.sample = sample

    used = []
    for number in range(end):
        if number == 2 * end // 3:  # it takes its time
            tracemalloc.start()
        clock.now += INTERVAL
        state.counter += number % 7
        keep(sampler.take())
        if number % hour == 0:
            state.used = number
            state.rows = {f"/{number}/{row}" * 50: row for row in range(100)}
            state.findings = tuple(f"{number}:{each}" for each in range(10))
            keep(counting.take())
            assert view.sample is not None
            document(view.sample, history, "sample")
            list(lines(view.sample, history, ["made-up", "dentries"]))
            text(metrics)
            if not tracemalloc.is_tracing():  # rich remembers the widths of the last 4,096 texts
                view.lines(120, 40)
        if tracemalloc.is_tracing() and (number + 1) % hour == 0:
            gc.collect()
            used.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert max(len(series.values) for series in history.of("dentries")) == MAX_VALUES
    # 100 bytes per sample would add 36 KB per hour.
    assert max(used[2:]) - min(used[2:]) < 32 << 10, used
    assert len(used) == 4


@pytest.mark.slow
def test_censuses_and_screens_take_no_more_memory() -> None:
    wanted = (analyses()["list-lru"],)
    sampler, history = making.sampler(*wanted, census=1), History(wanted)
    metrics = Metrics(rows=MAX_ROWS)
    view = View("sample", [each.name for each in wanted], INTERVAL, history)
    used = []
    for number, sample in enumerate(taken(sampler, 16)):
        history.add(sample)
        metrics.set(sample, cpu_seconds=1, every=10)
        view.sample = sample
        text(metrics)
        view.lines(120, 40)
        if number == 4:
            tracemalloc.start()
        elif number > 7:
            gc.collect()
            used.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sample.census is not None
    assert sample.census.number == 16
    # One result that is kept would take more.
    assert used[-1] - used[0] < 64 << 10, used
