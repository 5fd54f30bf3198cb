# SPDX-License-Identifier: LGPL-2.1-or-later
"""The result of an analysis: figures, tables, checks, findings and gaps.

An analysis returns one :class:`Result` and prints nothing. Every face (terminal, JSON, CSV,
Parquet) renders the same object, so they cannot disagree.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

Scalar = int | float | str | bool | None


class Unit(enum.Enum):
    """What a number counts. Data stays in the unit; only a screen scales it."""

    NONE = ""
    BYTES = "bytes"
    COUNT = "count"
    PAGES = "pages"
    RATIO = "ratio"
    """0.0 … 1.0; shown as a percentage."""
    SECONDS = "seconds"
    ADDRESS = "address"
    TEXT = "text"


@dataclass(frozen=True)
class Figure:
    """One scalar of a summary."""

    value: Scalar
    unit: Unit = Unit.COUNT
    label: str = ""
    """What it is, in a few words, for a reader who does not know the key."""


@dataclass(frozen=True)
class Column:
    """How one column of a :class:`Table` is to be read."""

    unit: Unit = Unit.COUNT
    label: str = ""
    """Heading on screen; the column's name where empty."""
    priority: int = 1
    """0: always shown; 1: shown where the width allows it; 2: never on screen, only in data."""


@dataclass
class Table:
    """A named DataFrame whose columns have units. Rows stand in the order they should be read."""

    frame: pd.DataFrame
    columns: Mapping[str, Column]
    title: str = ""
    note: str = ""
    detail: bool = False
    """Too long for a screen: in data only."""

    @staticmethod
    def of(title: str, columns: Mapping[str, tuple[Any, Column]], *, detail: bool = False) -> Table:
        """A table from its columns: by name their values, equally many, and their description."""
        return Table(
            pd.DataFrame({name: values for name, (values, _) in columns.items()}),
            {name: column for name, (_, column) in columns.items()},
            title,
            detail=detail,
        )

    def largest_first(self, key: str, *names: str) -> Table:
        """The same rows by descending ``key``, and by ``names`` in turn where that is equal."""
        self.frame = self.frame.sort_values(
            [key, *names], ascending=[False] + [True] * len(names), ignore_index=True
        )
        return self

    def __post_init__(self) -> None:
        missing = [name for name in self.columns if name not in self.frame.columns]
        extra = [name for name in self.frame.columns if name not in self.columns]
        if missing or extra:
            raise ValueError(f"{self.title!r}: columns missing {missing}, undescribed {extra}")


class CheckStatus(enum.Enum):
    AGREE = "agree"
    DIFFER = "differ"
    EXPLAINED = "explained"
    """They differ by what :attr:`Check.note` accounts for, and by nothing else."""
    ABSENT = "absent"
    """The kernel does not keep this counter."""


@dataclass(frozen=True)
class Check:
    """A figure of ours held against a counter that the kernel keeps itself."""

    name: str
    ours: int | None
    counter: int | None
    """The kernel's own number, or None where it keeps none."""
    unit: Unit = Unit.COUNT
    source: str = ""
    """Where the counter lives, e.g. ``kmem_cache_node.total_objects``."""
    note: str = ""
    explained: int | None = None
    """How much of ``counter - ours`` the note accounts for."""

    @property
    def difference(self) -> int | None:
        """``counter - ours``, None where one of them is missing."""
        if self.ours is None or self.counter is None:
            return None
        return self.counter - self.ours

    @property
    def status(self) -> CheckStatus:
        difference = self.difference
        if difference is None:
            return CheckStatus.ABSENT
        if difference == 0:
            return CheckStatus.AGREE
        return CheckStatus.EXPLAINED if difference == self.explained else CheckStatus.DIFFER


class Severity(enum.IntEnum):
    INFO = 0
    NOTICE = 1
    WARNING = 2
    CRITICAL = 3


@dataclass(frozen=True)
class Finding:
    """One sentence a support engineer acts on."""

    severity: Severity
    title: str
    """One sentence with the figure in it."""
    evidence: str = ""
    remedy: str = ""
    patch: str = ""
    """Identifier in the patch catalogue, if a patch fixes it."""
    cost_bytes: int | None = None


@dataclass(frozen=True)
class Gap:
    """Something that could not be read, and what that does to the figures."""

    what: str
    """e.g. ``slab pages``, ``obj_cgroup vectors``."""
    reason: str
    """e.g. ``not in the dump (filtered)``."""
    count: int
    """How many of ``what``."""
    effect: str
    """Which figures are affected and in which direction."""


@dataclass
class Result:
    """What one analysis found on one target."""

    analysis: str
    target: str
    kernel: str
    live: bool = False
    summary: dict[str, Figure] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    measures: bool = True
    """Whether its figures are measured, so that it has to be said when none was checked."""
