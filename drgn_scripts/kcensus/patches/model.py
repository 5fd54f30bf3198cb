# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the catalogue knows about a patch, and what is found out about it in a kernel."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Status(enum.Enum):
    """What became of a patch."""

    MERGED = "merged"
    REWORKED = "reworked"
    """Merged, and later done differently."""
    REVERTED = "reverted"
    NEVER_MERGED = "never merged"
    DISTRIBUTION = "distribution only"
    """In kernels of a vendor, never in the mainline."""


@dataclass(frozen=True)
class Posting:
    """Where a patch was first shown, or shown again."""

    date: str
    """``YYYY``, ``YYYY-MM`` or ``YYYY-MM-DD``, as far as known."""
    where: str
    """Mailing list."""
    subject: str = ""
    message_id: str = ""


@dataclass(frozen=True)
class Commit:
    """One commit of the mainline."""

    subject: str = ""
    hash: str = ""
    """Empty where it is not known for certain."""
    release: str = ""
    """First release with it, where that differs from the patch's own."""
    note: str = ""


@dataclass(frozen=True)
class Backport:
    """A kernel that has a patch earlier than its version says."""

    kernel: str
    note: str = ""


class ProbeKind(enum.Enum):
    TYPE = "type"
    """``struct obj_cgroup``; declared only is not enough."""
    MEMBER = "member"
    """``struct dm_snapshot.in_progress``; pointers on the way are followed."""
    SYMBOL = "symbol"
    """A variable or a function, inlined ones too."""
    ENUMERATOR = "enumerator"
    PARAMETER = "parameter"
    """Of a module: ``dm_snapshot.snapshot_cow_threshold``."""


@dataclass(frozen=True)
class Probe:
    """Something that debug info has or lacks."""

    kind: ProbeKind
    name: str

    def __str__(self) -> str:
        return self.name if self.kind is ProbeKind.TYPE else f"{self.kind.value} {self.name}"


class State(enum.Enum):
    """Whether a kernel has a patch."""

    PRESENT = "present"
    ABSENT = "absent"
    PARTLY = "partly"
    """Some stages of a series."""
    SUPERSEDED = "superseded"
    """Its own code is gone, and what took its place is there: nothing is lacking."""
    UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class Rule:
    """A state that a patch is in when all of :attr:`has` and none of :attr:`lacks` is there."""

    state: State
    has: tuple[Probe, ...] = ()
    lacks: tuple[Probe, ...] = ()
    why: str = ""
    """What that proves, where the names do not say it."""
    by: str = ""
    """The patch that took its place, where it is superseded."""


@dataclass(frozen=True)
class Undetectable:
    """Why types cannot tell, and what can."""

    reason: str
    evidence: str
    """The best there is: a release, a changelog."""
    carriers: tuple[str, ...] = ()
    """Patterns of the releases that are known to have it, or of which some do. Where there are
    any, other kernels are taken not to have it."""


@dataclass(frozen=True)
class Detection:
    """How to tell whether a kernel has a patch: the first rule that holds decides."""

    rules: tuple[Rule, ...] = ()
    modules: tuple[str, ...] = ()
    """Kernel modules whose debug info has the types in question."""
    undetectable: Undetectable | None = None
    """What to say when no rule holds; without it the patch is then absent."""


@dataclass(frozen=True)
class Stage:
    """A patch as a part of a series."""

    patch: str
    what: str


class Bound(enum.Enum):
    """How a published figure is meant."""

    EXACT = "exactly"
    ABOUT = "about"
    AT_MOST = "at most"
    AT_LEAST = "at least"
    MORE_THAN = "more than"


class Moment(enum.Enum):
    """When a published figure was measured."""

    BEFORE = "before"
    AFTER = "after"
    CHANGE = "change"
    OBSERVED = "observed"


UNITS: Mapping[str, tuple[str, float]] = {
    "bytes": ("bytes", 1),
    "KiB": ("bytes", 1 << 10),
    "MiB": ("bytes", 1 << 20),
    "GiB": ("bytes", 1 << 30),
    "TiB": ("bytes", 1 << 40),
    "GB": ("bytes", 1e9),
    "TB": ("bytes", 1e12),
    "pages": ("pages", 1),
    "us": ("seconds", 1e-6),
    "ms": ("seconds", 1e-3),
    "seconds": ("seconds", 1),
    "hours": ("seconds", 3600),
    "percent": ("ratio", 0.01),
    "count": ("count", 1),
}
"""Units of published figures: what they measure, and how many of the base unit they are.

Postings write KB, MB and GB for powers of two and of ten alike; the catalogue has the one that was
meant, which their own arithmetic tells.
"""


@dataclass(frozen=True)
class PublishedFigure:
    """A number as it was published."""

    name: str
    what: str
    value: float
    unit: str
    """A key of :data:`UNITS`."""
    to: float | None = None
    """The other end, where a range was given."""
    bound: Bound = Bound.EXACT
    moment: Moment = Moment.OBSERVED
    run: str = ""
    """Figures of the same run belong together: a *before* and its *after*."""
    given: Mapping[str, float] = field(default_factory=dict)
    """The circumstances that a model needs, by name."""

    @property
    def base(self) -> float:
        """The value in bytes, seconds, pages or as a ratio."""
        return self.value * UNITS[self.unit][1]

    @property
    def precision(self) -> float:
        """One unit of the last digit that was published, in base units."""
        digits = repr(self.value).partition(".")[2]
        return 10.0 ** -len(digits.rstrip("0")) * UNITS[self.unit][1]


@dataclass(frozen=True)
class Metric:
    """A figure of an analysis, or the difference of two."""

    analysis: str
    key: str
    """Key of the summary."""
    minus: str = ""
    """Key of the figure to subtract."""
    what: str = ""
    """What the figure stands for."""

    def __str__(self) -> str:
        formula = f"{self.analysis}.{self.key}"
        return f"{formula} - {self.analysis}.{self.minus}" if self.minus else formula


@dataclass(frozen=True)
class FindingRule:
    """Turns a figure into a finding, depending on the state of a patch."""

    severity: str
    """Name of a :class:`kcensus.results.Severity`, in lower case."""
    title: str
    """One sentence; ``{value}`` stands for the figure."""
    metric: Metric
    patch: str = ""
    """Where empty, the rule is about the figure alone."""
    states: tuple[State, ...] = (State.ABSENT, State.PARTLY)
    at_least: float | None = None
    at_most: float | None = None
    evidence: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Workload:
    """A figure that shows that two machines did the same, and enough of it."""

    metric: Metric
    within: float
    """Relative difference that does not matter."""
    at_least: float


@dataclass(frozen=True)
class Validation:
    """How to see on a pair of targets, without and with a patch, what it does."""

    metric: Metric
    """What the patch makes smaller."""
    symptom_at_least: float
    """Of the metric: a target without the patch that has less does not show what it is for."""
    workload: tuple[Workload, ...]
    predicted: Metric | None = None
    """A figure of the target without the patch that says what the metric would be with it."""
    claim: str = ""
    """The run of published figures to compare with."""
    switch: str = ""
    """A variable of the kernel that weakens the patch as it grows: with another value on both
    sides, two kernels that have the patch make a pair, too."""


@dataclass(frozen=True)
class Patch:
    """One patch, or a series of them."""

    id: str
    title: str
    subsystem: str
    status: Status
    summary: str
    """What it does, in our own words."""
    symptom: str
    """What a machine without it shows."""
    file: str
    """The catalogue file it was read from."""
    authors: tuple[str, ...] = ()
    postings: tuple[Posting, ...] = ()
    release: str = ""
    """First mainline release; empty if there is none, or if it is not known."""
    commits: tuple[Commit, ...] = ()
    backports: tuple[Backport, ...] = ()
    supersedes: tuple[str, ...] = ()
    superseded_by: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    """Of a series: detection asks for each of them."""
    detection: Detection = Detection()
    costs: Metric | None = None
    """What the absence of the patch costs on a machine."""
    saves: Metric | None = None
    """What its presence saves."""
    validation: Validation | None = None
    figures: tuple[PublishedFigure, ...] = ()
    rules: tuple[FindingRule, ...] = ()
    remedy: str = ""
    """What to do on a kernel without it."""


@dataclass(frozen=True)
class Detected:
    """Whether one kernel has one patch."""

    patch: Patch
    state: State
    reason: str
    """Which names in the debug info say so, or what they lack."""
    stage: str = ""
    """Of a series that is there in part: the last stage that is."""
