# SPDX-License-Identifier: LGPL-2.1-or-later
"""What kernels count of the subject of an analysis, without the analysis."""

from __future__ import annotations

from typing import Any

import drgn
import pytest

from kcensus.analyses import Analysis, analyses
from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.results import Unit
from tests.running import recorded_analyses
from tests.sample.conftest import IO, NAMES, WAITS, open_sample

pytestmark = pytest.mark.ends

_EVERY = [name for name in recorded_analyses() if analyses()[name].gauges]
_LEFT_OUT = {"iosched", "kcopyd"}
"""Whose checks are disk by disk, or of more clients than those of mapped devices."""


def gauges(kernel: Kernel, name: str) -> dict[str, Any]:
    return {gauge.source: gauge for gauge in analyses()[name].gauges_of(kernel)}


@pytest.mark.parametrize("name", [*NAMES, IO, WAITS])
@pytest.mark.parametrize("analysis", _EVERY)
def test_gauges_are_the_counters_of_checks(analysis: str, name: str) -> None:
    sample = open_sample(name)
    known, result = gauges(sample.context.kernel, analysis), sample.run(analysis)
    counters: dict[str, tuple[int, Unit]] = {
        check.source: (check.counter, check.unit)
        for check in result.checks
        if check.counter is not None
    }
    both = known.keys() & counters.keys()
    for source in both:
        gauge, (counter, unit) = known[source], counters[source]
        is_finer = (gauge.unit, unit) == (Unit.BYTES, Unit.PAGES)
        page_size = sample.context.kernel.memory.page_size
        assert gauge.value == counter * (page_size if is_finer else 1), source
    if result.checks and analysis not in _LEFT_OUT | {"memcgs"}:
        assert both


@pytest.mark.parametrize("analysis", _EVERY)
def test_keys_of_gauges_are_identifiers_and_unique(analysis: str) -> None:
    known = gauges(open_sample("sample").context.kernel, analysis).values()
    keys = [gauge.key for gauge in known]
    assert keys
    assert len(set(keys)) == len(keys)
    assert all(key.isidentifier() and key == key.lower() for key in keys)
    assert all(gauge.label and len(gauge.label.split()) <= 5 for gauge in known)


def test_gauges_of_disks_are_the_sums_of_their_checks() -> None:
    sample = open_sample(IO)
    gauged = gauges(sample.context.kernel, "iosched").values()
    known = {each.key: each.value for each in gauged}
    counters: dict[str, int] = {}
    for check in sample.run("iosched").checks:
        name = check.name.partition(": ")[2]
        counters[name] = counters.get(name, 0) + (check.counter or 0)
    in_flight = known["in_flight_reads"] + known["in_flight_writes"]
    assert in_flight == counters["requests in flight"] > 0
    assert known["tags"] == counters["requests with a tag"] > 0


@pytest.mark.parametrize("analysis", _EVERY)
def test_a_program_without_a_kernel_has_no_gauges(analysis: str) -> None:
    assert gauges(Kernel(drgn.Program()), analysis) == {}


@pytest.mark.slow
@pytest.mark.parametrize("analysis", _EVERY)
def test_only_a_running_kernel_is_read_twice(
    analysis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded kernel does not move, so what is read as of a running one agrees as well."""
    sample, times = open_sample("sample"), []
    original = Analysis.gauges_of

    def noted(self: Analysis, kernel: Kernel) -> Any:
        times.append(self.name)
        return original(self, kernel)

    monkeypatch.setattr(Analysis, "gauges_of", noted)
    still = sample.context.run(analyses()[analysis])
    assert times == []
    live = Context(Kernel(sample.target.prog, live=True), sample.target)
    running = live.run(analyses()[analysis])
    assert times == [analysis, analysis]
    known = [{c.name: (c.status, c.difference) for c in one.checks} for one in (running, still)]
    # Some checks need all figures to be of one moment.
    assert known[0].items() <= known[1].items()
    assert known[0]
    assert {check.moved for check in running.checks} <= {None, 0}
