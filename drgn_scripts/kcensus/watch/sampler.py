# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take samples: the kernel's own counters each time, and a census if CPU time allows."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kcensus.analyses import Analysis
from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.machine import boot_id
from kcensus.kernel.size import attempt
from kcensus.progress import Progress
from kcensus.reports import failure, report
from kcensus.results import Gauge
from kcensus.watch.samples import Census, Sample, condensed

CPU_SHARE = 0.01
"""Share of one CPU that censuses may take on average, if their interval is not given."""
GAUGES_SHARE = 0.005
"""Share of one CPU that the counters of one analysis may take on average; kernels with many devices
exceed it, and some samples then lack these counters. The first reading, which finds types, does not
count."""
_MAX_GAUGES = 200
"""Gauges kept per analysis."""


@dataclass
class _Counters:
    start: float
    """Time of the first reading, by the monotonic clock."""
    gauges: tuple[Gauge, ...] = ()
    error: str = ""
    """Reason of a failed last reading."""
    cpu_seconds: float = 0.0
    """CPU time of all readings but the first one."""


class Sampler:
    """Samples one target, which may be opened again between two samples.

    :param context: context of the analyses; only renewed kernels of it are read
    :param wanted: the analyses
    :param census: take one every that many samples; 0: none; None: whenever all of them together
        took no more than :data:`CPU_SHARE`
    """

    def __init__(
        self, context: Context, wanted: Sequence[Analysis], *, census: int | None = None
    ) -> None:
        self._wanted, self._every = wanted, census
        self._number = 0
        self._start = 0.0
        self._census: Census | None = None
        self._censuses = 0
        self._counters: dict[str, _Counters] = {}
        self._lost = self._boot = ""
        self.took_census = False
        """Whether the last sample has a census."""
        self.census_cpu_seconds = 0.0
        self.cpu_seconds = 0.0
        """CPU time of all samples, censuses included."""
        self.attach(context)

    def attach(self, context: Context) -> None:
        """Read another context from now on: the same target, opened again."""
        # Gauges need types of modules, too.
        context.load_modules(self._wanted)
        self._context: Context | None = context
        self._counters.clear()  # types have to be found again, and it may be another boot
        self.target = context.name
        kernel = context.kernel.renewed()
        self._machine = replace(context, kernel=kernel).machine
        if not self._boot or self._machine.boot != self._boot:
            self._census = None
        self._boot = self._machine.boot
        self._page_bytes = attempt(lambda: int(kernel.prog["PAGE_SIZE"]))

    def show_progress(self, progress: Progress) -> None:
        """Report the steps of censuses to ``progress``."""
        if self._context is not None:
            self._context.kernel.progress = progress

    @property
    def is_lost(self) -> bool:
        """Whether to open the target again: the kernel ended, or started again."""
        return self._context is None

    def sample(self) -> Sample:
        """Read the counters of the kernel; errors are part of the sample."""
        now, start, cpu = time.time(), time.monotonic(), time.process_time()
        if not self._number:
            self._start = start
        self._number += 1
        self.took_census = False
        elapsed: dict[str, float] = {}
        kernel = self._readable()
        known = self._counters if kernel is not None else {}
        for analysis in self._wanted:
            if kernel is not None and self._read_counters(analysis, kernel):
                elapsed[analysis.name] = time.monotonic() - self._start
        return Sample(
            self._number,
            now,
            start - self._start,
            time.monotonic() - start,
            self._spend(cpu),
            self._machine,
            self._page_bytes,
            {name: known[name].gauges for name in elapsed},
            elapsed,
            {name: each.gauges for name, each in known.items() if not each.error},
            {name: each.error for name, each in known.items() if each.error},
            self._lost if self.is_lost else "",
            self._census,
        )

    def _read_counters(self, analysis: Analysis, kernel: Kernel) -> bool:
        """Read the counters of an analysis, unless they took too much CPU; return whether it did.

        Failures take CPU, too.
        """
        now, cpu = time.monotonic(), time.process_time()
        known = self._counters.get(analysis.name)
        if known and known.cpu_seconds > GAUGES_SHARE * (now - known.start):
            return False
        gauges: tuple[Gauge, ...] = ()
        error = ""
        try:
            gauges = tuple(analysis.gauges_of(kernel))[:_MAX_GAUGES]
        except Exception as why:  # it is shown, and the counters of the others are read
            error = failure(why, analysis.name)
        start, spent = now, 0.0
        if known:
            start = known.start
            spent = known.cpu_seconds + time.process_time() - cpu
        self._counters[analysis.name] = _Counters(start, gauges, error, spent)
        return not error

    def is_due(self, sample: Sample) -> bool:
        """Return whether to take a census with a sample."""
        if self._every == 0 or self.is_lost:
            return False
        if self._census is None:
            return True
        if self._every is not None:
            return (self._number - 1) % self._every == 0
        return self.census_cpu_seconds <= CPU_SHARE * sample.elapsed

    def with_census(self, sample: Sample) -> Sample:
        """Return a sample with a census of the present kernel."""
        assert self._context is not None
        start, cpu = time.monotonic(), time.process_time()
        census = condensed(report(self._context, self._wanted), self._wanted)
        gc.collect()  # results refer to each other, and may be large
        spent = self._spend(cpu)
        self.census_cpu_seconds += spent
        self._censuses += 1
        self._census = replace(
            census,
            number=self._censuses,
            time=time.time(),
            seconds=time.monotonic() - start,
            cpu_seconds=spent,
        )
        self.took_census = True
        return replace(sample, census=self._census, is_census=True)

    def take(self) -> Sample:
        """Take a sample, with a census if one is due."""
        sample = self.sample()
        return self.with_census(sample) if self.is_due(sample) else sample

    def _spend(self, since: float) -> float:
        spent = time.process_time() - since
        self.cpu_seconds += spent
        return spent

    def _readable(self) -> Kernel | None:
        """Return a new kernel without results; None, and lose the target, if another one runs."""
        if self._context is None:
            return None
        kernel = self._context.kernel.renewed()
        try:
            kernel.prog["init_task"].comm.read_()
            # Empty without a stack protector in the kernel: a restart is then not noticed.
            boot = attempt(lambda: boot_id(kernel.prog)) or ""
        except Exception:  # drgn's errors have no common base class
            boot = None
        if boot == self._machine.boot:
            return kernel
        self._lost = (
            "the kernel cannot be read any more: it ended, or started again"
            if boot is None
            else "another kernel runs now: it started again"
        )
        self._context = None
        return None
