# SPDX-License-Identifier: LGPL-2.1-or-later
"""Samples of a recorded kernel as if it ran, with analyses that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pandas as pd

from kcensus.analyses import Analysis
from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.results import Answer, Check, Figure, Finding, Gap, Gauge, Severity, Unit
from kcensus.results.tables import Column, Show, TableSpec
from kcensus.sources import Target, open_target
from kcensus.watch.sampler import Sampler

START = 1_700_000_000.0

ROWS = TableSpec(
    "rows",
    "Rows",
    {
        "place": Column(Unit.TEXT, "place", Show.ALWAYS),
        "bytes": Column(Unit.BYTES, "bytes", help='What "it" takes,\nin bytes.'),
        "order": Column(Unit.NONE, "order"),
    },
    "A place.",
    key=("place",),
    series=("bytes",),
)
TABLES = (ROWS,)
MADE = Analysis(
    "made-up",
    "what is made up?",
    f"{__name__}:run",
    specs=f"{__name__}:TABLES",
    headline=("used_bytes",),
    gauges=f"{__name__}:gauges",
)


@dataclass
class State:
    counter: int = 100
    used: int = 4096
    rows: dict[str, float] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    fault: Exception | None = None
    gauge_fault: Exception | None = None
    gauges_cpu_seconds: float = 0.01


state = State()


class Clock:
    def __init__(self) -> None:
        self.now, self.cpu = 0.0, 0.0

    def time(self) -> float:
        return START + self.now

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.cpu

    def sleep(self, seconds: float) -> None:
        self.now += seconds


clock = Clock()


def reset() -> None:
    vars(state).update(vars(State()))
    vars(clock).update(vars(Clock()))


def run(kernel: Kernel) -> Answer:
    clock.cpu += 2
    clock.now += 3
    if state.fault:
        raise state.fault
    places = pd.Series([*state.rows], dtype=object)
    frame = pd.DataFrame({"place": places, "bytes": [*state.rows.values()], "order": 0})
    return Answer(
        summary={
            "used_bytes": Figure(state.used, Unit.BYTES, "used"),
            "objects_total": Figure(7, label="objects"),
            "share": Figure(0.25, Unit.RATIO),
            "oldest": Figure(12.5, Unit.SECONDS),
            "is_limited": Figure(True, Unit.NONE),
            "mechanism": Figure("counter", Unit.TEXT),
            "unknown_bytes": Figure(None, Unit.BYTES),
        },
        tables={"rows": ROWS.of(frame)},
        findings=[
            Finding(id=name, severity=Severity.WARNING, title=f"{name} is full")
            for name in state.findings
        ],
        checks=[Check("one", 1, 2), Check("two", 2, 2)],
        gaps=[Gap("pages", "unreadable", 3, "fewer")],
    )


def gauges(kernel: Kernel) -> Iterator[Gauge]:
    clock.cpu += state.gauges_cpu_seconds
    if state.gauge_fault:
        raise state.gauge_fault
    yield Gauge("nr_made", state.counter, label="made up", source='nr_made "quoted"')


def target() -> Target:
    return replace(open_target("sample"), live=True, recorded_for=None)


def context() -> Context:
    return Context.of(target())


def sampler(*wanted: Analysis, census: int | None = None) -> Sampler:
    return Sampler(context(), wanted or (MADE,), census=census)
