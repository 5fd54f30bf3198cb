# SPDX-License-Identifier: LGPL-2.1-or-later
"""The data of the catalogue: patches, published figures, rules, and states on one kernel.

``kernel_patches/README.md`` explains the keys of files, which are the fields here with dashes, each
checked by its type hint. Enums are texts, so that :mod:`json` writes them.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, Struct, field


def _matching(pattern: str, description: str) -> Meta:
    """Return what a text has to match; error messages have the description."""
    return Meta(pattern=f"^({pattern})$", description=description)


_KEY = "[a-z][a-z0-9_]*"
_C = r"[A-Za-z_]\w*"
Name = Annotated[str, _matching(_C, "a C identifier")]
Id = Annotated[str, _matching("[a-z0-9]+(-[a-z0-9]+)*", "an id such as 'cfq-removal'")]
Key = Annotated[str, _matching(_KEY, "a key such as 'slab_bytes'")]
Date = Annotated[
    str, _matching(r"\d{4}(-\d\d(-\d\d)?)?", "a date such as '2021', '2021-09' or '2021-09-14'")
]
Hash = Annotated[str, _matching("[0-9a-f]{8,40}", "a commit hash of 8 to 40 hexadecimal digits")]
Release = Annotated[str, _matching(r"\d+\.\d+", "a release such as '5.18'")]
TypeName = Annotated[
    str, _matching(rf"((struct|union|enum) )?{_C}", "a type such as 'struct page'")
]
MemberName = Annotated[
    str, _matching(rf"((struct|union) )?{_C}(\.{_C})+", "a member such as 'struct slab.stride'")
]
ParameterName = Annotated[str, _matching(rf"{_C}\.{_C}", "a parameter, 'module.name'")]


class Record(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """One table of a file. The error of a record that contradicts itself begins with its key."""

    def __post_init__(self) -> None:
        for key, problem in self.problems():
            raise ValueError(f"{key}: {problem}")

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the record as a whole: a key, or an empty text, and why."""
        return iter(())


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


class Posting(Record, frozen=True):
    """One posting of a patch to mailing lists."""

    date: Date
    where: str
    subject: str = ""
    message_id: str = ""


class Commit(Record, frozen=True):
    """One mainline commit; without a hash if it is not verified."""

    subject: str = ""
    hash: Hash = ""
    release: Release = ""
    """First release with it, if it differs from :attr:`Patch.release`."""
    note: str = ""

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.subject and not self.hash:
            yield "", "needs a subject or a hash"


class Backport(Record, frozen=True):
    """A kernel that carries a patch although its version is older."""

    kernel: str
    note: str = ""


class Package(Record, frozen=True):
    """What the kernel packages of one distribution have of a patch."""

    distribution: str
    """:attr:`Distribution.name`."""
    source: str
    """Changelog or source that shows it, with its place."""
    package: str = ""
    """First package with the patch."""
    release: str = ""
    """Minor release of the distribution with :attr:`package`, such as ``8.4``."""
    or_earlier: bool = False
    """Whether an earlier package may have it, too: none was looked at."""
    absent_up_to: str = ""
    """Newest package that was looked at, in case it lacks the patch."""

    def problems(self) -> Iterator[tuple[str, str]]:
        if bool(self.package) == bool(self.absent_up_to):
            yield "package", "is required, or absent-up-to, but not both"
        if (self.release or self.or_earlier) and not self.package:
            yield "release" if self.release else "or-earlier", "is for a package with the patch"


class Distribution(Record, frozen=True):
    """The kernel of one release of a distribution."""

    name: str
    """``RHEL 8``."""
    family: str
    """``RHEL``; newer releases of a family follow older ones."""
    base: Release
    """Mainline release that the first package of the kernel is based on."""
    kernel: str
    """Regular expression: the beginning of the kernel's release and build."""

    def problems(self) -> Iterator[tuple[str, str]]:
        try:
            re.compile(self.kernel)
        except re.error as error:
            yield "kernel", f"is not a regular expression ({error})"


class ProbeKind(str, enum.Enum):
    """The kinds of names in the debug info: the fields of :class:`Probe`."""

    TYPE = "type"
    MEMBER = "member"
    SYMBOL = "symbol"
    ENUMERATOR = "enumerator"
    PARAMETER = "parameter"


class Probe(Record, frozen=True):
    """One name to look up in the debug info."""

    type: TypeName = ""
    """``struct obj_cgroup``; a declaration without members does not count."""
    member: MemberName = ""
    """``struct dm_snapshot.in_progress``; pointers in between are dereferenced."""
    symbol: Name = ""
    """A variable or a function, inlined or not."""
    may_be_inlined: bool = False
    """Whether compilers inline the function in some kernels; then only DWARF has it."""
    enumerator: Name = ""
    parameter: ParameterName = ""
    """``dm_snapshot.snapshot_cow_threshold``, of a module."""

    @property
    def kind(self) -> ProbeKind:
        return next(kind for kind in ProbeKind if getattr(self, kind.value))

    @property
    def name(self) -> str:
        return str(getattr(self, self.kind.value))

    def __str__(self) -> str:
        return self.name if self.kind is ProbeKind.TYPE else f"{self.kind.value} {self.name}"

    def problems(self) -> Iterator[tuple[str, str]]:
        if sum(bool(getattr(self, kind.value)) for kind in ProbeKind) != 1:
            choices = ", ".join(kind.value for kind in ProbeKind)
            yield "", f"must have exactly one key (choose from {choices})"
        if self.may_be_inlined and not self.symbol:
            yield "may_be_inlined", "is for a symbol"


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


class Rule(Record, frozen=True):
    """The state that follows if all of :attr:`has` and none of :attr:`lacks` exist."""

    state: State
    has: tuple[Probe, ...] = ()
    lacks: tuple[Probe, ...] = ()
    why: str = ""
    by: Id = ""
    """The replacement, for the state superseded."""
    ignores_modules: bool = False
    """Whether a name that is not found does not exist, even if modules are missing."""

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.state is State.PARTIALLY_APPLIED:
            yield "state", f"{self.state.value!r} is only for a series with stages"
        if not self.has and not self.lacks:
            yield "has", "is missing: a rule needs a probe in has or lacks"
        if (self.state is State.SUPERSEDED) != bool(self.by):
            yield "by", "is required for the state superseded, and only for it"
        if self.state is State.UNDETERMINED and not self.why:
            yield "why", "is missing: say why the state is undetermined"


class Metric(Record, frozen=True):
    """A figure of an analysis, or the difference of two."""

    analysis: Id
    key: Key
    """Key of the summary."""
    what: str
    minus: Key = ""
    """Key of the figure to subtract."""

    def __str__(self) -> str:
        formula = f"{self.analysis}.{self.key}"
        return f"{formula} - {self.analysis}.{self.minus}" if self.minus else formula


class Evidence(Record, frozen=True):
    """A figure of the same machine as evidence of a patch without a trace in types."""

    metric: Metric
    at_least: float
    why: str
    """A clause: the reason for the conclusion."""
    state: State = State.UNDETERMINED
    """The proven state; undetermined if the evidence is only added to the reason."""

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.state not in (State.PRESENT, State.ABSENT, State.UNDETERMINED):
            yield "state", f"{self.state.value!r} does not follow from a figure"


class Undetectable(Record, frozen=True):
    """Reason for a patch without a trace in debug info, and other evidence of it."""

    reason: str
    evidence: str
    shown_by: tuple[Evidence, ...] = ()
    """Figures in order: the first one that is large enough counts."""


class Detection(Record, frozen=True):
    """Detection of a patch: the first rule that holds decides."""

    rules: tuple[Rule, ...] = ()
    modules: tuple[Name, ...] = ()
    """Kernel modules that the rules need debug info of."""
    undetectable: Undetectable | None = None
    """Applies if no rule holds; None: the patch is then absent."""


class Stage(Record, frozen=True):
    """One patch of a series."""

    patch: Id
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


class PublishedFigure(Record, frozen=True):
    """A number as published."""

    name: Id
    what: str
    value: float
    unit: str
    to: float | None = None
    bound: Bound = Bound.EXACT
    moment: Moment = Moment.OBSERVED
    run: Id = ""
    given: Mapping[str, float] = field(default_factory=dict)

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.unit not in UNITS:
            yield "unit", f"{self.unit!r} is unknown (choose from {', '.join(UNITS)})"
        for key in self.given:
            if not re.fullmatch(_KEY, key):
                yield f"given.{key}", f"{key!r} is not a key such as 'slab_bytes'"
        if self.to is not None and self.to <= self.value:
            yield "to", f"'{self.to:g}' must be above value, {self.value:g}"

    @property
    def base(self) -> float:
        """Return the value in base units."""
        return self.value * UNITS[self.unit][1]


class FindingRule(Record, frozen=True):
    """Turns a figure into a finding, optionally depending on the state of a patch."""

    severity: Literal["info", "notice", "warning", "critical"]
    """Name of a :class:`kcensus.results.Severity`, in lower case."""
    title: str
    """``{value}`` is replaced by the figure."""
    metric: Metric
    patch: Id = ""
    """Empty: the rule depends on the figure alone."""
    states: tuple[State, ...] = LACKS_IT
    at_least: float | None = None
    at_most: float | None = None
    evidence: str = ""
    remedy: str = ""

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.at_least is None and self.at_most is None:
            yield "at-least", "is missing: a rule needs at-least or at-most"
        if re.search("[{}]", self.title.replace("{value}", "")):
            yield "title", "must not contain braces other than {value}"


class Workload(Record, frozen=True):
    """A figure that shows the same, sufficiently large workload on two machines."""

    metric: Metric
    within: float
    """Accepted relative difference."""
    at_least: float


class Validation(Record, frozen=True):
    """The effect of a patch on a pair of targets, without and with it."""

    metric: Metric
    """The figure that the patch reduces."""
    symptom_at_least: float
    """Minimum of the metric on the target without the patch."""
    workload: tuple[Workload, ...]
    predicted: Metric | None = None
    """A figure of the target without the patch: the prediction for the metric with it."""
    claim: Id = ""
    """Run of the published figures to compare with."""
    switch: Name = ""
    """A kernel variable that weakens the patch as it grows: two kernels with the patch are a valid
    pair if its values differ."""
    scheduler: str = ""
    """The I/O scheduler that both targets must use."""

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.workload:
            yield "workload", "is empty: a pair needs a figure of its workload"


class Patch(Record, frozen=True):
    """One patch or series."""

    id: Id
    title: str
    subsystem: str
    status: Status
    summary: str
    symptom: str
    kind: Kind = Kind.FIX
    file: str = ""
    authors: tuple[str, ...] = ()
    postings: tuple[Posting, ...] = field(name="posted", default=())
    release: Release = ""
    """First mainline release; empty if there is none or it is not known."""
    commits: tuple[Commit, ...] = ()
    backports: tuple[Backport, ...] = ()
    packages: tuple[Package, ...] = ()
    """At most one of each distribution."""
    supersedes: tuple[Id, ...] = ()
    superseded_by: tuple[Id, ...] = ()
    fixes: tuple[Id, ...] = ()
    related: tuple[Id, ...] = ()
    stages: tuple[Stage, ...] = ()
    """The patches of a series, which detect it."""
    detection: Detection = field(name="detect", default=Detection())
    costs: Metric | None = None
    saves: Metric | None = None
    validation: Validation | None = field(name="validate", default=None)
    trace_validation: Validation | None = field(name="validate-traces", default=None)
    """Validation by a pair of traces, which have no types."""
    figures: tuple[PublishedFigure, ...] = ()
    rules: tuple[FindingRule, ...] = ()
    remedy: str = ""

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.stages and self.detection != Detection():
            yield "detect", "must be left out: a series is detected by its stages"
        if not self.stages and not self.detection.rules and not self.detection.undetectable:
            yield "detect", "is missing: add rules or [detect.undetectable]"
        runs = {figure.run for figure in self.figures}
        for key, way in (("validate", self.validation), ("validate-traces", self.trace_validation)):
            if way and way.claim and way.claim not in runs:
                yield f"{key}.claim", f"{way.claim!r} is not the run of any published figure"
        names = [figure.name for figure in self.figures]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            yield "figures", f"the name {twice!r} is used twice"
        owners = [package.distribution for package in self.packages]
        if twice := next((name for name in owners if owners.count(name) > 1), ""):
            yield "packages", f"{twice!r} is listed twice"

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
