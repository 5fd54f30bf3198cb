# SPDX-License-Identifier: LGPL-2.1-or-later
"""Say what the schedulers of block devices delayed."""

from __future__ import annotations

from dataclasses import replace

from kcensus.analyses import AnalysisError
from kcensus.analyses.iosched import both
from kcensus.analyses.iosched.kernel.charts import CHARTS as KERNEL_CHARTS
from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.owners import REQUEST_OWNERS
from kcensus.analyses.iosched.kernel.queues import HARDWARE_QUEUES
from kcensus.analyses.iosched.kernel.run import answer
from kcensus.analyses.iosched.kernel.sleepers import sleepers
from kcensus.analyses.iosched.kernel.tables import TABLES as KERNEL_TABLES
from kcensus.analyses.iosched.kernel.tasks import SLEEPERS
from kcensus.analyses.iosched.trace import tables as trace_tables
from kcensus.analyses.iosched.trace.charts import CHARTS as TRACE_CHARTS
from kcensus.analyses.iosched.trace.checks import checks, gaps
from kcensus.analyses.iosched.trace.figures import Figures as Traced
from kcensus.analyses.iosched.trace.findings import findings
from kcensus.analyses.iosched.trace.summary import summary
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.machine import machine
from kcensus.progress import Progress
from kcensus.results import Answer, Gap
from kcensus.trace.events import TraceError
from kcensus.trace.files import read_trace

CHARTS = (*KERNEL_CHARTS, *TRACE_CHARTS)
TABLES = (
    *KERNEL_TABLES,
    REQUEST_OWNERS,
    HARDWARE_QUEUES,
    SLEEPERS,
    *trace_tables.TABLES,
    both.REQUESTS_TRACED,
)


def run(kernel: Kernel, trace: str | None = None) -> Answer:
    """Say what the memory of a kernel shows, what a trace does, and what both do.

    :param trace: prefix of the files of blktrace, their directory, or the output of blkparse
    :raises AnalysisError: without memory, the trace does not exist, or holds no events
    :raises LookupError: the debug info lacks block devices, requests or tasks
    """
    if trace is not None and kernel.prog.platform is None:
        return of_trace(trace, kernel.progress)
    figures = Figures(kernel)
    asleep = sleepers(figures)
    inside = answer(figures, asleep)
    if trace is None:
        return inside
    try:
        traced = _traced(trace, kernel.progress)
    except AnalysisError as error:
        # What memory shows took minutes to read.
        missing = Gap("trace", str(error), 1, "the answer is of memory alone")
        return replace(inside, gaps=[missing, *inside.gaps])
    traced, pairs = both.traced_until(figures, traced)
    outside = _answer(traced)
    return replace(
        inside,
        nothing="",
        summary=inside.summary | outside.summary | both.summary(pairs),
        tables=inside.tables
        | outside.tables
        | {"requests_traced": both.table(figures, asleep, traced, pairs)},
        checks=inside.checks + outside.checks,
        findings=both.folded(figures, inside.findings, outside.findings, pairs),
        gaps=[
            *both.gaps(figures, machine(kernel), traced, pairs),
            *inside.gaps,
            *outside.gaps,
        ],
    )


def _traced(name: str, progress: Progress) -> Traced:
    """Read a trace.

    :raises AnalysisError: the trace does not exist, or holds no events
    """
    try:
        trace = read_trace(name, progress)
    except TraceError as error:
        raise AnalysisError(str(error)) from error
    with progress.step("pairing the events", 0):
        return Traced(trace)


def of_trace(name: str, progress: Progress) -> Answer:
    """Return what a trace shows; it needs no kernel.

    :raises AnalysisError: the trace does not exist, or holds no events
    """
    return replace(_answer(_traced(name, progress)), source=name)


def _answer(figures: Traced) -> Answer:
    return Answer(
        summary=summary(figures),
        tables=trace_tables.tables(figures),
        checks=checks(figures),
        findings=findings(figures),
        gaps=gaps(figures),
    )
