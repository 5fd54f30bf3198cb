# SPDX-License-Identifier: LGPL-2.1-or-later
"""All analyses on one target, of which one that fails does not stop the others."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import drgn

from kcensus.analyses import Analysis, AnalysisError, analyses
from kcensus.analyses.runner import Context
from kcensus.catalogue import Catalogue, Detected, Patch, Prober, detect, load, modules
from kcensus.catalogue.price import analyses_wanted
from kcensus.catalogue.result import patches_result
from kcensus.catalogue.validate import Side
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.machine import machine
from kcensus.results import Finding, Result, rank
from kcensus.sources.capsule import BadCapsule, NotRecorded
from kcensus.text import printable

PATCHES_QUESTION = "which kernel patches does this kernel have, and what do the absent ones cost?"


@dataclass(frozen=True)
class Section:
    """The outcome of one analysis."""

    name: str
    question: str
    result: Result | None
    error: str
    """One sentence if there is no result."""
    seconds: float
    headline: tuple[str, ...] = ()
    """Keys of the summary that tell most."""


@dataclass(frozen=True)
class Report:
    """The outcomes of all."""

    target: str
    kernel: str
    live: bool
    sections: list[Section] = field(default_factory=list)
    ram_bytes: int | None = None
    """None where it is unreadable."""

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """All findings with the names of their analyses, in the order of :func:`rank`."""
        findings = [
            (section.name, finding)
            for section in self.sections
            if section.result
            for finding in section.result.findings
        ]
        return sorted(findings, key=lambda pair: rank(pair[1], self.ram_bytes))

    @property
    def results(self) -> dict[str, Result]:
        """The results by analysis."""
        return {section.name: section.result for section in self.sections if section.result}

    @property
    def errors(self) -> dict[str, str]:
        """Why an analysis has no result, by analysis."""
        return {section.name: section.error for section in self.sections if not section.result}


def report(context: Context, wanted: Iterable[Analysis]) -> Report:
    """Run the analyses ``wanted``; one that fails does not stop the others.

    They share one :class:`Kernel`, so the ``struct page`` array is read once for all of them.
    """
    chosen = list(wanted)
    context.load_modules(chosen)
    sections = []
    for analysis in chosen:
        run = functools.partial(context.run, analysis)
        sections.append(attempt(analysis.name, analysis.question, run, analysis.headline))
    kernel = context.kernel
    return Report(context.name, context.release, kernel.live, sections, _ram_bytes(kernel))


def examine(context: Context, catalogue: Catalogue | None = None) -> Report:
    """Run all analyses, and detect all patches.

    :param catalogue: of patches; the one that comes with kcensus and what is installed by default
    """
    made = report(context, analyses().values())
    judged = functools.partial(judge, context, load() if catalogue is None else catalogue, made)
    made.sections.append(attempt("patches", PATCHES_QUESTION, judged))
    return made


def judge(context: Context, catalogue: Catalogue, made: Report) -> Result:
    """Return the states of all patches on a kernel whose analyses have already run."""
    return _patches(context, catalogue, *detect_patches(context, catalogue), made)


def price(context: Context, catalogue: Catalogue, *, prices: bool = True) -> Result:
    """Return the states of all patches; runs only the analyses that measure costs and savings.

    :param prices: whether to run any
    """
    lacking, detected = detect_patches(context, catalogue)
    wanted = analyses_wanted(catalogue, detected) if prices else ()
    known = analyses()
    made = report(context, [known[name] for name in wanted if name in known])
    unknown = {name: "unknown analysis" for name in wanted if name not in known}
    return _patches(context, catalogue, lacking, detected, made, unknown, priced=prices)


def detect_patches(context: Context, catalogue: Catalogue) -> tuple[list[str], dict[str, Detected]]:
    """Detect the patches of a catalogue.

    :return: one sentence for each module whose debug info is missing; states by patch id
    """
    lacking = context.need_modules(*modules(catalogue.patches))
    prober = Prober(context.kernel.prog, lacking)
    return lacking, detect(catalogue.patches, prober, context.release)


def measured(context: Context, patch: Patch, catalogue: Catalogue) -> Side:
    """Return the state of a patch on a kernel, and the figures that show its effect."""
    validation = patch.validation
    assert validation is not None
    metrics = [validation.metric, *(workload.metric for workload in validation.workload)]
    if validation.predicted is not None:
        metrics.append(validation.predicted)
    wanted = dict.fromkeys(metric.analysis for metric in metrics)
    lacking, detected = detect_patches(context, catalogue)
    known = analyses()
    made = report(context, [known[name] for name in wanted if name in known])
    prog = context.kernel.prog
    size = machine(prog)
    switch = validation.switch
    return Side(
        target=context.name,
        kernel=context.release,
        detected=detected[patch.id],
        results=made.results,
        failed=made.errors | {name: "unknown analysis" for name in wanted if name not in known},
        ram_bytes=size.ram_bytes,
        cpus=size.cpus,
        uptime_seconds=size.uptime_seconds,
        switch=Prober(prog, lacking).number(switch) if switch else None,
    )


def _patches(
    context: Context,
    catalogue: Catalogue,
    lacking: list[str],
    detected: dict[str, Detected],
    made: Report,
    unknown: Mapping[str, str] | None = None,
    *,
    priced: bool = True,
) -> Result:
    return patches_result(
        catalogue,
        detected,
        made.results,
        target=context.name,
        kernel=context.release,
        live=context.kernel.live,
        lacking=lacking,
        failed=made.errors | {**(unknown or {})},
        priced=priced,
    )


def attempt(
    name: str, question: str, run: Callable[[], Result], headline: tuple[str, ...] = ()
) -> Section:
    """Run one section of a report, and turn any failure of it into a sentence."""
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
    seconds = time.monotonic() - start
    return Section(name, question, result, printable(error), seconds, headline)


def _ram_bytes(kernel: Kernel) -> int | None:
    try:
        return kernel.ram_bytes
    except Exception:  # damaged in any way: findings are ranked without it
        return None
