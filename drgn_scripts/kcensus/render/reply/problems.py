# SPDX-License-Identifier: LGPL-2.1-or-later
"""The findings of a report in a reply: the worst in full, the step of each further urgent one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kcensus.catalogue import load
from kcensus.catalogue.model import Patch, State, Status
from kcensus.catalogue.packages import where_fixed
from kcensus.human import listed
from kcensus.render.plain import remedy_facts
from kcensus.render.reply.text import capital, plain, sentences, short, without_commands
from kcensus.reports import Report
from kcensus.results import Finding, Machine, Remedy, Severity, matters
from kcensus.results.findings import leaders, parts_of

INDENT = "    "
_MAX_OTHERS, _MAX_LINES = 5, 22
"""Most further findings, and most lines of all findings with the commands of further ones."""
_URGENCY = {
    Severity.CRITICAL: "urgent",
    Severity.WARNING: "important",
    Severity.NOTICE: "minor",
    Severity.INFO: "for information",
}
_OWN = "kcensus "
"""Beginning of a command that the reader cannot run."""
_RUN = " Run as root:"
_STILL = " Only if the machine has not been restarted since, and {}, run as root:"
_HANGS, _RUNS = "still hangs", "these processes still exist"
_MOMENT = " (numbers of processes and devices are those of that moment)"
_NUMBERS = re.compile(r"\b(?:kill|ionice)\b|\b\d+:\d+\b")
"""Commands with PIDs, or with numbers of devices."""
_NAMES = re.compile(r"[\w-]+")
_REPLACED = (
    " Names are replaced in the data that we have, so that there is no command to paste: "
    "`kcensus report` on the original dump gives it, with the real names."
)
_LIKEWISE = " Under the same condition{}, run as root:"
_ON_REQUEST = " The commands for this step come on request."
_SAME_STEP = " The step above serves this, too."


def problems(report: Report) -> Iterator[list[str]]:
    """Yield the paragraphs about findings: the worst in full, then the others."""
    found = serious(report)
    if not found:
        return
    worst, *others = found
    is_urgent = worst.severity >= Severity.WARNING
    if not is_urgent:
        yield ["Nothing urgent was found."]
    steps = _Steps(report)
    label = "What is wrong" if is_urgent else "What was found"
    yield [f"{label} ({_URGENCY[worst.severity]}): {plain(worst)}"]
    yield [f"Evidence, in the words of the kernel: {sentences(_evidence(worst, report))}"]
    yield from steps.of(worst, is_urgent)
    yield [_fix(worst, report)]
    shown, seen = others[:_MAX_OTHERS], {worst.kind}
    lines = []
    for finding in shown:
        about = short(finding) if finding.kind in seen else plain(finding)
        title = without_commands(finding.title)
        seen.add(finding.kind)
        if finding.severity >= Severity.WARNING:
            urgency = _URGENCY[finding.severity]
            fixed = f" {capital(kernel)}." if (kernel := _fixed_in(finding)) else ""
            yield from steps.briefly(finding, f"Also wrong ({urgency}): {about} {title}.{fixed}")
        else:
            fixed = f"; {kernel}" if (kernel := _fixed_in(finding)) else ""
            lines.append(f"- {about} ({_URGENCY[finding.severity]}; {title}{fixed})")
    if more := len(others) - len(shown):
        lines.append(f"- and {more} more.")
    if lines:
        yield ["Also found:", *lines]


def serious(report: Report) -> list[Finding]:
    """Return the findings to act on, without those about the report itself."""
    findings = (finding for _, finding in leaders(report.findings))
    return [each for each in findings if matters(each) and not _is_own(each)]


def minor(report: Report) -> list[str]:
    """Return the paragraph about findings that need no action."""
    findings = [finding for _, finding in leaders(report.findings) if not matters(finding)]
    titles = listed([without_commands(each.title) for each in findings], 2, "; ")
    return [f"For information only: {titles}."] if titles else []


def _is_own(finding: Finding) -> bool:
    """Return whether a finding is about the report, and a paragraph of its own."""
    return finding.kind in ("report-incomplete", "report-unsupported")


def _evidence(finding: Finding, report: Report) -> Iterator[str]:
    """Yield title and evidence, and how many tasks wait where, if a part has that alone."""
    yield without_commands(finding.title)
    undetected = _undetected(finding)
    clauses = without_commands(finding.evidence).split(". ")
    yield capital(". ".join(each for each in clauses if not undetected or undetected not in each))
    if "tasks" not in finding.figures:
        parts = [
            part
            for part in parts_of(finding, [each for _, each in report.findings])
            if (tasks := part.figures.get("tasks")) and tasks.value
        ]
        most = max(parts, key=lambda part: float(part.figures["tasks"].value or 0), default=None)
        if most is not None:
            yield f"Because of this, {without_commands(most.title)}"


def _remedies(finding: Finding) -> list[Remedy]:
    return [each for each in finding.remedies if not each.command.startswith(_OWN)]


@dataclass
class _Steps:
    """The steps against findings, as paragraphs."""

    report: Report
    given: set[str] = field(default_factory=set)
    """Commands so far."""
    condition: str = ""
    """The last condition in the text for running commands."""
    lines: int = 0
    """Lines of the steps so far."""

    @property
    def has_pseudonyms(self) -> bool:
        return (self.report.head.machine or Machine()).has_pseudonyms

    def of(self, finding: Finding, is_urgent: bool) -> Iterator[list[str]]:
        """Yield the best step against a finding with its commands, and the names of others."""
        remedies = _remedies(finding)
        what = "If the memory is needed" if finding.holds else "If you want to act on it"
        label = "What to do" if is_urgent else what
        if remedies:
            best, *rest = remedies
            start = f"{label}: {without_commands(best.effect)}."
            yield from self._counted(self._with_commands(best, finding, start))
            self.given.add(best.command)
            names = [f"({at}) {without_commands(each.effect)}" for at, each in enumerate(rest, 1)]
            if names:
                source = "that report has" if self.has_pseudonyms else "ask us for"
                yield [f"Other steps exist; {source} the commands: {sentences(names)}"]
        if next_step := without_commands(finding.no_remedy):
            self.given.add(next_step)
            yield [f"{'Otherwise' if remedies else label}: {next_step}."]
        elif not remedies:
            yield [f"{label}: nothing yet. We know no safe step, and look further into the data."]

    def briefly(self, finding: Finding, start: str) -> Iterator[list[str]]:
        """Yield the best step against a further finding, with commands if there is room.

        :param start: what is wrong
        """
        remedies, next_step = _remedies(finding)[:1], without_commands(finding.no_remedy)
        if not remedies:
            step = f" What to do: {next_step}." if next_step else ""
            is_same = bool(step) and next_step in self.given
            yield from self._counted([[start + (_SAME_STEP if is_same else step)]])
            self.given.add(next_step)
            return
        (best,) = remedies
        start = f"{start} What to do: {without_commands(best.effect)}."
        before = self.condition
        block = [*self._with_commands(best, finding, start)]
        is_same = bool(best.command) and best.command in self.given
        if is_same or self.lines + sum(map(len, block)) > _MAX_LINES:
            self.condition = before
            block = [[start + (_SAME_STEP if is_same else _ON_REQUEST * bool(best.command))]]
        yield from self._counted(block)
        self.given.add(best.command)

    def _counted(
        self, paragraphs: Sequence[list[str]] | Iterator[list[str]]
    ) -> Iterator[list[str]]:
        for each in paragraphs:
            self.lines += len(each)
            yield each

    def _with_commands(self, remedy: Remedy, finding: Finding, start: str) -> Iterator[list[str]]:
        commands = [] if self.has_pseudonyms else _indented(remedy.command)
        yield [start + self._how(remedy, finding)]
        yield commands
        facts = remedy_facts(remedy, finding.holds)
        known = {
            "Gives back": facts.get("Returns", ""),
            "Risk": facts.get("Risk", "") or ("none known" if commands else ""),
            "Lasts until": facts.get("Until", ""),
        }
        undo = [] if self.has_pseudonyms else _indented(remedy.undo)
        lines = [" ".join(f"{name}: {fact.rstrip('.')}." for name, fact in known.items() if fact)]
        yield [*filter(None, lines), *(["To undo it:"] if undo else [])]
        yield undo

    def _how(self, remedy: Remedy, finding: Finding) -> str:
        """Return the sentence before the commands; empty without any."""
        if not remedy.command:
            return ""
        if self.has_pseudonyms:
            return _REPLACED
        if finding.holds or self.report.head.live:
            return _RUN
        # Classes of I/O matter when the disk works again; the tasks alone have to be there.
        condition = _RUNS if "ionice" in remedy.command else _HANGS
        moment = _MOMENT if _NUMBERS.search(remedy.command) else ""
        is_same, self.condition = condition == self.condition, condition
        return _LIKEWISE.format(moment) if is_same else _STILL.format(condition + moment)


def _indented(command: str) -> list[str]:
    return [f"{INDENT}{line}" for line in command.splitlines()]


def _undetected(finding: Finding) -> str:
    """Return the patch in the evidence: memory does not show whether the kernel has it."""
    patches = () if finding.patch else load().patches
    return next((word for word in _NAMES.findall(finding.evidence) if word in patches), "")


def _fixed_in(finding: Finding) -> str:
    """Return a clause about the kernels with the fix of a further finding; empty without one."""
    if not (finding.patch and finding.patch_is_fix):
        return ""
    packages = finding.patch_packages
    where = packages if "since " in packages else f"{finding.patch}, {finding.patch_status}"
    return f"fixed by a newer kernel: {where}"


def _vendor_changes(patch: Patch | None, report: Report) -> list[str]:
    """Return the titles of the vendor's changes for the same problem that the kernel has."""
    result = report.results.get("patches")
    if patch is None or result is None or "patches" not in result.tables:
        return []
    table = result.tables["patches"].frame
    present = set(table["patch"][table["state"] == State.PRESENT.value])
    related = [load().patches[name] for name in patch.related if name in present]
    # Their titles begin with the setting: "fs.dentry-fs-klimit: limit …".
    titles = [each.title.split(": ", 1) for each in related if each.status is Status.DISTRIBUTION]
    return [f"{setting} ({', '.join(what)})" for setting, *what in titles]


def _fix(finding: Finding, report: Report) -> str:
    """Return a sentence about the kernel with a fix."""
    known, unknown = load(), "not known for this kernel"
    name, status, packages = finding.patch, finding.patch_status, finding.patch_packages
    if undetected := _undetected(finding):
        patch, machine = known.patches[undetected], report.head.machine or Machine()
        kernel = f"{machine.kernel} {machine.version}"
        packages = where_fixed(patch, kernel, known.distributions)
        return (
            f"Kernel with a fix: whether this one has the change {undetected} ({patch.history}) is "
            f"not visible in its memory. Packages with it: {packages or unknown}."
        )
    if not name:
        if "patches" not in report.results:
            return "Kernel with a fix: not examined."
        return "Kernel with a fix: no kernel package is known to fix this problem."
    change = f"{name}{f' ({status})' if status else ''}"
    if limits := _vendor_changes(known.patches.get(name), report):
        return f"Kernel with a fix: this one already has its vendor's change {listed(limits)}."
    if not finding.patch_is_fix:
        return f"Kernel with a fix: none is released; a change was proposed: {change}."
    if "since " in packages:
        return (
            f"Kernel with a fix: a kernel package fixes this problem: {packages}. It has the "
            f"change {change}."
        )
    return (
        f"Kernel with a fix: later ones have the change {change}. Packages: {packages or unknown}."
    )
