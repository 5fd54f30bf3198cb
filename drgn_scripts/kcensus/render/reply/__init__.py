# SPDX-License-Identifier: LGPL-2.1-or-later
"""A report as text for a ticket, for a reader who administers the machine.

It stands on no width: a paragraph is one line, and each line of a command is one line, indented by
four spaces, so that ticket systems that read Markdown leave it as it is. Sentences about commands
of kcensus are left out: the reader has neither the dump nor kcensus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import TextIO

from kcensus.analyses import analyses
from kcensus.human import counted, human, listed, shown_time
from kcensus.render.plain import NO_HOST
from kcensus.render.reply.missing import missing_words
from kcensus.render.reply.problems import INDENT, minor, problems, serious
from kcensus.render.reply.text import words
from kcensus.reports import Report
from kcensus.results import CheckStatus, Gap, Machine, Unit
from kcensus.sources.debuginfo.packages import modules_of
from kcensus.text import pasteable, printable

_INSTALL = "install it with `"
"""Part of the reason of a gap that we can mend ourselves."""
_PATCHES = "known problems of this version of the kernel"
_ASK_MEMORY = ("grep -E 'MemFree|MemAvailable|Slab|SReclaimable|SUnreclaim' /proc/meminfo",)
_ASK_WAITS = (
    "ps -eo state,pid,etime,wchan:32,args | grep '^D'",
    "echo w > /proc/sysrq-trigger; dmesg -T | tail -n 500",
)
"""The second writes the stacks of waiting tasks to the kernel's log."""
_ASK_DISKS = ("grep . /sys/block/*/stat /sys/block/*/inflight /sys/block/*/queue/scheduler",)
_ASK_LOG = ("dmesg -T | tail -n 200",)
_ASK_TYPES = ("uname -r", "cat /etc/os-release")


def write_reply(report: Report, file: TextIO) -> None:
    """Write a report as plain text for a ticket."""
    file.write(reply(report))


def reply(report: Report) -> str:
    """Return a report as plain text for a ticket, ending with a line break."""
    found = [*problems(report)]
    if not found and report.results:
        found = [*_healthy(report, is_whole=not (report.errors or _gaps(report)))]
    paragraphs = [[_subject(report)], *found, minor(report), *_unfinished(report), *_next(report)]
    known = words(line for lines in paragraphs for line in lines if not line.startswith(INDENT))
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
        yield [f"We have examined: {'; '.join(names)}.{counters}"]


def _unfinished(report: Report) -> Iterator[list[str]]:
    """Yield the paragraphs about missing parts, and figures that contradict each other."""
    if report.errors:
        known = analyses()
        names = [known[name].plain if name in known else _PATCHES for name in report.errors]
        reasons = listed([*dict.fromkeys(report.errors.values())], 2, "; ")
        yield [f"This analysis is incomplete. Not examined: {'; '.join(names)}. Reason: {reasons}."]
    if lacking := missing_words(report.results):
        yield [lacking]
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
    worst = next(iter(serious(report)), None)
    moment = "before and after this step" if worst and worst.remedies else "as it is now"
    commands: tuple[str, ...]
    if worst is None:
        commands, why = (
            _ASK_LOG,
            ": what you saw, at which time, and the output of this command as root",
        )
    elif worst.holds:
        commands, why = _ASK_MEMORY, f": the output of this command as root, {moment}"
    else:
        is_of_disks = worst.kind.startswith(("requests-", "waits-io"))
        commands = _ASK_WAITS + _ASK_DISKS * is_of_disks
        why = ", if the problem lasts: the output of these commands as root, twice, a minute apart"
    yield [f"What we need next{why}:"]
    yield [f"{INDENT}{command}" for command in commands]
    lacking = (modules_of(gap) for gap in _gaps(report) if _INSTALL not in gap.reason)
    names = dict.fromkeys(filter(None, map(pasteable, chain.from_iterable(lacking))))
    if names:
        yield ["Please send also these files, or say which packages they are from:"]
        yield [f"{INDENT}modinfo -n {' '.join(names)}"]
    elif report.errors:
        yield ["To complete the analysis, we need the exact version of the kernel:"]
        yield [f"{INDENT}{command}" for command in _ASK_TYPES]
    if report.head.live:
        yield ["If it happens again, please run this while it lasts, and send the file:"]
        yield [f"{INDENT}kcensus report --json case.json"]
