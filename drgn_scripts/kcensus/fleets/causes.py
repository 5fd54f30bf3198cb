# SPDX-License-Identifier: LGPL-2.1-or-later
"""What targets of one cause have in common, whatever their hosts, devices, tasks and addresses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from kcensus.reports import Report
from kcensus.results import Danger, Finding, Result, Severity, matters

_NUMBER = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+")
_PLACE = re.compile(r"\+0x[0-9a-f]+(/0x[0-9a-f]+)?")
"""Offset in a function, and its size: they differ between builds of a kernel."""
_TASK = re.compile(r" \(task (.*)\)$")
"""Task that panicked, at the end of the message."""
_FUNCTION = re.compile(r" in (?!interrupt$)([\w.]+(?: \[[\w-]+\])?)$", re.ASCII)
"""Function of the oops, at the end of the message without the task."""
_OF = re.compile(r" of (?=\S*/).*")
"""File or mount that an object belongs to, at the end of its name."""
_ALIASES = {"wait_on_page_bit_common": "folio_wait_bit_common", "anon_pipe_write": "pipe_write"}
"""Functions that were renamed, and their other names."""
_WEIGHTS = {Severity.CRITICAL: 3.0, Severity.WARNING: 2.0, Severity.NOTICE: 0.5}
_MOST = max(_WEIGHTS.values())
_SYMPTOMS = frozenset({"requests-stuck", "tasks-blocked", "waits-behind", "waits-io"})
_SYMPTOM, _PART = 0.5, 1.0
"""Kinds of findings that say who waits but not why, their highest weight, and that of their parts,
which may say more."""
_ECHOES = "tasks-blocked", "log-"
"""Beginnings of kinds that only say again that tasks wait."""
_DEADLOCK, _AWAITED, _STACK = 6.0, 1.0, 0.2
"""Weights of all edges of the cycles, of all that tasks wait for behind one, and of a stack: stacks
decide where there is nothing else."""
_PANIC, _MESSAGE_OF_PANIC, _TASK_OF_PANIC = 3.0, 1.0, 1.0
"""Weights of the function of an oops, or else of the message; of a message with it; of its task."""
_MAX_STACKS = 8
"""Most kinds of stacks; the ones with the most tasks."""
_MAX_EDGES, _MAX_AWAITED, _MAX_FINDINGS = 32, 4, 64
"""Most edges of cycles, objects that most tasks are behind, and findings, the gravest."""
_MIN_ASLEEP = 10.0
"""Seconds in state D from which on a stack tells something."""
STACK = "stack"
"""Kind of the features that vary from dump to dump of one cause."""
PATCH = "patch"
"""Kind of a feature without weight: the tasks that a missing patch stalls."""


class Feature(NamedTuple):
    kind: str
    """``deadlock``, ``panic``, ``finding``, ``awaited``, :data:`STACK`, or :data:`PATCH`."""
    feature: str
    weight: float
    tasks: int | None = None


def features(report: Report) -> Iterator[Feature]:
    """Yield the features of a report; each is equal on all machines with the cause."""
    machine = report.head.machine
    if machine is not None and machine.is_panic:
        message = _TASK.sub("", machine.taken_by)
        function = _FUNCTION.search(message)
        weight = _MESSAGE_OF_PANIC if function else _PANIC
        yield Feature("panic", general(_FUNCTION.sub("", message)), weight)
        if function:
            yield Feature("panic", f"in {general(_named(function[1]))}", _PANIC)
        if task := _TASK.search(machine.taken_by):
            yield Feature("panic", f"task {general(task[1])}", _TASK_OF_PANIC)
    found = _findings([finding for _, finding in report.findings])
    yield from (Feature("finding", kind, weight) for kind, weight in found.items())
    if waits := report.results.get("waits"):
        yield from _deadlocks(waits)
        if {*found} == {"waits-behind"}:
            yield from _awaited(waits)
        yield from _stacks(waits)
    yield from _stalled([finding for _, finding in report.findings])


def _stalled(findings: Iterable[Finding]) -> Iterator[Feature]:
    """Yield the patches whose lack stalls tasks; a document has only their numbers."""
    tasks: dict[str, set[int]] = {}
    least: dict[str, int] = {}
    for finding in findings:
        if patch := finding.patch:
            tasks.setdefault(patch, set()).update(finding.tasks)
            figure = finding.figures.get("tasks")
            number = figure.value if figure and isinstance(figure.value, int) else 0
            least[patch] = max(least.get(patch, 0), number, len(tasks[patch]))
    yield from (Feature(PATCH, patch, 0.0, number) for patch, number in least.items() if number)


def _findings(findings: Sequence[Finding]) -> dict[str, float]:
    """Return the weight of each kind of finding: causes, and parts of symptoms."""
    causes = [each for each in findings if is_cause(each)][:_MAX_FINDINGS]
    symptoms = {each.id for each in causes if each.kind in _SYMPTOMS}
    parts = [
        each
        for each in findings
        if each.part_of in symptoms
        and each.severity >= Severity.NOTICE
        and not each.kind.startswith(_ECHOES)
    ][:_MAX_FINDINGS]
    weights: dict[str, float] = {}
    for finding in (*causes, *parts):
        kind = _kind(finding)
        most = _SYMPTOM if kind in _SYMPTOMS else _PART if finding.part_of else _MOST
        weights[kind] = max(weights.get(kind, 0.0), min(_WEIGHTS[finding.severity], most))
    return weights


def is_cause(finding: Finding) -> bool:
    """Return whether a finding is about the machine, and worth an action."""
    return matters(finding) and finding.danger is not Danger.INCOMPLETE


def _kind(finding: Finding) -> str:
    """Return the kind of a finding, with its subject if that is a name of code, or of a rule.

    Names of slab caches are; those of devices, directories and tasks are the machine's own.
    """
    _, _, subject = finding.id.partition(":")
    is_name = f"slab:{subject}" in finding.memory or finding.kind == "rule"
    return finding.id if is_name else finding.kind


def _table(waits: Result, name: str, columns: Sequence[str]) -> pd.DataFrame | None:
    """Return columns of a table; None if it has no rows, or is of a version without them."""
    table = waits.tables.get(name)
    if table is None or table.frame.empty or not {*columns} <= {*table.frame.columns}:
        return None
    return table.frame[[*columns]]


def _deadlocks(waits: Result) -> Iterator[Feature]:
    """Yield the edges of all cycles."""
    cycles = _table(waits, "cycles", ("waits_for", "mode", "function"))
    if cycles is None:
        return
    edges = Counter(
        f"{general(_OF.sub('', waits_for))}{f' ({mode})' if mode else ''} in {_named(function)}"
        for waits_for, mode, function in cycles.itertuples(index=False)
    ).most_common(_MAX_EDGES)
    for edge, tasks in edges:
        yield Feature("deadlock", edge, _DEADLOCK / len(edges), tasks)


def _awaited(waits: Result) -> Iterator[Feature]:
    """Yield what tasks wait for behind a task that waits for nothing known."""
    objects = _table(waits, "objects", ("kind", "name", "waiters", "behind"))
    if objects is None:
        return
    awaited = objects[objects["waiters"] > 0].sort_values("behind", ascending=False, kind="stable")
    names = [
        general(f"{kind} {_OF.sub('', name)}")
        for kind, name in awaited[["kind", "name"]].head(_MAX_AWAITED).itertuples(index=False)
    ]
    yield from (Feature("awaited", name, _AWAITED / len(names)) for name in dict.fromkeys(names))


def _stacks(waits: Result) -> Iterator[Feature]:
    """Yield system calls and functions of tasks in state D."""
    tasks = _table(waits, "tasks", ("state", "asleep", "entry", "function"))
    if tasks is None:
        return
    stuck = tasks[tasks["state"].str.startswith("D") & (tasks["asleep"] >= _MIN_ASLEEP)]
    count = stuck.groupby(["entry", "function"]).size()
    stacks = Counter[str]()
    for entry, function, number in count.reset_index().itertuples(index=False):
        stacks[" → ".join(general(_named(each)) for each in (entry, function) if each)] += number
    for ways, number in stacks.most_common(_MAX_STACKS):
        yield Feature(STACK, ways, _STACK, number)


def _named(function: str) -> str:
    """Return a function by the name that kernels of all releases have for it."""
    return _ALIASES.get(function, function.lstrip("_"))


def general(text: str) -> str:
    """Return a text without what differs between machines: numbers, addresses, offsets."""
    return " ".join(_NUMBER.sub("N", _PLACE.sub("", text)).split())
