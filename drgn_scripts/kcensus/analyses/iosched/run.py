# SPDX-License-Identifier: LGPL-2.1-or-later
"""Say what the schedulers of block devices delayed."""

from __future__ import annotations

from dataclasses import replace

from kcensus.analyses import AnalysisError
from kcensus.analyses.iosched.trace import tables as trace_tables
from kcensus.analyses.iosched.trace.checks import checks, gaps
from kcensus.analyses.iosched.trace.figures import Figures
from kcensus.analyses.iosched.trace.findings import findings
from kcensus.analyses.iosched.trace.summary import summary
from kcensus.kernel.kernel import Kernel
from kcensus.progress import Progress
from kcensus.results import Answer
from kcensus.trace.events import Trace, TraceError
from kcensus.trace.files import read_trace

TABLES = trace_tables.TABLES


def run(kernel: Kernel, trace: str | None = None) -> Answer:
    """Say what a trace shows.

    :param trace: prefix of the files of blktrace, their directory, or the output of blkparse
    :raises AnalysisError: there is no trace of that name, or it holds no events
    """
    if trace is None:
        return replace(
            _answer(Figures(Trace.without_events())),
            nothing="no trace was given: --trace PREFIX reads one of blktrace",
            checks=[],
            measures=False,
        )
    return of_trace(trace, kernel.progress)


def of_trace(name: str, progress: Progress) -> Answer:
    """Return what a trace shows; it needs no kernel.

    :raises AnalysisError: there is no trace of that name, or it holds no events
    """
    try:
        trace = read_trace(name, progress)
    except TraceError as error:
        raise AnalysisError(str(error)) from error
    with progress.step("pairing the events", 0):
        return replace(_answer(Figures(trace)), source=name)


def _answer(figures: Figures) -> Answer:
    return Answer(
        summary=summary(figures),
        tables=trace_tables.tables(figures),
        checks=checks(figures),
        findings=findings(figures),
        gaps=gaps(figures),
    )
