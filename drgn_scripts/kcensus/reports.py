# SPDX-License-Identifier: LGPL-2.1-or-later
"""All analyses on one target; a failing one does not stop the others."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import TypeAlias

import drgn

from kcensus.analyses import Analysis, AnalysisError, analyses
from kcensus.analyses.failures import kind_of
from kcensus.analyses.runner import LACKING, UNEXPECTED, UNSUPPORTED, Context
from kcensus.catalogue import Catalogue, Detected, Patch, Prober, State, detect, load, modules
from kcensus.catalogue.model import HAS_IT
from kcensus.catalogue.packages import where_fixed
from kcensus.catalogue.price import analyses_wanted, evidence_of, weigh
from kcensus.catalogue.result import patches_result
from kcensus.catalogue.validate import Side
from kcensus.human import counted, listed
from kcensus.kernel.machine import machine
from kcensus.kernel.waiting.finder import LOOK_AT_STACKS
from kcensus.limits import memory
from kcensus.progress import Progress
from kcensus.results import (
    CheckStatus,
    Danger,
    Figure,
    Finding,
    Remedy,
    Result,
    Severity,
    fold,
    rank,
)
from kcensus.sources import faults
from kcensus.sources.capsule import BadCapsule, NotRecorded
from kcensus.text import printable

_PATCHES_QUESTION = "which kernel patches does this kernel have, and what do the absent ones cost?"
_PATCHES_HEADLINE = ("absent_fixes", "undetermined")


_MANY_DIFFER = 3
"""Least checks that differ on a damaged dump."""
_MAX_NAMED = 8
_OF_STALLS = ("iosched", "waits")
"""Analyses that find stalls."""


@dataclass(frozen=True)
class Section:
    """The outcome of one analysis."""

    name: str
    result: Result | None
    error: str = ""
    """One sentence without a result."""
    seconds: float = 0.0
    kind: str = ""
    """Class of the error, without names of the machine; empty with a result."""

    @property
    def question(self) -> str:
        """The question of the analysis; empty if it is not installed."""
        known = analyses().get(self.name)
        return known.question if known else _PATCHES_QUESTION * (self.name == "patches")

    def headline_keys(self, most: int) -> list[str]:
        """Return the most telling keys of the result's summary, or the first ones."""
        known = analyses().get(self.name)
        headline = known.headline if known else _PATCHES_HEADLINE
        summary = self.result.summary if self.result else {}
        return ([key for key in headline if key in summary] or list(summary))[:most]


Sectioning: TypeAlias = "Callable[[str, Callable[[], Result]], Section]"
"""Runs an analysis of a name, and returns its section."""


@dataclass(frozen=True)
class Report:
    """The outcomes of all analyses."""

    head: Result
    """Target and kernel, without figures."""
    sections: list[Section]
    doctor: str = ""
    """Command that shows the gaps of the target."""
    capsule: str = ""
    """Command that extracts what analyses need of the target, a vmcore; empty for another one."""

    @property
    def results(self) -> dict[str, Result]:
        """The results by analysis."""
        return {section.name: section.result for section in self.sections if section.result}

    @property
    def errors(self) -> dict[str, str]:
        """Reasons of analyses without a result, by analysis."""
        return {section.name: section.error for section in self.sections if not section.result}

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """All findings with the names of their analyses, in the order to act on them."""
        named = [
            (name, finding) for name, result in self.results.items() for finding in result.findings
        ]
        named += [("report", finding) for finding in self.head.findings]
        found = incomplete("report", "report", self.errors.items(), [self.doctor])
        named += [("report", finding) for finding in found]
        return sorted(named, key=lambda pair: rank(pair[1]))


def report(
    context: Context,
    wanted: Iterable[Analysis],
    *,
    more: int = 0,
    section: Sectioning | None = None,
) -> Report:
    """Run the analyses ``wanted``; a failing one does not stop the others.

    :param more: sections that follow, for the progress
    :param section: runs each, and may stop it; by default :func:`section_of`

    They share one :class:`Kernel`, so the ``struct page`` array is read once for all of them;
    unless the kernel is live, when the results of one reader would be out of date for the next.
    """
    chosen = list(wanted)
    head = Result("report", context.name, context.release, context.kernel.live, context.machine)
    head.placeholders = context.placeholders

    @functools.cache
    def load_modules() -> None:
        context.load_modules(chosen)

    def run(analysis: Analysis) -> Result:
        load_modules()  # inside of a section, so that an error costs this section only
        own = replace(context, kernel=context.kernel.renewed()) if head.live else context
        # A capsule has some of the memory that other analyses read, so that figures would be too
        # low; and it can be older than an analysis: that is a gap, not a failure.
        return own.left_out(analysis) or own.run(analysis)

    sections = []
    for number, each in enumerate(chosen, 1):
        with context.kernel.progress.step(f"{number} of {len(chosen) + more}: {each.name}", 0):
            sections.append((section or section_of)(each.name, functools.partial(run, each)))
    if context.target is not None and head.machine is not None:
        # The sources of the modules' types are known by now.
        head.machine = replace(head.machine, types=context.target.type_sources)
    is_vmcore = context.target is not None and not (head.live or context.kernel.is_capsule)
    capsule = f"{_command(context, 'capsule create')} case.capsule" if is_vmcore else ""
    return Report(head, sections, _command(context, "doctor"), capsule)


def _command(context: Context, name: str) -> str:
    """Return a command for the target, with the options to open it."""
    words = context.placeholders.get("TARGET", quote(context.name))
    return f"kcensus {name} {words}".rstrip()


def incomplete(
    kind: str, what: str, failed: Collection[tuple[str, str]], doctors: Iterable[str]
) -> Iterator[Finding]:
    """Yield the findings that a report or comparison (``what``) is incomplete.

    :param failed: names of analyses without a result, and the reasons
    :param doctors: commands that show the gaps of the targets
    """
    unsupported = [each for each in failed if UNSUPPORTED in each[1]]
    if unsupported:
        names = [*dict.fromkeys(name for name, _ in unsupported)]
        is_for_stalls = not {*names}.isdisjoint(_OF_STALLS)
        yield Finding(
            id=f"{kind}-unsupported",
            severity=Severity.NOTICE,
            danger=Danger.INCOMPLETE,
            title=f"{_and(names)} {'does' if len(names) == 1 else 'do'} not support this kernel",
            evidence="; ".join(dict.fromkeys(why for _, why in unsupported)),
            figures={"failed": Figure(len(unsupported))},
            no_remedy="Nothing: no debug info helps"
            + ("" if is_for_stalls else "; the search for stalls does without them"),
        )
    others = [each for each in failed if UNSUPPORTED not in each[1]]
    if others:
        is_lacking = all(LACKING in why for _, why in others)
        names = [*dict.fromkeys(name for name, _ in others)]
        yield Finding(
            id=f"{kind}-incomplete",
            severity=Severity.WARNING if is_lacking else Severity.CRITICAL,
            danger=Danger.INCOMPLETE,
            title=f"this {what} is incomplete: {_and(names)} "
            + (f"lack{'s' * (len(names) == 1)} debug info" if is_lacking else "failed"),
            evidence="; ".join(dict.fromkeys(why for _, why in others)),
            figures={"failed": Figure(len(others))},
            remedies=tuple(
                Remedy(
                    effect="Add the debug info that the evidence names, with -s; this command "
                    "shows which files are used"
                    if is_lacking
                    else "Show the missing parts of the target",
                    command=doctor,
                )
                for doctor in doctors
            ),
        )


def _and(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def conclude(result: Result, catalogue: Catalogue) -> Result:
    """Add the status of its patch to each finding, and fold findings about the same memory."""
    findings = _with_status(result.findings, catalogue, _kernel(result))
    return replace(result, findings=fold(findings, _ram_bytes(result)))


def _kernel(result: Result) -> str:
    """Return release and build of the kernel, which tell its distribution; empty if unknown."""
    machine = result.machine
    return f"{machine.kernel} {machine.version}" if machine else ""


def _ram_bytes(result: Result) -> int | None:
    return None if result.machine is None else result.machine.ram_bytes


def _missing(result: Result, detected: Mapping[str, Detected]) -> Result:
    """Return a result without patches that the kernel has in its findings."""
    present = {name for name, each in detected.items() if each.state in HAS_IT}
    findings = [
        replace(finding, patch="") if finding.patch in present else finding
        for finding in result.findings
    ]
    return replace(result, findings=findings)


def _with_status(
    findings: Iterable[Finding], catalogue: Catalogue, kernel: str
) -> Iterator[Finding]:
    """Yield findings with the fate of their patches, and packages of the kernel's distribution."""
    for finding in findings:
        patch = catalogue.patches.get(finding.patch)
        yield (
            finding
            if patch is None
            else replace(
                finding,
                patch_status=patch.history,
                patch_is_fix=patch.is_upstream,
                patch_packages=where_fixed(patch, kernel, catalogue.distributions),
            )
        )


def examine(
    context: Context,
    catalogue: Catalogue | None = None,
    *,
    order: Sequence[str] = (),
    section: Sectioning | None = None,
) -> Report:
    """Run all analyses, and detect all patches of a catalogue, by default the installed one.

    :param order: names of the first analyses to run, if there are reasons; the report has its own
    :param section: as of :func:`report`
    """
    section = section or section_of
    chosen = {name: analyses()[name] for name in order if name in analyses()} | {**analyses()}
    made = report(context, chosen.values(), more=1, section=section)
    by_name = {each.name: each for each in made.sections}
    made = replace(made, sections=[by_name[name] for name in analyses()])
    known = load() if catalogue is None else catalogue

    detected: dict[str, Detected] = {}

    def judge() -> Result:
        detection = _detect(context, known.patches)
        detected.update(detection[1])
        return _patches(context, known, detection, made.results, made.errors)

    number = len(made.sections) + 1
    with context.kernel.progress.step(f"{number} of {number}: patches", 0):
        sections = [*made.sections, section("patches", judge)]
    is_torn = made.head.live or (context.target is not None and context.target.is_torn)
    return concluded(replace(made, sections=sections), known, detected, is_torn=is_torn)


def concluded(
    made: Report,
    catalogue: Catalogue,
    detected: Mapping[str, Detected] | None = None,
    *,
    is_torn: bool = False,
) -> Report:
    """Return a report of sections whose findings are folded together.

    :param detected: states of patches
    :param is_torn: whether the kernel ran, so that checks may differ on an intact target
    """
    sections = [
        replace(each, result=each.result and _missing(each.result, detected or {}))
        for each in made.sections
    ]
    if not is_torn:
        made.head.findings = [*_damaged(sections)]
    return replace(made, sections=_folded(sections, catalogue, made.head))


def _damaged(sections: Iterable[Section]) -> Iterator[Finding]:
    """Yield the finding that several figures differ from the kernel's counters."""
    checks = [check for each in sections if each.result for check in each.result.checks]
    differ = [check for check in checks if check.status is CheckStatus.DIFFER]
    if len(differ) < _MANY_DIFFER:
        return
    yield Finding(
        id="report-damaged",
        severity=Severity.WARNING,
        danger=Danger.INCOMPLETE,
        title=f"the dump is damaged: {len(differ)} of {counted(len(checks), 'check')} differ, so "
        "that figures can be wrong",
        evidence=listed([check.name for check in differ], _MAX_NAMED),
        figures={"differ": Figure(len(differ)), "checks": Figure(len(checks))},
        no_remedy="`kcensus report TARGET --full` shows which figures are concerned; dump the "
        "machine again if you can",
    )


def _folded(sections: Iterable[Section], catalogue: Catalogue, head: Result) -> list[Section]:
    """Fold the findings of all sections together; each stays in its section."""
    sections = list(sections)
    owners, findings = {}, []
    for section in sections:
        for finding in section.result.findings if section.result else ():
            owners[finding.id] = section.name
            findings.append(finding)
    own: dict[str, list[Finding]] = {section.name: [] for section in sections}
    failed = [section.name for section in sections if not section.result]
    known = _with_status(findings, catalogue, _kernel(head))
    for finding in fold(known, _ram_bytes(head), owners):
        if any(f"`kcensus {name} " in finding.no_remedy for name in failed):
            finding = replace(finding, no_remedy=LOOK_AT_STACKS)
        own[owners[finding.id]].append(finding)
    return [
        replace(each, result=each.result and replace(each.result, findings=own[each.name]))
        for each in sections
    ]


def analyse(
    context: Context, analysis: Analysis, catalogue: Catalogue | None = None, **params: object
) -> Result:
    """Run one analysis, as a report does.

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
    """Return the states of all patches; ``prices`` runs the analyses that measure their effects."""
    detection = _detect(context, catalogue.patches)
    wanted = analyses_wanted(catalogue, detection[1]) if prices else ()
    return _patches(context, catalogue, detection, *_run_named(context, wanted), priced=prices)


def measured(context: Context, patch: Patch, catalogue: Catalogue) -> Side:
    """Return the state of a patch on a kernel, and the figures that show its effect."""
    validation = patch.validation
    assert validation is not None
    metrics = [validation.metric, *(workload.metric for workload in validation.workload)]
    metrics += [validation.predicted] if validation.predicted else []
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
        nodes=size.nodes,
        uptime_seconds=size.uptime_seconds,
        switch=Prober(context.kernel.prog, lacking).number(switch) if switch else None,
    )


def traced(patch: Patch, name: str, progress: Progress | None = None) -> Side:
    """Return the evidence of a trace about a patch, and the figures that show its effect.

    :param patch: one with :attr:`~kcensus.catalogue.model.Patch.trace_validation` as validation
    :raises AnalysisError: the trace does not exist, or holds no events
    """
    validation = patch.validation
    assert validation is not None
    context, known = Context.without_target(progress), analyses()
    metrics = [validation.metric, *(workload.metric for workload in validation.workload)]
    names = dict.fromkeys(metric.analysis for metric in metrics)
    results = {analysis: context.run(known[analysis], trace=name) for analysis in names}
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
    """Return a sentence for each module without debug info, and the states by patch id."""
    lacking = context.need_modules(*modules(patches))
    types = context.target.type_sources if context.target else "DWARF"
    prober = Prober(context.kernel.prog, lacking, types)
    return lacking, detect(patches, prober)


def _run_named(
    context: Context, names: Collection[str]
) -> tuple[dict[str, Result], dict[str, str]]:
    """Run analyses by name; return their results, and the reasons of those without one."""
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
        build=context.machine.version if context.machine else "",
        lacking=detection[0],
        failed=failed,
        priced=priced,
    )
    gaps = context.truncation() + result.gaps
    return replace(result, machine=context.machine, gaps=gaps)


def section_of(name: str, run: Callable[[], Result]) -> Section:
    """Run an analysis, and return what it found, or why it failed."""
    start = time.monotonic()
    result, error, kind = None, "", ""
    try:
        result = run()
    except Exception as failed:  # the others are still worth having
        error, kind = failure(failed, name), kind_of(failed)
    return Section(name, result, error, time.monotonic() - start, kind)


def failure(error: Exception, name: str) -> str:
    """Return the reason of an analysis's failure, as one printable sentence."""
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
    return f" (`kcensus {name} TARGET --debug` shows where)"
