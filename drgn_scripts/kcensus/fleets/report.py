# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a fleet suffers from: causes, outliers, missing patches, growth, and unread targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from kcensus.fleets import FleetError, clusters
from kcensus.fleets.clusters import Cluster
from kcensus.fleets.store import FIGURES, read
from kcensus.human import counted, listed
from kcensus.results import Danger, Figure, Finding, Gap, Remedy, Result, Severity, Unit
from kcensus.results.tables import (
    ALWAYS,
    BYTES,
    COUNT,
    DATA,
    RATIO,
    SECONDS,
    TEXT,
    WIDE,
    Column,
    TableSpec,
    make_tables,
)
from kcensus.text import printable

FIRST_TABLES = ("causes", "outliers", "missing_patches", "growth", "failures")
_READ = ("done", "incomplete")
_MAX_NAMED = 3
_MIN_PEERS = 5
"""Hosts of one kernel from which on one of them can be an outlier."""
_FAR = 6.0
"""Robust standard deviations from the median of the peers."""
_MIN_TIMES = 2.0
_PER_HOST = 3
"""Most figures of a host in the table of outliers."""
_DAY = 86400.0


@dataclass(frozen=True)
class Fleet:
    """The tables of a store, and what follows from them."""

    store: Path

    @cached_property
    def targets(self) -> pd.DataFrame:
        """The rows of ``targets``, the latest dump first."""
        frame: pd.DataFrame = read(self.store, "targets").to_pandas()
        return frame.sort_values(["time", "target"], ascending=[False, True], ignore_index=True)

    @cached_property
    def read(self) -> pd.DataFrame:
        """Those with a result, by attempt."""
        return self.targets[self.targets["state"].isin(_READ)].set_index("attempt")

    @cached_property
    def findings(self) -> pd.DataFrame:
        """The findings of the top level, by attempt, the gravest first."""
        frame: pd.DataFrame = read(self.store, "findings").to_pandas()
        frame = frame[(frame["part_of"] == "") & (frame["analysis"] != "report")]
        grave = frame["severity"].map(lambda name: int(Severity[name.upper()]))
        frame = frame.assign(grave=grave).sort_values(
            ["grave", "holds_bytes"], ascending=False, kind="stable"
        )
        return frame.set_index("attempt")

    @cached_property
    def clusters(self) -> list[Cluster]:
        return clusters.clusters(read(self.store, "features"), [*self.read.index])

    @cached_property
    def causes(self) -> list[Cause]:
        """The clusters with a cause, the gravest first."""
        found = [Cause(self, each) for each in self.clusters if each.common]
        return sorted(found, key=lambda each: (-each.severity, -each.hosts, -each.dumps))

    def cause(self, name: str) -> Cause:
        """Return the cause with an id, or the beginning of one.

        :raises FleetError: there is none, or several
        """
        found = [each for each in self.causes if each.id.startswith(name.lower())]
        if len(found) != 1 or not name:
            known = listed([each.id for each in self.causes], 10) or "none"
            raise FleetError(f"'{printable(name)}' is not the id of one cause (it has {known})")
        return found[0]

    @cached_property
    def outliers(self) -> pd.DataFrame:
        """Figures of hosts far from those of their peers, the hosts with the same kernel."""
        names = ["record", "host", "release", "analysis", "metric", "unit", "value"]
        rows = self._bytes(names)
        latest = self.read.drop_duplicates("host").set_index("record")["target"]
        rows = rows[rows["record"].isin(latest.index) & (rows["value"] > 0)]
        peers = rows.groupby(["release", "analysis", "metric"])["value"]
        middle = peers.transform("median")
        spread = (rows["value"] - middle).abs()
        scale = spread.groupby([rows["release"], rows["analysis"], rows["metric"]]).transform(
            "median"
        )
        far = spread / (1.4826 * scale).clip(lower=0.01 * middle + 1)
        times = rows["value"] / middle
        is_out = (peers.transform("size") >= _MIN_PEERS) & (far > _FAR) & (times >= _MIN_TIMES)
        found = rows.assign(median=middle, times=times, excess=rows["value"] - middle)[is_out]
        found = found.sort_values("excess", ascending=False, kind="stable")
        found = found[found.groupby("host").cumcount() < _PER_HOST]
        found = found.assign(target=found["record"].map(latest))
        return found.reset_index(drop=True)

    def _bytes(self, columns: Sequence[str]) -> pd.DataFrame:
        """Return the amounts of memory in summaries."""
        where = (pc.field("part") == "summary") & (pc.field("unit") == "bytes")
        frame: pd.DataFrame = read(self.store, FIGURES, columns, where=where).to_pandas()
        return frame

    @cached_property
    def missing_patches(self) -> pd.DataFrame:
        """Patches that kernels lack, by patch and kernel, with their costs over the hosts."""
        rows: pd.DataFrame = read(self.store, "patches").to_pandas()
        rows = rows[rows["attempt"].isin(self.read.drop_duplicates("host").index)]
        absent = rows[(rows["state"] == "absent") & (rows["kind"] == "fix")]
        found = absent.groupby(["patch", "release"]).agg(
            hosts=("host", "nunique"), cost_bytes=("cost_bytes", "sum"),
            cost_seconds=("cost_seconds", "max"),
            concerned=("cost_bytes", lambda costs: int((costs > 0).sum())),
        )  # fmt: skip
        return found.reset_index().sort_values(
            ["cost_bytes", "cost_seconds", "hosts"], ascending=False, ignore_index=True
        )

    @cached_property
    def growth(self) -> pd.DataFrame:
        """Growth between the first and the last dump of each host's latest boot."""
        rows = self._bytes(["host", "boot", "time", "analysis", "metric", "value"])
        rows = rows.sort_values("time", kind="stable")
        latest = rows.groupby("host")["boot"].transform("last")
        rows = rows[(rows["boot"] == latest) & (rows["boot"] != "")]
        found = rows.groupby(["host", "analysis", "metric"]).agg(
            first=("value", "first"), last=("value", "last"),
            since=("time", "first"), until=("time", "last"), dumps=("time", "nunique"),
        )  # fmt: skip
        found = found[found["dumps"] > 1].reset_index()
        days = (found["until"] - found["since"]).dt.total_seconds() / _DAY
        found = found.assign(bytes=found["last"] - found["first"], days=days)
        found = found[(found["bytes"] > 0) & (days > 0)]
        found = found.assign(per_day=found["bytes"] / found["days"])
        found = found.sort_values("per_day", ascending=False, kind="stable")
        return found[found.groupby("host").cumcount() < _PER_HOST].reset_index(drop=True)

    @cached_property
    def failures(self) -> pd.DataFrame:
        return clusters.failures(self.targets)


@dataclass(frozen=True)
class Cause:
    """A cluster, as people see it."""

    fleet: Fleet
    cluster: Cluster

    @property
    def id(self) -> str:
        return self.cluster.id

    @cached_property
    def members(self) -> pd.DataFrame:
        """The rows of its targets, the latest first."""
        own = {*self.cluster.attempts}
        return self.fleet.read[self.fleet.read.index.isin(own)]

    @property
    def dumps(self) -> int:
        return len(self.members)

    @property
    def hosts(self) -> int:
        return int(self.members["host"].nunique())

    @cached_property
    def leading(self) -> pd.Series | None:
        """The first finding of the representative; None without one."""
        found = self.fleet.findings.loc[self.fleet.findings.index == self.cluster.representative]
        return found.iloc[0] if len(found) else None

    @property
    def severity(self) -> int:
        return int(self.leading["grave"]) if self.leading is not None else int(Severity.WARNING)

    @property
    def severity_name(self) -> str:
        return Severity(self.severity).name.lower()

    @property
    def title(self) -> str:
        """The finding of the representative, or its panic message."""
        if panic := self.panic:
            return panic
        return str(self.leading["title"]) if self.leading is not None else self.features

    @property
    def panic(self) -> str:
        return str(self.members.at[self.cluster.representative, "panic"])

    @property
    def features(self) -> str:
        return listed([text for _, text in self.cluster.common], 6)

    @property
    def representative(self) -> str:
        return str(self.members.at[self.cluster.representative, "target"])

    @property
    def since(self) -> pd.Timestamp:
        first: pd.Timestamp = self.members["time"].min()
        return first

    @property
    def first(self) -> str:
        return f"{self.since:%Y-%m-%d %H:%M}"

    @property
    def last(self) -> str:
        return f"{self.members['time'].max():%Y-%m-%d %H:%M}"

    @property
    def kernels(self) -> str:
        return listed([*self.members["release"].value_counts().index], _MAX_NAMED)

    @property
    def outliers(self) -> int:
        return len(self.cluster.unlike)

    @property
    def named_hosts(self) -> str:
        return listed([*self.members["host"].drop_duplicates()], _MAX_NAMED)


_CAUSES = TableSpec(
    "causes",
    "Causes",
    {
        "cause": Column(TEXT, "", ALWAYS, "Id, for `kcensus fleet show`.", "id"),
        "severity": Column(TEXT, "", ALWAYS, "Of the first finding.", "severity_name"),
        "hosts": Column(COUNT, "", ALWAYS, "Number of hosts with it."),
        "dumps": Column(COUNT, "", ALWAYS, "Number of dumps with it."),
        "title": Column(TEXT, "for example", ALWAYS, "First finding of the representative."),
        "first": Column(TEXT, "since", ALWAYS, "Time of the first dump with it, UTC."),
        "last": Column(TEXT, "", WIDE, "Time of the last dump with it, UTC."),
        "kernels": Column(TEXT, "", WIDE, "Most frequent kernels."),
        "outliers": Column(COUNT, "", WIDE, "Dumps with other features, too, or without some."),
        "representative": Column(TEXT, "open first", WIDE, "The target most like all others."),
        "features": Column(TEXT, "", DATA, "What most of its dumps have in common."),
    },
    "A cluster of dumps with the same findings, deadlock, panic or stacks.",
    rows="causes",
)
_OUTLIERS = TableSpec(
    "outliers",
    "Hosts far from their peers",
    {
        "host": Column(TEXT, "", ALWAYS, "Name of the host."),
        "figure": Column(TEXT, "", ALWAYS, "Analysis and key.",
            lambda rows: rows["analysis"] + "." + rows["metric"]),
        "value": Column(BYTES, "", ALWAYS, "Of its latest dump."),
        "median": Column(BYTES, "peers' median", ALWAYS, "Of hosts with the same kernel."),
        "times": Column(RATIO, "of the median", WIDE, "Value as a share of the median."),
        "release": Column(TEXT, "kernel", WIDE, "Release of the kernel."),
        "target": Column(TEXT, "open", WIDE, "The latest dump."),
    },
    "A figure of a host that is far above those of hosts with the same kernel.",
    rows="outliers",
)  # fmt: skip
_PATCHES = TableSpec(
    "missing_patches",
    "Missing fixes",
    {
        "patch": Column(TEXT, "", ALWAYS, "Id, for `kcensus patches`."),
        "release": Column(TEXT, "kernel", ALWAYS, "Release of the kernel."),
        "hosts": Column(COUNT, "", ALWAYS, "Number of hosts that lack it."),
        "concerned": Column(COUNT, "with a cost", ALWAYS, "Hosts that it costs memory."),
        "cost_bytes": Column(BYTES, "cost", ALWAYS, "Memory on all hosts."),
        "cost_seconds": Column(SECONDS, "longest wait", WIDE, "Longest wait on a host."),
    },
    "A fix that a kernel lacks.",
    rows="missing_patches",
)
_GROWTH = TableSpec(
    "growth",
    "Growth",
    {
        "host": Column(TEXT, "", ALWAYS, "Name of the host."),
        "figure": Column(TEXT, "", ALWAYS, "Analysis and key.",
            lambda rows: rows["analysis"] + "." + rows["metric"]),
        "per_day": Column(BYTES, "per day", ALWAYS, "Growth in a day."),
        "bytes": Column(BYTES, "grown", ALWAYS, "Between its first and last dump."),
        "days": Column(SECONDS, "in", WIDE, "Time between them.", lambda rows: rows["days"] * _DAY),
        "dumps": Column(COUNT, "", WIDE, "Number of dumps of this boot."),
    },
    "A figure of a host that grew in its latest boot.",
    rows="growth",
)  # fmt: skip
_FAILURES = TableSpec(
    "failures",
    "Targets without a report",
    {
        "targets": Column(COUNT, "", ALWAYS, "Number of targets."),
        "step": Column(TEXT, "", ALWAYS, "Step that failed."),
        "error": Column(TEXT, "", ALWAYS, "Reason."),
        "example": Column(TEXT, "", ALWAYS, "One of the targets."),
    },
    "Targets that failed for the same reason.",
    rows="failures",
)
_DUMPS = TableSpec(
    "dumps",
    "Dumps of this cause",
    {
        "host": Column(TEXT, "", ALWAYS, "Name of the host."),
        "time": Column(TEXT, "", ALWAYS, "Time of the dump, UTC.",
            lambda rows: rows["time"].dt.strftime("%Y-%m-%d %H:%M")),
        "target": Column(TEXT, "", ALWAYS, "Path, to open it."),
        "release": Column(TEXT, "kernel", WIDE, "Release of the kernel."),
        "more": Column(TEXT, "also has", ALWAYS, "Features that most others lack."),
        "lacks": Column(TEXT, "lacks", WIDE, "Features that most others have."),
    },
    "A dump; the representative first, then those that differ from it.",
    rows="dumps",
)  # fmt: skip
TABLES = (_CAUSES, _OUTLIERS, _PATCHES, _GROWTH, _FAILURES)
TABLES_OF_A_CAUSE = (_DUMPS,)


def report(store: Path) -> Result:
    """Return what a fleet suffers from.

    :raises FleetError: it is not the store of a fleet
    """
    fleet = Fleet(store)
    states = fleet.targets["state"].value_counts()
    made = Result("fleet", str(store), "", measures=False)
    made.summary = {
        "hosts": Figure(int(fleet.read["host"].nunique()), label="hosts"),
        "targets": Figure(len(fleet.targets), label="targets"),
        "reports": Figure(len(fleet.read), label="with a report"),
        "duplicates": Figure(int(states.get("duplicate", 0)), label="with equal content"),
        "failed": Figure(int(states.get("failed", 0)), label="without a report"),
        "causes": Figure(len(fleet.causes), label="causes"),
        "healthy": Figure(
            sum(len(each.attempts) for each in fleet.clusters if not each.common),
            label="without a finding",
        ),
    }
    made.tables = make_tables(TABLES, fleet)
    made.findings = [*_findings(fleet, store)]
    return made


def _findings(fleet: Fleet, store: Path) -> Iterator[Finding]:
    hosts = int(fleet.read["host"].nunique())
    for each in fleet.causes:
        yield Finding(
            id=f"fleet-cause:{each.id}",
            severity=Severity(each.severity),
            title=f"{each.hosts} of {counted(hosts, 'host')}, {counted(each.dumps, 'dump')} since "
            f"{each.first}: {each.title}",
            evidence=f"{each.named_hosts}; Linux {each.kernels}; in common: {each.features}",
            figures={"hosts": Figure(each.hosts), "dumps": Figure(each.dumps)},
            remedies=(
                Remedy(
                    effect="Show its dumps, and what differs in some",
                    command=f"kcensus fleet show {each.id} {quote(str(store))}",
                ),
                Remedy(
                    effect="Show the remedies on the dump that is most like all of them",
                    command=f"kcensus report {quote(each.representative)}",
                ),
            ),
        )
    failed = fleet.failures
    if len(failed):
        total = int(failed["targets"].sum())
        yield Finding(
            id="fleet-unread",
            severity=Severity.NOTICE,
            danger=Danger.INCOMPLETE,
            title=f"{total} of {counted(len(fleet.targets), 'target')} have no report",
            evidence=listed(
                [f"{row.targets}: {row.error}" for row in failed.itertuples()], _MAX_NAMED
            ),
            figures={"failed": Figure(total)},
            no_remedy="The table failures has the reasons; `kcensus fleet run` tries again what "
            "can go better",
        )


def show(store: Path, name: str) -> Result:
    """Return the dumps of one cause.

    :param name: its id, or the beginning
    :raises FleetError: there is no such cause, or it is not the store of a fleet
    """
    cause = Fleet(store).cause(name)
    members, unlike = cause.members.copy(), cause.cluster.unlike

    def texts(side: int) -> list[str]:
        return [
            ", ".join(text for _, text in unlike.get(attempt, ((), ()))[side])
            for attempt in members.index
        ]

    members["more"], members["lacks"] = texts(0), texts(1)
    order = np.argsort(
        [
            (attempt != cause.cluster.representative) + (attempt not in unlike)
            for attempt in members.index
        ],
        kind="stable",
    )
    made = Result("fleet", str(store), "", measures=False)
    made.summary = {
        "hosts": Figure(cause.hosts, label="hosts"),
        "dumps": Figure(cause.dumps, label="dumps"),
        "outliers": Figure(cause.outliers, label="dumps that differ"),
        "since": Figure(cause.first, Unit.TEXT, "first dump"),
        "until": Figure(cause.last, Unit.TEXT, "last dump"),
        "kernels": Figure(cause.kernels, Unit.TEXT, "kernels"),
        "common": Figure(cause.features, Unit.TEXT, "in common"),
        "representative": Figure(cause.representative, Unit.TEXT, "open first"),
    }
    made.tables = make_tables(TABLES_OF_A_CAUSE, {"dumps": members.iloc[order]})
    made.gaps = [
        Gap("dumps with equal content", "read once", len(twins), "not counted in dumps")
        for twins in [Fleet(store).targets.query("duplicate_of in @cause.cluster.attempts")]
        if len(twins)
    ]
    return made
