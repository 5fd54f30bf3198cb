# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernels in the repository's tables, and what they lack."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cache

import drgn

from tests.inventory.needs import Need, State, Verdict, judge, read_needs
from tests.inventory.tables import DATA, NEEDS, program, read_tables


@dataclass(frozen=True)
class Kernel:
    """A kernel whose types are in the tables."""

    name: str
    vendor: str
    source: str
    """Where its types are from, and how they were read."""
    recorded: bool = False
    """Whether the needs were recorded on its dumps."""
    partial: str = ""
    """Why the table lacks types that the kernel has; empty if it lacks none."""


@cache
def kernels() -> dict[str, Kernel]:
    """Return all kernels by name."""
    rows = json.loads((DATA / "sources.json").read_text())
    return {row["name"]: Kernel(**row) for row in rows}


@cache
def programs() -> dict[str, drgn.Program]:
    """Return a program with the types of each kernel."""
    return {name: program(table) for name, table in read_tables().items()}


@cache
def needs() -> list[Need]:
    """Return the recorded needs."""
    return read_needs(json.loads(NEEDS.read_text()))


def verdicts(kernel: str, some: list[Need]) -> list[Verdict]:
    """Hold the types of a kernel against needs."""
    recorded = [programs()[each.name] for each in kernels().values() if each.recorded]
    return judge(some, programs()[kernel], recorded)


def shares() -> str:
    """Return a table of all kernels, as ``docs/debug-info.md`` has it."""
    lines = []
    total: Counter[State] = Counter()
    for kernel in kernels().values():
        states = Counter(each.state for each in verdicts(kernel.name, needs()))
        total += states
        lines.append(_line(f"{kernel.vendor} {kernel.name}", states))
    return "\n".join([*lines, _line("all", total)])


def _line(name: str, states: Counter[State]) -> str:
    known = states[State.SERVED] + states[State.GAP]
    counts = (states[State.SERVED], states[State.GAP], states[State.OTHER], states[State.ABSENT])
    share = 100 * states[State.SERVED] / max(known, 1)
    return f"| {name} | {' | '.join(f'{each:,}' for each in counts)} | {share:.2f} % |"
