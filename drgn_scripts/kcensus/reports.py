# SPDX-License-Identifier: LGPL-2.1-or-later
"""All analyses on one target, of which one that fails does not stop the others."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from shlex import quote

import drgn

from kcensus.analyses import Analysis, AnalysisError, analyses
from kcensus.analyses.runner import UNEXPECTED, Context
from kcensus.catalogue import Catalogue, Detected, Patch, Prober, State, detect, load, modules
from kcensus.catalogue.model import HAS_IT
from kcensus.catalogue.price import analyses_wanted, evidence_of, weigh
from kcensus.catalogue.result import patches_result
from kcensus.catalogue.validate import Side
from kcensus.kernel.machine import machine
from kcensus.limits import memory
from kcensus.progress import Progress
from kcensus.results import Danger, Figure, Finding, Remedy, Result, Severity, fold, rank
from kcensus.sources import faults
from kcensus.sources.capsule import BadCapsule, NotRecorded
from kcensus.text import printable

PATCHES_QUESTION = "which kernel patches does this kernel have, and what do the absent ones cost?"
PATCHES_HEADLINE = ("absent_fixes", "undetermined")


@dataclass(frozen=True)
class Section:
    """The outcome of one analysis."""

    name: str
    question: str
    result: Result | None
    error: str = ""
    """One sentence if there is no result."""
    seconds: float = 0.0
    headline: tuple[str, ...] = ()
    """Keys of the summary that tell most."""


@dataclass(frozen=True)
class Report:
    """The outcomes of all."""

    head: Result
    """Target and kernel, without figures."""
    sections: list[Section]
    doctor: str = ""
    """Command that shows what the target lacks."""

    @property
    def results(self) -> dict[str, Result]:
        """The results by analysis."""
        return {section.name: section.result for section in self.sections if section.result}

    @property
    def errors(self) -> dict[str, str]:
        """Why an analysis has no result, by analysis."""
        return {section.name: section.error for section in self.sections if not section.result}

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """All findings with the names of their analyses, in the order to act on them."""
        named = [
            (name, finding) for name, result in self.results.items() for finding in result.findings
        ]
        if self.errors:
            named.append(("report", _incomplete(self.errors, self.doctor)))
        return sorted(named, key=lambda pair: rank(pair[1]))


def report(context: Context, wanted: Iterable[Analysis], *, more: int = 0) -> Report:
    """Run the analyses ``wanted``; one that fails does not stop the others.

    They share one :class:`Kernel`, so the ``struct page`` array is read once for all of them;
    unless the kernel is live: what was read for one would be out of date for the next.
    """
    chosen = list(wanted)
    head = Result("report", context.name, context.release, context.kernel.live, context.machine)

    @functools.cache
    def load_modules() -> None:
        context.load_modules(chosen)

    def run(analysis: Analysis) -> Result:
        load_modules()  # inside of a section, so that an error costs no more than that
        own = replace(context, kernel=context.kernel.renewed()) if head.live else context
        try:
            return own.run(analysis)
        except AnalysisError:
            # A capsule can be older than an analysis: that is a gap, not a failure.
            if (result := own.left_out(analysis)) is None:
                raise
            return result

    sections = []
    for number, each in enumerate(chosen, 1):
        with context.kernel.progress.step(f"{number} of {len(chosen) + more}: {each.name}", 0):
            work = functools.partial(run, each)
            sections.append(_section(each.name, each.question, work, each.headline))
    return Report(head, sections, _doctor(context))


def _doctor(context: Context) -> str:
    """Return the command that shows what the target lacks, with the options to open it."""
    words = ["kcensus", "doctor"] + ([] if context.kernel.live else [quote(context.name)])
    options = context.target.options if context.target is not None else ""
    return " ".join(filter(None, [*words, options]))


def _incomplete(errors: Mapping[str, str], doctor: str) -> Finding:
    """Return the finding that analyses have no result."""
    names = ", ".join(errors)
    reasons = dict.fromkeys(errors.values())
    return Finding(
        id="report-incomplete",
        severity=Severity.CRITICAL,
        danger=Danger.INCOMPLETE,
        title=f"this report is incomplete: {names} failed",
        evidence="; ".join(reasons),
        figures={"failed": Figure(len(errors))},
        remedies=(Remedy(effect="Show what the target lacks", command=doctor),),
    )


def conclude(result: Result, catalogue: Catalogue) -> Result:
    """Add to each finding what became of its patch, and fold findings about the same memory."""
    findings = _with_status(result.findings, catalogue)
    return replace(result, findings=fold(findings, _ram_bytes(result)))


def _ram_bytes(result: Result) -> int | None:
    return None if result.machine is None else result.machine.ram_bytes


def _missing(result: Result, detected: Mapping[str, Detected]) -> Result:
    """Return a result whose findings name no patch that the kernel has: it is not what is missing.

    :param detected: by patch id
    """
    present = {name for name, each in detected.items() if each.state in HAS_IT}
    findings = [
        replace(finding, patch="") if finding.patch in present else finding
        for finding in result.findings
    ]
    return replace(result, findings=findings)


def _with_status(findings: Iterable[Finding], catalogue: Catalogue) -> Iterator[Finding]:
    """Yield findings with what became of their patches."""
    for finding in findings:
        patch = catalogue.patches.get(finding.patch)
        yield (
            finding
            if patch is None
            else replace(finding, patch_status=patch.history, patch_is_fix=patch.is_upstream)
        )


def examine(context: Context, catalogue: Catalogue | None = None) -> Report:
    """Run all analyses, and detect all patches.

    :param catalogue: of patches; the one that comes with kcensus and what is installed by default
    """
    made = report(context, analyses().values(), more=1)
    known = load() if catalogue is None else catalogue

    detected: dict[str, Detected] = {}

    def judge() -> Result:
        detection = _detect(context, known.patches)
        detected.update(detection[1])
        return _patches(context, known, detection, made.results, made.errors)

    number = len(made.sections) + 1
    with context.kernel.progress.step(f"{number} of {number}: patches", 0):
        sections = [
            *made.sections,
            _section("patches", PATCHES_QUESTION, judge, PATCHES_HEADLINE),
        ]
    sections = [
        replace(each, result=each.result and _missing(each.result, detected)) for each in sections
    ]
    return replace(made, sections=_folded(sections, known, _ram_bytes(made.head)))


def _folded(
    sections: Iterable[Section], catalogue: Catalogue, ram_bytes: int | None
) -> list[Section]:
    """Fold the findings of all sections together; each stays in the section that has it."""
    sections = list(sections)
    owners, findings = {}, []
    for section in sections:
        for finding in section.result.findings if section.result else ():
            owners[finding.id] = section.name
            findings.append(finding)
    own: dict[str, list[Finding]] = {section.name: [] for section in sections}
    for finding in fold(_with_status(findings, catalogue), ram_bytes):
        own[owners[finding.id]].append(finding)
    return [
        replace(each, result=each.result and replace(each.result, findings=own[each.name]))
        for each in sections
    ]


def analyse(
    context: Context, analysis: Analysis, catalogue: Catalogue | None = None, **params: object
) -> Result:
    """Run one analysis, as a report does.

    :param catalogue: of patches; the one that comes with kcensus and what is installed by default
    :param params: values of its :attr:`Analysis.params`
    :raises AnalysisError: the question cannot be answered
    """
    known = load() if catalogue is None else catalogue
    result = context.run(analysis, **params)
    named = {finding.patch for finding in result.findings} & set(known.patches)
    if named:
        parts = {stage.patch for name in named for stage in known.patches[name].stages}
        wanted = {name: known.patches[name] for name in sorted(named | parts)}
        result = _missing(result, _detect(context, wanted)[1])
    return conclude(result, known)


def price(context: Context, catalogue: Catalogue, *, prices: bool = True) -> Result:
    """Return the states of all patches; runs only the analyses that measure costs and savings.

    :param prices: whether to run any
    """
    detection = _detect(context, catalogue.patches)
    wanted = analyses_wanted(catalogue, detection[1]) if prices else ()
    return _patches(context, catalogue, detection, *_run_named(context, wanted), priced=prices)


def measured(context: Context, patch: Patch, catalogue: Catalogue) -> Side:
    """Return the state of a patch on a kernel, and the figures that show its effect."""
    validation = patch.validation
    assert validation is not None
    metrics = [validation.metric, *(workload.metric for workload in validation.workload)]
    if validation.predicted is not None:
        metrics.append(validation.predicted)
    lacking, detected = _detect(context, catalogue.patches)
    metrics += [evidence.metric for evidence in evidence_of(detected[patch.id])]
    results, failed = _run_named(context, dict.fromkeys(metric.analysis for metric in metrics))
    size = machine(context.kernel)
    switch = validation.switch
    return Side(
        target=context.name,
        kernel=context.release,
        detected=weigh(detected[patch.id], results),
        results=results,
        failed=failed,
        ram_bytes=size.ram_bytes,
        cpus=size.cpus,
        uptime_seconds=size.uptime_seconds,
        switch=Prober(context.kernel.prog, lacking).number(switch) if switch else None,
    )


def traced(patch: Patch, name: str, progress: Progress | None = None) -> Side:
    """Return what a trace shows of a patch, and the figures that show its effect.

    :param patch: one with :attr:`~kcensus.catalogue.model.Patch.trace_validation` as validation
    :raises AnalysisError: there is no such trace, or it holds no events
    """
    validation = patch.validation
    assert validation is not None
    context, known = Context.without_target(progress), analyses()
    metrics = [validation.metric, *(workload.metric for workload in validation.workload)]
    results = {
        analysis: context.run(known[analysis], trace=name)
        for analysis in dict.fromkeys(metric.analysis for metric in metrics)
    }
    detected = Detected(patch, State.UNDETERMINED, "a trace has no types")
    return Side(
        target=printable(name),
        kernel="",
        detected=weigh(detected, results),
        results=results,
        failed={},
        is_trace=True,
    )


def _detect(
    context: Context, patches: Mapping[str, Patch]
) -> tuple[list[str], dict[str, Detected]]:
    """Detect patches.

    :return: one sentence for each module whose debug info is missing; states by patch id
    """
    lacking = context.need_modules(*modules(patches))
    prober = Prober(context.kernel.prog, lacking)
    return lacking, detect(patches, prober, context.release)


def _run_named(
    context: Context, names: Collection[str]
) -> tuple[dict[str, Result], dict[str, str]]:
    """Run analyses by name; return their results, and why there is none of the others."""
    known = analyses()
    made = report(context, [known[name] for name in names if name in known])
    unknown = {name: "unknown analysis" for name in names if name not in known}
    return made.results, made.errors | unknown


def _patches(
    context: Context,
    catalogue: Catalogue,
    detection: tuple[list[str], dict[str, Detected]],
    results: dict[str, Result],
    failed: dict[str, str],
    *,
    priced: bool = True,
) -> Result:
    result = patches_result(
        catalogue,
        detection[1],
        results,
        target=context.name,
        kernel=context.release,
        live=context.kernel.live,
        lacking=detection[0],
        failed=failed,
        priced=priced,
    )
    gaps = context.truncation() + result.gaps
    return replace(result, machine=context.machine, gaps=gaps)


def _section(
    name: str, question: str, run: Callable[[], Result], headline: tuple[str, ...] = ()
) -> Section:
    """Run one section of a report, and turn any failure of it into a sentence."""
    start = time.monotonic()
    result, error = None, ""
    try:
        result = run()
    except Exception as failed:  # the others are still worth having
        error = failure(failed, name)
    seconds = time.monotonic() - start
    return Section(name, question, result, error, seconds, headline)


def failure(error: Exception, name: str) -> str:
    """Return why an analysis failed, as one printable sentence."""
    match error:
        case AnalysisError() | NotRecorded():
            sentence = str(error)
            if isinstance(error.__cause__, UNEXPECTED):
                sentence += _where(name)
        case BadCapsule():
            sentence = f"the capsule {error}"
        case drgn.FaultError():
            sentence = faults.sentence(error, name) + _where(name)
        case MemoryError():
            sentence = memory.exceeded(name)
        case _:
            sentence = f"failed with {type(error).__name__}: {error}{_where(name)}"
    return printable(sentence)


def _where(name: str) -> str:
    return f" (`kcensus {name} --debug` shows where)"
