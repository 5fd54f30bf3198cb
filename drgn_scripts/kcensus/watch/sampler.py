# SPDX-License-Identifier: LGPL-2.1-or-later
"""Takes samples: the kernel's own counters each time, and a census where the CPU allows it."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

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
"""Of one CPU: what censuses may take on average, where their interval is not given."""
GAUGES_SHARE = 0.005
"""Of one CPU: what the counters of one analysis may take on average, of kernels with many devices;
beyond, a sample repeats those that were read last."""
_MAX_GAUGES = 200
"""Of each analysis."""


class Clock(Protocol):
    """What :mod:`time` offers, so that tests need not wait."""

    def time(self) -> float:
        """Return seconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some moment."""
        ...

    def process_time(self) -> float:
        """Return seconds of CPU time of this process."""
        ...


class Sampler:
    """Samples one target, which may be opened again between two samples.

    :param context: what analyses run in; its kernel is never read, only ones that it renews
    :param wanted: the analyses
    :param census: take one every that many samples; 0: none; None: whenever all of them together
        took no more than :data:`CPU_SHARE`
    """

    def __init__(
        self,
        context: Context,
        wanted: Sequence[Analysis],
        *,
        census: int | None = None,
        clock: Clock = time,
    ) -> None:
        self._wanted, self._every, self._clock = wanted, census, clock
        self._number = 0
        self._start = 0.0
        self._census: Census | None = None
        self._gauges: dict[str, tuple[Gauge, ...]] = {}
        self._gauges_cpu: dict[str, float] = {}
        self._lost = ""
        self.took_census = False
        """Whether the last sample has a census."""
        self.census_cpu_seconds = 0.0
        self.cpu_seconds = 0.0
        """CPU time of all samples, censuses included."""
        self.attach(context)

    def attach(self, context: Context) -> None:
        """Read another context from now on: that of the same target, opened again."""
        # Gauges need types of modules, too.
        context.load_modules(self._wanted)
        self._context: Context | None = context
        self._gauges.clear()  # those of another boot
        self.target = context.name
        kernel = context.kernel.renewed()
        self._machine = replace(context, kernel=kernel).machine
        self._page_bytes = attempt(lambda: int(kernel.prog["PAGE_SIZE"]))

    def show_progress(self, progress: Progress) -> None:
        """Report the steps of censuses."""
        if self._context is not None:
            self._context.kernel.progress = progress

    @property
    def is_lost(self) -> bool:
        """Whether the target has to be opened again: the kernel ended, or started again."""
        return self._context is None

    def sample(self) -> Sample:
        """Read the counters of the kernel; raises nothing: it has what cannot be read."""
        start, cpu = self._clock.monotonic(), self._clock.process_time()
        if not self._number:
            self._start = start
        self._number += 1
        self.took_census = False
        gauges: dict[str, tuple[Gauge, ...]] = {}
        errors: dict[str, str] = {}
        kernel = self._readable()
        if kernel is not None:
            for analysis in self._wanted:
                try:
                    gauges[analysis.name] = self._gauges_of(analysis, kernel, start - self._start)
                except Exception as error:  # the others are still worth having
                    errors[analysis.name] = failure(error, analysis.name)
        self._spend(cpu)
        return Sample(
            self._number,
            self._clock.time(),
            start - self._start,
            self._clock.monotonic() - start,
            self._clock.process_time() - cpu,
            self._machine,
            self._page_bytes,
            gauges,
            errors,
            self._lost if self.is_lost else "",
            self._census,
        )

    def _gauges_of(self, analysis: Analysis, kernel: Kernel, elapsed: float) -> tuple[Gauge, ...]:
        """Return the counters of an analysis, or the last ones where they took too much CPU."""
        name = analysis.name
        spent = self._gauges_cpu.get(name, 0.0)
        if name in self._gauges and spent > GAUGES_SHARE * elapsed:
            return self._gauges[name]
        self._gauges.pop(name, None)
        cpu = self._clock.process_time()
        try:
            self._gauges[name] = tuple(analysis.gauges_of(kernel))[:_MAX_GAUGES]
        finally:
            self._gauges_cpu[name] = spent + self._clock.process_time() - cpu
        return self._gauges[name]

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
        """Return a sample with a census of the kernel as it is now."""
        assert self._context is not None
        start, cpu = self._clock.monotonic(), self._clock.process_time()
        census = condensed(report(self._context, self._wanted), self._wanted)
        gc.collect()  # results refer to each other, and may be large
        spent = self._spend(cpu)
        self.census_cpu_seconds += spent
        self._census = replace(
            census,
            number=self._census.number + 1 if self._census else 1,
            time=self._clock.time(),
            seconds=self._clock.monotonic() - start,
            cpu_seconds=spent,
        )
        self.took_census = True
        return replace(sample, census=self._census, is_census=True)

    def take(self) -> Sample:
        """Take a sample, with a census if one is due."""
        sample = self.sample()
        return self.with_census(sample) if self.is_due(sample) else sample

    def _spend(self, since: float) -> float:
        spent = self._clock.process_time() - since
        self.cpu_seconds += spent
        return spent

    def _readable(self) -> Kernel | None:
        """Return the kernel with nothing read; None, and lose it, where another one runs now."""
        if self._context is None:
            return None
        kernel = self._context.kernel.renewed()
        try:
            kernel.prog["init_task"].comm.read_()
            # It is empty where the kernel has no stack protector: a restart is not noticed there.
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
