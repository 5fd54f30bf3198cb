# SPDX-License-Identifier: LGPL-2.1-or-later
"""A report as text for a ticket, for a reader who administers the machine.

It stands on no width: a paragraph is one line, and each line of a command is one line, indented by
four spaces, so that ticket systems that read Markdown leave it as it is. Sentences about commands
of kcensus are left out: the reader has neither the dump nor kcensus.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import chain
from typing import TextIO

from kcensus import explain
from kcensus.analyses import analyses
from kcensus.human import counted, human, listed, shown_time
from kcensus.render.plain import NO_HOST, gap_subject, remedy_facts
from kcensus.reports import Report
from kcensus.results import CheckStatus, Finding, Gap, Machine, Remedy, Severity, Unit, matters
from kcensus.results.findings import leaders
from kcensus.sources.debuginfo.packages import modules_of
from kcensus.text import pasteable, printable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_INDENT = "    "
_MAX_OTHERS, _MAX_GAPS, _MAX_WORDS = 5, 3, 12
_URGENCY = {
    Severity.CRITICAL: "urgent",
    Severity.WARNING: "important",
    Severity.NOTICE: "minor",
    Severity.INFO: "for information",
}
_OF_KCENSUS = re.compile(r"(?<![^\s(])`kcensus [^`]*`| with -s\b")
_INSTALL = "install it with `"
"""Part of the reason of a gap that we can mend ourselves."""
_CLAUSES = re.compile(r"(?<=[;.]) ")
_OWN = "kcensus "
"""Beginning of a command that the reader cannot run."""
_RUN = " Run as root:"
_RUN_ON_SAME = (
    " Only if the machine has not been restarted since, and still hangs (numbers of processes and "
    "devices are those of that moment), run as root:"
)
_PATCHES = "known problems of this version of the kernel"
_ASK_MEMORY = ("grep -E 'MemFree|MemAvailable|Slab|SReclaimable|SUnreclaim' /proc/meminfo",)
_ASK_WAITS = (
    "ps -eo state,pid,etime,wchan:32,args | grep '^D'",
    "grep . /sys/block/*/stat",
    "dmesg -T | tail -n 200",
)
_ASK_LOG = ("dmesg -T | tail -n 200",)
_ASK_TYPES = ("uname -r", "cat /etc/os-release")


def write_reply(report: Report, file: TextIO) -> None:
    """Write a report as plain text for a ticket."""
    file.write(reply(report))


def reply(report: Report) -> str:
    """Return a report as plain text for a ticket, ending with a line break."""
    paragraphs = [[_subject(report)], *_problems(report), *_unfinished(report), *_next(report)]
    known = _words(line for lines in paragraphs for line in lines if not line.startswith(_INDENT))
    if known:
        paragraphs.append([f"Words of the kernel in this text: {'; '.join(known)}."])
    return "\n\n".join("\n".join(map(printable, lines)) for lines in paragraphs if lines) + "\n"


def _subject(report: Report) -> str:
    machine = report.head.machine or Machine()
    kernel = machine.kernel or report.head.kernel
    host = "" if machine.host == NO_HOST else machine.host
    kind = "the running kernel" if report.head.live else "a memory dump"
    facts = [
        f"Linux {kernel}" if kernel else "",
        f"{human(machine.ram_bytes, Unit.BYTES)} of memory" if machine.ram_bytes else "",
        *_moment(machine),
    ]
    about = f"We have analysed {kind}{f' of {host}' if host else ''}"
    named = ", ".join(filter(None, facts))
    remarks = [
        "Names in it are replaced by others." if machine.has_pseudonyms else "",
        f"The machine had crashed ({machine.taken_by}); the crash itself is not a part of this "
        "analysis."
        if machine.is_panic
        else "",
    ]
    return " ".join(filter(None, (f"{about}{f' ({named})' if named else ''}.", *remarks)))


def _moment(machine: Machine) -> Iterator[str]:
    if machine.time is not None and (taken := shown_time(machine.time)):
        yield f"taken {taken[:16].replace('T', ' ')} UTC"
    if machine.uptime_seconds is not None:
        yield f"{human(machine.uptime_seconds, Unit.SECONDS)} after the machine started"


def _problems(report: Report) -> Iterator[list[str]]:
    """Yield the paragraphs about findings: the worst in full, a line for each other one."""
    findings = [finding for _, finding in leaders(report.findings)]
    serious = [each for each in findings if matters(each) and not _is_own(each)]
    minor = [each for each in findings if not matters(each)]
    if serious:
        worst, *others = serious
        yield from _in_full(worst, report.head.live)
        if others:
            lines = [f"- {line}" for line in _in_lines(worst.kind, others[:_MAX_OTHERS])]
            more = len(others) - _MAX_OTHERS
            yield ["Also found:", *lines, *([f"- and {more} more."] if more > 0 else [])]
    elif report.results:
        yield from _healthy(report, is_whole=not (report.errors or _gaps(report)))
    if minor:
        titles = listed([_without_commands(each.title) for each in minor], 2, "; ")
        yield [f"Too small to act on: {titles}."]


def _is_own(finding: Finding) -> bool:
    """Return whether a finding is about the report, and a paragraph of its own."""
    return finding.kind in ("report-incomplete", "report-unsupported")


def _in_full(finding: Finding, is_live: bool) -> Iterator[list[str]]:
    yield [f"What is wrong ({_URGENCY[finding.severity]}): {_plain(finding)}"]
    evidence = [_without_commands(finding.title), _capital(_without_commands(finding.evidence))]
    yield [f"Evidence, in the words of the kernel: {_sentences(evidence)}"]
    remedies = [each for each in finding.remedies if not each.command.startswith(_OWN)]
    if remedies:
        yield from _advice(remedies[0], finding, is_live)
        effects = [_without_commands(each.effect) for each in remedies[1:]]
        if effects:
            yield [f"Further steps, with commands on request: {_sentences(effects)}"]
    next_step = _without_commands(finding.no_remedy)
    if next_step:
        yield [f"{'Otherwise' if remedies else 'What to do'}: {next_step}."]
    elif not remedies:
        yield ["What to do: nothing yet. We know no safe step, and look further into the data."]
    if finding.patch_is_fix:
        status = f" ({finding.patch_status})" if finding.patch_status else ""
        yield [f"A later kernel has a fix: the change {finding.patch}{status}."]


def _advice(remedy: Remedy, finding: Finding, is_live: bool) -> Iterator[list[str]]:
    effect = _without_commands(remedy.effect)
    commands = [f"{_INDENT}{line}" for line in remedy.command.splitlines()]
    how = (_RUN if finding.holds or is_live else _RUN_ON_SAME) if commands else ""
    yield [f"What to do: {effect}.{how}"]
    yield commands
    facts = remedy_facts(remedy, finding.holds)
    known = {
        "Gives back": facts.get("Returns", ""),
        "Risk": facts.get("Risk", "") or ("none known" if commands else ""),
        "Lasts until": facts.get("Until", ""),
    }
    lines = [" ".join(f"{name}: {fact.rstrip('.')}." for name, fact in known.items() if fact)]
    undo = [f"{_INDENT}{line}" for line in remedy.undo.splitlines()]
    yield [*filter(None, lines), *(["To undo it:"] if undo else [])]
    yield undo


def _in_lines(known: str, findings: Iterable[Finding]) -> Iterator[str]:
    """Yield a line for each finding; a kind that was explained before is not explained again."""
    seen = {known}
    for finding in findings:
        title = f"({_URGENCY[finding.severity]}; {_without_commands(finding.title)})"
        yield f"{'The same problem' if finding.kind in seen else _plain(finding)} {title}"
        seen.add(finding.kind)


def _healthy(report: Report, *, is_whole: bool) -> Iterator[list[str]]:
    statuses = Counter(check.status for each in report.results.values() for check in each.checks)
    found = "no problem of the kinds that we look for" if is_whole else "no problem in the rest"
    yield [f"We have found {found}."]
    known = analyses()
    names = [
        (known[name].plain or name) if name in known else _PATCHES if name == "patches" else name
        for name in report.results
    ]
    agree = statuses[CheckStatus.AGREE] + statuses[CheckStatus.EXPLAINED]
    counters = f" {counted(agree, 'figure')} agree with the kernel's own counters." * bool(agree)
    if names:
        yield [f"We have examined: {_list(names)}.{counters}"]


def _unfinished(report: Report) -> Iterator[list[str]]:
    """Yield the paragraphs about missing parts, and figures that contradict each other."""
    if report.errors:
        known = analyses()
        names = [known[name].plain if name in known else _PATCHES for name in report.errors]
        reasons = listed([*dict.fromkeys(report.errors.values())], 2, "; ")
        yield [f"This analysis is incomplete. Not examined: {_list(names)}. Reason: {reasons}."]
    if gaps := _gaps(report):
        subjects = [gap_subject(gap.what, gap.count) for gap in gaps]
        yield [
            f"Some of the data was missing ({listed(subjects, _MAX_GAPS, '; ')}), so that figures "
            "can be too low, and further problems invisible."
        ]
    differ = sum(
        check.status is CheckStatus.DIFFER
        for result in report.results.values()
        for check in result.checks
    )
    if differ:
        yield [
            f"{counted(differ, 'figure')} of ours differ from the kernel's own counters. Figures "
            "that depend on them can be wrong."
        ]


def _gaps(report: Report) -> list[Gap]:
    every = chain.from_iterable(result.gaps for result in report.results.values())
    return [*{gap.what: gap for gap in every}.values()]


def _next(report: Report) -> Iterator[list[str]]:
    """Yield what the readers should send."""
    serious = [each for _, each in leaders(report.findings) if matters(each)]
    worst = next((each for each in serious if not _is_own(each)), None)
    moment = "before and after this step" if worst and worst.remedies else "as it is now"
    commands: tuple[str, ...]
    if worst is None:
        commands, why = _ASK_LOG, ": what you saw, at which time, and the output of this command"
    elif worst.holds:
        commands, why = _ASK_MEMORY, f": the output of this command, {moment}"
    else:
        commands = _ASK_WAITS
        why = ", if the problem lasts: the output of these commands, twice, a minute apart"
    yield [f"What we need next{why}:"]
    yield [f"{_INDENT}{command}" for command in commands]
    lacking = (modules_of(gap) for gap in _gaps(report) if _INSTALL not in gap.reason)
    names = dict.fromkeys(filter(None, map(pasteable, chain.from_iterable(lacking))))
    if names:
        yield ["Please send also these files, or say which packages they are from:"]
        yield [f"{_INDENT}modinfo -n {' '.join(names)}"]
    elif report.errors:
        yield ["To complete the analysis, we need the exact version of the kernel:"]
        yield [f"{_INDENT}{command}" for command in _ASK_TYPES]
    if report.head.live:
        yield ["If it happens again, please run this while it lasts, and send the file:"]
        yield [f"{_INDENT}kcensus report --json case.json"]


def _plain(finding: Finding) -> str:
    known = explain.explanation(finding.id)
    return (
        " ".join(known.plain.split()) if known else f"{_capital(_without_commands(finding.title))}."
    )


def _sentences(texts: Iterable[str]) -> str:
    return " ".join(f"{text}." for text in texts if text)


def _capital(text: str) -> str:
    """Return a text that begins in upper case, unless it begins with a name."""
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+ (?!\()", text) else text


def _without_commands(text: str) -> str:
    """Return a text without the clauses that name commands of kcensus, and without a period."""
    clauses = (clause for clause in _CLAUSES.split(text) if not _OF_KCENSUS.search(clause))
    return " ".join(clauses).rstrip(" .;:,")


def _list(names: Sequence[str]) -> str:
    return "; ".join(names)


def _words(lines: Iterable[str]) -> list[str]:
    """Return the words of the kernel in a text, with their meanings, in the order of the text."""
    pattern, meanings = _known_words()
    words: dict[str, str] = {}
    for line in lines:
        for match in pattern.finditer(line):
            words.setdefault(meanings[match[0].lower()], match[0])
    return [f"{word}: {meaning}" for meaning, word in words.items()][:_MAX_WORDS]


@functools.cache
def _known_words() -> tuple[re.Pattern[str], dict[str, str]]:
    """Return a pattern of all words, and their meanings."""
    groups = tomllib.loads(files(__name__).joinpath("words.toml").read_text("utf-8"))
    meanings = {
        word.lower(): meaning for names, meaning in groups.items() for word in names.split(", ")
    }
    every = "|".join(map(re.escape, sorted(meanings, key=len, reverse=True)))
    # No words inside of paths and other names.
    return re.compile(rf"(?<![\w/.@:-])(?:{every})(?![\w/@-]|[.:]\w)", re.IGNORECASE), meanings
