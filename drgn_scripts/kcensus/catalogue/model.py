# SPDX-License-Identifier: LGPL-2.1-or-later
"""The data of the catalogue: patches, published figures, rules, and states on one kernel.

``kernel_patches/README.md`` explains the keys. Enums are texts, so that :mod:`json` writes them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Status(str, enum.Enum):
    """Fate of a patch in the mainline."""

    MERGED = "merged"
    REWORKED = "reworked"
    REVERTED = "reverted"
    NEVER_MERGED = "never merged"
    DISTRIBUTION = "distribution only"


class Kind(str, enum.Enum):
    """Whether the absence of a patch affects the machine."""

    FIX = "fix"
    """Changes the behavior of a machine: a fix, an optimization or a feature."""
    MARKER = "marker"
    """Changes only a layout: tools find a structure elsewhere."""


@dataclass(frozen=True)
class Posting:
    """One posting of a patch to mailing lists."""

    date: str
    where: str
    subject: str = ""
    message_id: str = ""


@dataclass(frozen=True)
class Commit:
    """One mainline commit; without a hash if it is not verified."""

    subject: str = ""
    hash: str = ""
    release: str = ""
    """First release with it, if it differs from :attr:`Patch.release`."""
    note: str = ""


@dataclass(frozen=True)
class Backport:
    """A kernel that carries a patch although its version is older."""

    kernel: str
    note: str = ""


class ProbeKind(str, enum.Enum):
    """The kinds of names in the debug info."""

    TYPE = "type"
    """``struct obj_cgroup``; a declaration without members does not count."""
    MEMBER = "member"
    """``struct dm_snapshot.in_progress``; pointers in between are dereferenced."""
    SYMBOL = "symbol"
    """A variable or a function, inlined or not."""
    ENUMERATOR = "enumerator"
    PARAMETER = "parameter"
    """``dm_snapshot.snapshot_cow_threshold``, of a module."""


@dataclass(frozen=True)
class Probe:
    """One name to look up in the debug info."""

    kind: ProbeKind
    name: str

    def __str__(self) -> str:
        return self.name if self.kind is ProbeKind.TYPE else f"{self.kind.value} {self.name}"


class State(str, enum.Enum):
    """Whether a kernel has a patch."""

    PRESENT = "present"
    ABSENT = "absent"
    PARTIALLY_APPLIED = "partially applied"
    """Some stages of a series are present, others absent."""
    SUPERSEDED = "superseded"
    """Replaced by a later patch, which is present."""
    UNDETERMINED = "undetermined"


HAS_IT = (State.PRESENT, State.SUPERSEDED)
LACKS_IT = (State.ABSENT, State.PARTIALLY_APPLIED)


@dataclass(frozen=True)
class Rule:
    """The state that follows if all of :attr:`has` and none of :attr:`lacks` exist."""

    state: State
    has: tuple[Probe, ...] = ()
    lacks: tuple[Probe, ...] = ()
    why: str = ""
    by: str = ""
    """Id of the replacement, for the state superseded."""
    ignores_modules: bool = False
    """Whether a name that is not found does not exist, even if modules are missing."""


@dataclass(frozen=True)
class Metric:
    """A figure of an analysis, or the difference of two."""

    analysis: str
    key: str
    """Key of the summary."""
    minus: str = ""
    """Key of the figure to subtract."""
    what: str = ""

    def __str__(self) -> str:
        formula = f"{self.analysis}.{self.key}"
        return f"{formula} - {self.analysis}.{self.minus}" if self.minus else formula


@dataclass(frozen=True)
class Evidence:
    """A figure of the same machine as evidence of a patch without a trace in types."""

    metric: Metric
    at_least: float
    why: str
    """A clause: the reason for the conclusion."""
    state: State = State.UNDETERMINED
    """The proven state; undetermined if the evidence is only added to the reason."""


@dataclass(frozen=True)
class Undetectable:
    """Reason for a patch without a trace in debug info, and other evidence of it."""

    reason: str
    evidence: str
    carriers: tuple[str, ...] = ()
    """Release patterns (fnmatch) of kernels that may have it; it is absent on all others."""
    shown_by: tuple[Evidence, ...] = ()
    """Figures in order: the first one that is large enough counts."""


@dataclass(frozen=True)
class Detection:
    """Detection of a patch: the first rule that holds decides."""

    rules: tuple[Rule, ...] = ()
    modules: tuple[str, ...] = ()
    """Kernel modules that the rules need debug info of."""
    undetectable: Undetectable | None = None
    """Applies if no rule holds; None: the patch is then absent."""


@dataclass(frozen=True)
class Stage:
    """One patch of a series."""

    patch: str
    what: str


class Bound(str, enum.Enum):
    """Precision of a published figure."""

    EXACT = "exactly"
    ABOUT = "about"
    AT_MOST = "at most"
    AT_LEAST = "at least"
    MORE_THAN = "more than"


class Moment(str, enum.Enum):
    """Time of measurement of a published figure."""

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
"""Units of published figures: base unit, and factor to it. If a posting writes KB, MB or GB, its
arithmetic decides between powers of two and of ten."""


@dataclass(frozen=True)
class PublishedFigure:
    """A number as published."""

    name: str
    what: str
    value: float
    unit: str
    to: float | None = None
    bound: Bound = Bound.EXACT
    moment: Moment = Moment.OBSERVED
    run: str = ""
    given: Mapping[str, float] = field(default_factory=dict)

    @property
    def base(self) -> float:
        """Return the value in base units."""
        return self.value * UNITS[self.unit][1]

    @property
    def precision(self) -> float:
        """Return one unit of the last published digit, in base units."""
        digits = repr(self.value).partition(".")[2]
        return 10.0 ** -len(digits.rstrip("0")) * UNITS[self.unit][1]


@dataclass(frozen=True)
class FindingRule:
    """Turns a figure into a finding, optionally depending on the state of a patch."""

    severity: str
    """Name of a :class:`kcensus.results.Severity`, in lower case."""
    title: str
    """``{value}`` is replaced by the figure."""
    metric: Metric
    patch: str = ""
    """Empty: the rule depends on the figure alone."""
    states: tuple[State, ...] = LACKS_IT
    at_least: float | None = None
    at_most: float | None = None
    evidence: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Workload:
    """A figure that shows the same, sufficiently large workload on two machines."""

    metric: Metric
    within: float
    """Accepted relative difference."""
    at_least: float


@dataclass(frozen=True)
class Validation:
    """The effect of a patch on a pair of targets, without and with it."""

    metric: Metric
    """The figure that the patch reduces."""
    symptom_at_least: float
    """Minimum of the metric on the target without the patch."""
    workload: tuple[Workload, ...]
    predicted: Metric | None = None
    """A figure of the target without the patch: the prediction for the metric with it."""
    claim: str = ""
    """Run of the published figures to compare with."""
    switch: str = ""
    """A kernel variable that weakens the patch as it grows: two kernels with the patch are a valid
    pair if its values differ."""
    scheduler: str = ""
    """The I/O scheduler that both targets must use."""


@dataclass(frozen=True)
class Patch:
    """One patch or series."""

    id: str
    title: str
    subsystem: str
    status: Status
    summary: str
    symptom: str
    kind: Kind = Kind.FIX
    file: str = ""
    authors: tuple[str, ...] = ()
    postings: tuple[Posting, ...] = ()
    release: str = ""
    """First mainline release; empty if there is none or it is not known."""
    commits: tuple[Commit, ...] = ()
    backports: tuple[Backport, ...] = ()
    supersedes: tuple[str, ...] = ()
    superseded_by: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    """The patches of a series, which detect it."""
    detection: Detection = Detection()
    costs: Metric | None = None
    saves: Metric | None = None
    validation: Validation | None = None
    trace_validation: Validation | None = None
    """Validation by a pair of traces, which have no types."""
    figures: tuple[PublishedFigure, ...] = ()
    rules: tuple[FindingRule, ...] = ()
    remedy: str = ""

    @property
    def is_upstream(self) -> bool:
        """Whether current mainline kernels have the patch or its successor."""
        return self.status in (Status.MERGED, Status.REWORKED)

    @property
    def history(self) -> str:
        """Return the fate of the patch: ``merged in 5.18``; ``RFC 2021, unmerged``."""
        if self.is_upstream:
            return f"merged in {self.release}" if self.release else "merged"
        if self.status is not Status.NEVER_MERGED or not self.postings:
            return self.status.value
        latest = max(self.postings, key=lambda posting: posting.date)
        return f"{'RFC ' if 'RFC' in latest.subject else ''}{latest.date[:4]}, unmerged"


@dataclass(frozen=True)
class Detected:
    """The state of one patch on one kernel."""

    patch: Patch
    state: State
    reason: str
    """The names in the debug info that decide."""
    stage: str = ""
    """Last present stage of a partially applied series."""
