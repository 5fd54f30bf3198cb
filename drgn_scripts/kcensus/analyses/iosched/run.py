# SPDX-License-Identifier: LGPL-2.1-or-later
"""Report the requests that the schedulers of block devices delayed."""

from __future__ import annotations

from dataclasses import replace

from kcensus.analyses import AnalysisError
from kcensus.analyses.iosched import both
from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.run import answer
from kcensus.analyses.iosched.kernel.tables import CHARTS as KERNEL_CHARTS
from kcensus.analyses.iosched.kernel.tables import TABLES as KERNEL_TABLES
from kcensus.analyses.iosched.trace.checks import checks, gaps, summary
from kcensus.analyses.iosched.trace.figures import Figures as Traced
from kcensus.analyses.iosched.trace.findings import findings
from kcensus.analyses.iosched.trace.tables import CHARTS as TRACE_CHARTS
from kcensus.analyses.iosched.trace.tables import TABLES as TRACE_TABLES
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.machine import machine
from kcensus.progress import Progress
from kcensus.results import Answer, Figure, Gap
from kcensus.results.tables import make_tables
from kcensus.sources.blktrace.events import TraceError
from kcensus.sources.blktrace.files import read_trace

CHARTS = (*KERNEL_CHARTS, *TRACE_CHARTS)
TABLES = (*KERNEL_TABLES, *TRACE_TABLES, both.REQUESTS_TRACED)


def run(kernel: Kernel, trace: str | None = None) -> Answer:
    """Report on the requests in a kernel's memory, in a trace, or in both.

    :param trace: prefix of the files of blktrace, their directory, or the output of blkparse
    :raises AnalysisError: without memory, the trace does not exist, or holds no events
    :raises LookupError: the debug info lacks block devices, requests or tasks
    """
    if trace is not None and kernel.prog.platform is None:
        return of_trace(trace, kernel.progress)
    figures = Figures(kernel)
    inside = answer(figures)
    if trace is None:
        return inside
    try:
        traced = _traced(trace, kernel.progress)
    except AnalysisError as error:
        # The figures of memory took minutes to read: keep them.
        missing = Gap("trace", str(error), 1, "results cover the dump only")
        return replace(inside, gaps=[missing, *inside.gaps])
    traced, pairs = both.traced_until(figures, traced)
    outside = _answer(traced)
    common = Figure(len(pairs), label="requests also in the trace")
    return replace(
        inside,
        nothing="",
        summary=inside.summary | outside.summary | {"requests_traced": common},
        tables=inside.tables
        | outside.tables
        | make_tables((both.REQUESTS_TRACED,), both.Both(figures, traced, pairs)),
        checks=inside.checks + outside.checks,
        findings=both.folded(figures, inside.findings, outside.findings, pairs),
        gaps=[*both.gaps(figures, machine(kernel), traced, pairs), *inside.gaps, *outside.gaps],
    )


def _traced(name: str, progress: Progress) -> Traced:
    try:
        trace = read_trace(name, progress)
    except TraceError as error:
        raise AnalysisError(str(error)) from error
    with progress.step("pairing the events", 0):
        return Traced(trace)


def of_trace(name: str, progress: Progress) -> Answer:
    """Return the answer of a trace; it needs no kernel.

    :raises AnalysisError: the trace does not exist, or holds no events
    """
    return replace(_answer(_traced(name, progress)), source=name)


def _answer(figures: Traced) -> Answer:
    return Answer(
        summary=summary(figures),
        tables=make_tables(TRACE_TABLES, figures),
        checks=checks(figures),
        findings=findings(figures),
        gaps=gaps(figures),
    )
