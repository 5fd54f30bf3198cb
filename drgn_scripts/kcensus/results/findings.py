# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings: a problem, the memory that it holds, and remedies.

Findings with the same names in :attr:`Finding.memory` become one (:func:`fold`): the cause leads,
and the symptoms are ``part_of`` it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kcensus.results.figures import Figure
from kcensus.results.severity import Danger, Severity, severity_of
from kcensus.text import printable

_KNOWN = "-incomplete", "-unsupported"
"""Ends of the kinds of findings about analyses without a result."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One action against a finding."""

    effect: str
    """Effect as a sentence that starts with a verb, without a period."""
    command: str = ""
    """Commands to paste, one per line; empty if the remedy is not a command."""
    risk: str = ""
    """Possible cost while it runs or afterwards."""
    undo: str = ""
    """Command to paste that undoes it; empty if none does."""
    until: str = ""
    """End of the effect: ``reboot``, ``next snapshot``; empty if it is final."""
    returns: int | None = None
    """Bytes of the finding that it gives back; None if it only prevents, or shows more."""
    is_upper_bound: bool = False
    """Whether it returns up to :attr:`returns`."""
    knobs: tuple[str, ...] = ()
    """Files below ``/proc/sys`` and ``/sys/module``; without one, the remedy is left out."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Finding:
    """One sentence for a support engineer to act on, with everything needed to act."""

    id: str
    """Stable. ``kind`` or ``kind:subject``, if a kind can occur more than once; the kind is in
    lower case with dashes, and ``kcensus explain`` knows it."""
    severity: Severity
    title: str
    """One sentence: subject, problem, size, share."""
    evidence: str = ""
    story: tuple[str, ...] = ()
    """More evidence: sentences without a period, one per line."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """The numbers of the title and the evidence, by key."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the subject now, by place: ``slab:CACHE`` for slab pages of a root cache, otherwise
    a name such as ``kcopyd pages``. Two findings count the same bytes of a place only if one of
    them :attr:`is_generic`."""
    users: Mapping[str, str] = field(default_factory=dict)
    """The objects of a place that is named after others: a slab cache that several were merged
    into has the name of the first."""
    tasks: frozenset[int] = frozenset()
    """PIDs of the tasks, if other findings may be about the same ones."""
    is_generic: bool = False
    """Whether it lacks the cause, and is then folded under findings with a cause."""
    is_vague: bool = False
    """Whether it is generic, and says less than other generic findings about the same tasks."""
    danger: Danger = Danger.NONE
    remedies: tuple[Remedy, ...] = ()
    """The best one first."""
    no_remedy: str = ""
    """Reason for the lack of a safe remedy, and the next step; a sentence without a period."""
    patch: str = ""
    """Identifier in the patch catalogue."""
    patch_status: str = ""
    """From the catalogue: ``merged in 5.18``, ``RFC 2021, unmerged``."""
    patch_is_fix: bool = False
    """Whether the patch was merged."""
    patch_packages: str = ""
    """From the catalogue: the first package with the patch in the distribution of this kernel;
    empty if the distribution is unknown."""
    part_of: str = ""
    """:attr:`id` of the finding that explains this one; empty for the top level."""
    covers: frozenset[str] = frozenset()
    """Ids of findings that are parts of this one if they are not more severe, and its best remedy
    has all commands of theirs."""
    analysis: str = ""
    """Name of the analysis, in results of :mod:`kcensus`; empty elsewhere."""

    def __repr__(self) -> str:
        """Return one line."""
        return printable(f"<{self.severity.name} {self.id}: {self.title}>")

    @property
    def kind(self) -> str:
        return self.id.partition(":")[0]

    @property
    def holds(self) -> int | None:
        """Bytes of the subject now; None if it is not about memory."""
        return sum(self.memory.values()) if self.memory else None

    @property
    def returns(self) -> int | None:
        """Bytes that the best remedy gives back; None if no remedy does."""
        return max((each.returns for each in self.remedies if each.returns), default=None)


def matters(finding: Finding) -> bool:
    """Return whether to act on a finding: NOTICE or more, and no part of another one."""
    return finding.severity >= Severity.NOTICE and not finding.part_of


def rank(finding: Finding) -> tuple[bool, int, int, bool, int, int]:
    """Return the sort key of a finding: incomplete first, parts last, else by severity and size.

    The size is that of memory, then the number of tasks. What is missing because kcensus does not
    know the kernel, or lacks debug info, comes after what is wrong.
    """
    is_missing = finding.danger is Danger.INCOMPLETE
    is_known = is_missing and finding.kind.endswith(_KNOWN) and finding.severity < Severity.CRITICAL
    return (
        bool(finding.part_of),
        2 if is_known else not is_missing,
        -finding.severity,
        finding.danger is Danger.NONE,
        -(finding.holds or 0),
        -len(finding.tasks),
    )


def fold(
    findings: Iterable[Finding],
    ram_bytes: int | None = None,
    analyses: Mapping[str, str] = MappingProxyType({}),
) -> list[Finding]:
    """Put findings about the same memory, or the same tasks, under the one that explains it.

    A generic finding becomes part of a finding that explains at least half of its bytes or tasks,
    or leaves too few bytes to be a finding; otherwise explained bytes are subtracted from it, and
    its severity is that of the rest. No byte is then in two findings of the top level.

    What makes tasks wait is at least as severe as their wait, if the same analysis found both: a
    stall is as severe in a report as in the answer of its analysis.

    :param ram_bytes: RAM of the machine; None if unknown
    :param analyses: name of the analysis of each finding, by id; all are of one by default
    :return: the findings in the order of :func:`rank`; each :attr:`Finding.part_of` names one of
        the top level
    """
    everything = sorted(findings, key=lambda each: (each.is_generic, each.is_vague, rank(each)))
    ids = {each.id for each in everything}
    top: dict[str, Finding] = {}
    parts = []
    tasks = {each.id: each.tasks for each in everything}
    for finding in everything:
        rest, owner = finding, finding.part_of if finding.part_of in ids - {finding.id} else ""
        owner = owner or _covering(finding, everything)
        if finding.is_generic and not owner:
            rest, owner = _rest(finding, top.values(), ram_bytes)
            owner = owner or _of_same_tasks(finding, top.values(), tasks)
        if owner:
            parts.append(replace(finding, part_of=owner))
            tasks[owner] |= finding.tasks
            is_own = analyses.get(finding.id) == analyses.get(owner)
            if finding.tasks and owner in top and is_own:
                worst = max(finding.severity, top[owner].severity)
                top[owner] = replace(top[owner], severity=worst)
        else:
            top[finding.id] = replace(rest, part_of="")
    parents = {each.id: each.part_of for each in parts}
    for part in parts:
        if _root(part.id, parents) not in top:  # two are parts of each other
            top[part.id] = replace(part, part_of="")
            del parents[part.id]
    folded = [
        replace(each, part_of=_root(each.id, parents)) for each in parts if each.id in parents
    ]
    return sorted([*top.values(), *folded], key=rank)


def _covering(finding: Finding, others: Iterable[Finding]) -> str:
    """Return the id of a finding that covers another, is as severe, and has all its commands."""
    own, severity = _commands(finding), finding.severity
    return next(
        (
            other.id
            for other in others
            if finding.id in other.covers and other.severity >= severity and own <= _commands(other)
        ),
        "",
    )


def _commands(finding: Finding) -> set[str]:
    return {line for each in finding.remedies[:1] for line in each.command.splitlines()}


def _of_same_tasks(
    finding: Finding, others: Iterable[Finding], tasks: Mapping[str, frozenset[int]]
) -> str:
    """Return the finding with most of another's tasks, if this and others have half or more.

    They are at least as severe, unless the other names no cause.

    :param tasks: of each finding and its parts so far, by id
    """
    shared = {
        other.id: finding.tasks & tasks[other.id]
        for other in others
        if other.severity >= finding.severity or finding.is_vague
    }
    best = max(shared, key=lambda name: len(shared[name]), default="")
    explained = frozenset().union(*shared.values())
    return best if best and 2 * len(explained) >= len(finding.tasks) > 0 else ""


def _rest(
    finding: Finding, others: Iterable[Finding], ram_bytes: int | None
) -> tuple[Finding, str]:
    """Subtract the bytes that other findings explain from a generic finding.

    :return: the rest; and the finding that explains most of it, if the rest is no finding
    """
    owners: Counter[str] = Counter()
    rest = dict(finding.memory)
    for other in others:
        for place in finding.memory.keys() & other.memory.keys():
            owners[other.id] += min(finding.memory[place], other.memory[place])
            rest[place] = max(rest[place] - other.memory[place], 0)
    if not owners:
        return finding, ""
    left = sum(rest.values())
    severity = severity_of(left, ram_bytes)
    if severity is None or 2 * left <= (finding.holds or 0):
        return finding, owners.most_common(1)[0][0]
    remedies = [
        replace(each, returns=min(each.returns, left), is_upper_bound=True)
        if each.returns
        else each
        for each in finding.remedies
    ]
    memory = {place: size for place, size in rest.items() if size}
    severity = min(finding.severity, severity)
    return replace(finding, severity=severity, memory=memory, remedies=tuple(remedies)), ""


def _root(child: str, parents: Mapping[str, str]) -> str:
    for _ in parents:
        if child not in parents:
            break
        child = parents[child]
    return child


def leaders(named: Iterable[tuple[str, Finding]]) -> list[tuple[str, Finding]]:
    """Return the findings of the top level, and parts of absent ones, with names of analyses."""
    findings = list(named)
    ids = {finding.id for _, finding in findings}
    return [(name, finding) for name, finding in findings if finding.part_of not in ids]


def parts_of(finding: Finding, findings: Iterable[Finding]) -> Sequence[Finding]:
    return [each for each in findings if each.part_of == finding.id]
