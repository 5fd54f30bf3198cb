# SPDX-License-Identifier: LGPL-2.1-or-later
"""All analyses on one target, of which one that fails does not stop the others."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import drgn

from kcensus.analyses import Analysis, AnalysisError
from kcensus.analyses.runner import Context
from kcensus.progress import Progress
from kcensus.results import Finding, Result
from kcensus.sources import Target
from kcensus.sources.capsule import BadCapsule, NotRecorded
from kcensus.text import printable


@dataclass(frozen=True)
class Section:
    """What became of one analysis."""

    name: str
    question: str
    result: Result | None
    error: str
    """One sentence if there is no result."""
    seconds: float


@dataclass(frozen=True)
class Report:
    """What became of all."""

    target: str
    kernel: str
    live: bool
    sections: list[Section] = field(default_factory=list)

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """All findings with the names of their analyses, the gravest and dearest first."""
        found = [
            (section.name, finding)
            for section in self.sections
            if section.result
            for finding in section.result.findings
        ]
        return sorted(found, key=lambda pair: _rank(pair[1]))


def _rank(finding: Finding) -> tuple[int, int]:
    return -finding.severity, -(finding.cost_bytes or 0)


def report(
    target: Target, analyses: Iterable[Analysis], *, progress: Progress, **options: Any
) -> Report:
    """Run ``analyses`` on ``target``.

    They share one :class:`Kernel`, so the ``struct page`` array is read once for all of them.

    :param options: ``jobs`` and ``chunk_bytes``, as :meth:`Context.of` takes them
    """
    chosen = list(analyses)
    context = Context.of(target, progress=progress, **options)
    context.load_modules(chosen)
    made = Report(target.name, target.kernel, target.live)
    for analysis in chosen:
        run = functools.partial(context.run, analysis)
        made.sections.append(attempt(analysis.name, analysis.question, run))
    return made


def attempt(name: str, question: str, run: Callable[[], Result]) -> Section:
    """One section of a report, whatever becomes of it."""
    start = time.monotonic()
    result, error = None, ""
    try:
        result = run()
    except (AnalysisError, NotRecorded) as expected:
        error = str(expected)
    except BadCapsule as damage:
        error = f"the capsule {damage}"
    except drgn.FaultError as fault:
        error = f"needed memory of the target cannot be read: {fault}"
    except Exception as unexpected:  # the others are still worth having
        error = f"failed with {type(unexpected).__name__}: {unexpected}"
    return Section(name, question, result, printable(error), time.monotonic() - start)
