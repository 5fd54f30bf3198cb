# SPDX-License-Identifier: LGPL-2.1-or-later
"""The history of samples: first and last values of each figure, findings that appear or go."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kcensus.analyses import Analysis
from kcensus.results import Figure, Finding, Unit
from kcensus.watch.samples import Census, Sample

MAX_VALUES = 60
"""Values kept per figure."""
_MAX_FIGURES = 500
"""Figures kept per analysis."""
_MAX_EVENTS = 20

NUMBERS = (Unit.BYTES, Unit.COUNT, Unit.PAGES, Unit.RATIO, Unit.SECONDS)
"""Units of figures that can move; the others are names, addresses and settings."""


def whole(value: float) -> float | int:
    """Return a number as an integer if it is one: human() shows these without decimals."""
    return int(value) if value == int(value) else value


@dataclass
class Series:
    """The last values of one figure."""

    analysis: str
    key: str
    unit: Unit
    label: str
    is_gauge: bool
    """Whether it is a counter of the kernel; otherwise it is a census's figure."""
    is_headline: bool
    first: float
    values: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_VALUES))
    has_moved: bool = False
    rate: float | None = None
    """Change per second from the value before to the last one; None for a single value."""
    _time: float = 0.0

    @property
    def last(self) -> float:
        return self.values[-1]

    def add(self, value: float, elapsed: float) -> None:
        """Add a value, with its seconds since the first sample."""
        if self.values:
            passed = elapsed - self._time
            self.rate = (value - self.last) / passed if passed > 0 else None
            self.has_moved |= value != self.last
        self.values.append(value)
        self._time = elapsed


@dataclass(frozen=True)
class Event:
    """A finding that appeared, or went."""

    time: float
    """Seconds since 1970."""
    analysis: str
    finding: Finding
    has_appeared: bool


class History:
    """Values and events of the samples of one boot."""

    def __init__(self, wanted: Sequence[Analysis]) -> None:
        self._headlines = {each.name: each.headline for each in wanted}
        self._series: dict[str, dict[tuple[bool, str], Series]]
        self._findings: dict[str, Mapping[str, Finding]] = {}
        """Findings by id, from the last census in which the analysis did not fail."""
        self._has_census = False
        self._forget()
        self._boot: str | None = None
        self.events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        """The last ones; findings of the first census are not events."""
        self.new_events: tuple[Event, ...] = ()
        """Events of the last sample."""
        self.is_first_census = False
        """Whether the last sample has the first census of its boot."""

    def add(self, sample: Sample) -> None:
        """Add a sample; the first one of another boot starts the history again."""
        if self._boot not in (None, sample.machine.boot):
            self._forget()
        self._boot = sample.machine.boot
        for name, gauges in sample.gauges.items():
            elapsed = sample.gauges_elapsed.get(name, sample.elapsed)
            for gauge in gauges:
                figure = Figure(gauge.value, gauge.unit, gauge.label)
                self._add(name, gauge.key, figure, elapsed, is_gauge=True)
        self.new_events, self.is_first_census = (), False
        if sample.is_census and sample.census is not None:
            for name, counted in sample.census.results.items():
                for key, each in counted.summary.items():
                    self._add(name, key, each, sample.elapsed, is_gauge=False)
            self.is_first_census = not self._has_census
            self._has_census = True
            self.new_events = tuple(_events(self._findings, sample.census))
            self.events.extend(self.new_events)
            for name, counted in sample.census.results.items():
                self._findings[name] = counted.findings

    def _forget(self) -> None:
        self._series = {name: {} for name in self._headlines}
        self._findings.clear()
        self._has_census = False

    def _add(
        self, analysis: str, key: str, figure: Figure, elapsed: float, *, is_gauge: bool
    ) -> None:
        value = figure.value
        if figure.unit not in NUMBERS or not isinstance(value, int | float):
            return
        if not math.isfinite(value):
            return
        known = self._series[analysis]
        series = known.get((is_gauge, key))
        if series is None:
            if len(known) >= _MAX_FIGURES:
                return
            is_headline = not is_gauge and key in self._headlines[analysis]
            # The kernel's own name: a census often has a figure of the same label.
            label = key if is_gauge else figure.label or key.replace("_", " ")
            series = Series(analysis, key, figure.unit, label, is_gauge, is_headline, value)
            known[is_gauge, key] = series
        series.add(value, elapsed)

    def of(self, analysis: str) -> list[Series]:
        """Return the figures of an analysis: the headline, then the kernel's counters, the rest."""
        order = self._headlines[analysis]
        return sorted(
            self._series[analysis].values(),
            key=lambda each: (
                order.index(each.key) if each.is_headline else len(order),
                not each.is_gauge,
            ),
        )

    def rates(
        self, analysis: str, keys: Iterable[str], *, is_gauge: bool
    ) -> dict[str, float | None]:
        """Return the change per second of counters of the kernel, or of a census's figures."""
        known = self._series[analysis]
        return {key: known[is_gauge, key].rate for key in keys if (is_gauge, key) in known}


def _events(before: Mapping[str, Mapping[str, Finding]], after: Census) -> Iterator[Event]:
    """Yield the findings that appeared or went, of analyses with a result before."""
    for name, counted in after.results.items():
        if name not in before:
            continue
        old, new = before[name], counted.findings
        for some, others, has_appeared in ((new, old, True), (old, new, False)):
            for identifier, finding in some.items():
                if identifier not in others:
                    yield Event(after.time, name, finding, has_appeared)
