# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a fleet suffers from: causes, failures, missing fixes, hosts far off, and growth."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from shlex import quote

import numpy as np
import pandas as pd

from kcensus.fleets import FleetError
from kcensus.fleets.report import figures
from kcensus.fleets.report.causes import TIME, Cause, causes, shown, span, unread
from kcensus.fleets.report.data import Fleet
from kcensus.fleets.report.tables import TABLES, TABLES_OF_A_CAUSE
from kcensus.human import counted, listed
from kcensus.results import Danger, Figure, Finding, Gap, Remedy, Result, Severity, Unit
from kcensus.results.tables import Table, make_tables
from kcensus.text import printable

_MAX_REASONS = 4
_LABELS = {
    "targets": "targets",
    "reports": "with a report",
    "replaced": "more dumps, not at their paths any more",
    "failed": "without a report",
    "incomplete": "with a report that lacks analyses",
    "duplicates": "with equal content",
}
"""Labels of :attr:`Report.numbers`."""


@dataclass(frozen=True)
class Report:
    """What a fleet suffers from."""

    store: str | os.PathLike[str]
    since: str = ""
    """Day of the first dumps to look at, in UTC: 2026-01-31; all if empty."""

    @cached_property
    def fleet(self) -> Fleet:
        return Fleet(self.store, self.since)

    @cached_property
    def causes(self) -> list[Cause]:
        return causes(self.fleet)

    @cached_property
    def failures(self) -> pd.DataFrame:
        return figures.reasons(self.failed)

    @cached_property
    def failed(self) -> pd.DataFrame:
        """The targets without a report."""
        return figures.unread_targets(self.fleet.failed)

    @cached_property
    def incomplete(self) -> pd.DataFrame:
        """The targets whose report lacks an analysis."""
        return figures.unread_targets(self.fleet.incomplete.assign(step="analyse"))

    @property
    def numbers(self) -> dict[str, int]:
        """The number of targets by what became of them; those with a report are the rest."""
        is_present = self.fleet.reports["present"]
        return {
            "targets": int(self.fleet.targets["present"].sum()),
            "reports": int(is_present.sum()),
            "replaced": int((~is_present).sum()),
            "failed": len(self.fleet.failed),
            "incomplete": len(self.fleet.incomplete),
            "duplicates": len(self.fleet.duplicates),
        }

    @cached_property
    def missing_patches(self) -> pd.DataFrame:
        return figures.missing_patches(self.fleet)

    @cached_property
    def outliers(self) -> pd.DataFrame:
        return figures.outliers(self.fleet)

    @cached_property
    def growth(self) -> pd.DataFrame:
        return figures.growth(self.fleet)

    @cached_property
    def every_dump(self) -> pd.DataFrame:
        """The dumps with a report, the gravest first, with their ``cause``."""
        rows = self.fleet.reports
        ids = np.full(len(rows), "", object)
        grave = self.fleet.severity
        names = {int(each): each.name.lower() for each in Severity}
        for each in self.causes:
            ids[each.cluster.targets] = each.id
        rows = rows.assign(
            cause=ids,
            time=rows["time"].dt.strftime(TIME),
            severity=np.where(grave > 0, grave.map(names), ""),
            replaced=np.where(rows["present"], "", "yes"),
        )
        order = np.lexsort((rows["target"], ids == "", -grave))
        return rows.iloc[order].reset_index(drop=True)

    @property
    def healthy(self) -> pd.DataFrame:
        """The reports in which nothing was found, the incomplete ones included."""
        return self.fleet.reports.iloc[self.fleet.clusters.healthy]

    @cached_property
    def hosts(self) -> int:
        """The number of hosts with a report."""
        return int(self.fleet.reports["machine"].nunique())

    @cached_property
    def facts(self) -> list[tuple[str, str]]:
        """What was read and what was not, as labelled lines."""
        numbers = self.numbers
        if not len(self.fleet.targets):
            last = Fleet(self.store).reports["time"].max() if self.since else None
            if last is None or pd.isna(last):
                hint = f"`kcensus fleet run TARGETS --store {quote(str(self.store))}` reads some"
                return [("Read", f"no target; {hint}")]
            return [("Read", f"no target since {self.since}; the last dump is of {last:{TIME}}")]
        words = f"{numbers['reports']:,} of {counted(numbers['targets'], 'target')}"
        if len(self.fleet.reports):
            times = self.fleet.reports["time"]
            dumped = span(f"{times.min():{TIME}}", f"{times.max():{TIME}}")
            words += f" on {counted(self.hosts, 'host')}, dumped {dumped} UTC"
        if twins := numbers["duplicates"]:
            words += f" ({counted(twins, 'duplicate')} left out)"
        facts = [("Read", words)]
        if replaced := numbers["replaced"]:
            dumps = counted(replaced, "more dump")
            facts.append(("Replaced", f"{dumps} counted here, not at their paths any more"))
        for state, rows in (("failed", self.failed), ("incomplete", self.incomplete)):
            if len(rows):
                facts.append((state.capitalize(), counted(len(rows), "target")))
                facts += [("", each) for each in self._reasons(state)]
                facts.append(("", f"--table {state} has all paths"))
        if healthy := len(self.healthy):
            partly = int((self.healthy["state"] == "incomplete").sum())
            also = f", but analyses failed in {partly:,} of them" if partly else ""
            on = counted(int(self.healthy["machine"].nunique()), "host")
            facts.append(("Healthy", f"{counted(healthy, 'dump')} on {on}: nothing found{also}"))
        return facts

    def brief(self, name: str) -> Table:
        """Return a table without what decides nothing: costless fixes, more figures of a host."""
        table = self.result.tables[name]
        frame = table.frame
        if name == "missing_patches":
            is_costly = frame["concerned"] > 0
            others = frame["patch"].nunique() - frame.loc[is_costly, "patch"].nunique()
            fixes = counted(others, "more fix", plural="more fixes")
            note = f"{fixes} missing without a cost (--table missing_patches, --json)"
            rows = frame[is_costly].reset_index(drop=True)
            return replace(table, frame=rows, note=note if others else "")
        if name in ("outliers", "growth"):
            return replace(table, frame=frame.drop_duplicates("host", ignore_index=True))
        return table

    def show_command(self, cause: Cause) -> str:
        """Return the command that shows the dumps of a cause."""
        since = f" --since {self.since}" if self.since else ""
        return f"kcensus fleet show {cause.id} {quote(str(self.store))}{since}"

    @cached_property
    def result(self) -> Result:
        """Everything, for all forms."""
        fleet, healthy = self.fleet, self.healthy
        made = Result("fleet", str(self.store), "", measures=False)
        states = healthy["state"].value_counts()
        times = fleet.reports["time"]
        numbers = {
            **{key: (n, _LABELS[key]) for key, n in self.numbers.items()},
            "hosts": (self.hosts, "hosts"),
            "causes": (len(self.causes), "causes"),
            "healthy": (int(states.get("done", 0)), "nothing found"),
            "healthy_incomplete": (
                int(states.get("incomplete", 0)), "nothing found, but incomplete",
            ),
        }  # fmt: skip
        made.summary = {key: Figure(int(n), label=label) for key, (n, label) in numbers.items()}
        ends = {"first": (times.min(), "first dump"), "last": (times.max(), "last dump")}
        for key, (time, label) in ends.items() if len(times) else ():
            made.summary[key] = Figure(f"{time:{TIME}}", Unit.TEXT, label)
        made.tables = make_tables(TABLES, self)
        made.findings = [*self._findings()]
        if left_out := len(fleet.clusters.left_out):
            reason = "there are more kinds of dumps than can be compared"
            made.gaps = [Gap("dumps of rare kinds", reason, left_out, "they are in no cause")]
        return made

    def cause(self, name: str) -> Cause:
        """Return the cause with an id, or the beginning of one.

        :raises FleetError: there is none, or several
        """
        found = [each for each in self.causes if each.id.startswith(name.lower())]
        if len(found) == 1 and name:
            return found[0]
        known = listed([each.id for each in found or self.causes], 10) or "none"
        what = "the id of no cause" if not found else "the beginning of several ids"
        raise FleetError(f"'{printable(name)}' is {what}: choose from {known}")

    def dumps(self, cause: Cause) -> Result:
        """Return the dumps of a cause: the representative, those that differ, then the latest."""
        fleet, cluster = self.fleet, cause.cluster
        times = fleet.reports["time"].iloc[cluster.targets].astype("int64").to_numpy()
        is_alike = ~np.isin(cluster.targets, cluster.unlike)
        order = cluster.targets[
            np.lexsort((-times, is_alike, cluster.targets != cluster.representative))
        ]
        unlike = {*cluster.unlike.tolist()}
        differences = [
            fleet.clusters.features.differences(cluster, int(each)) if each in unlike else ((), ())
            for each in order
        ]
        members = fleet.reports.iloc[order]
        members = members.assign(
            time=members["time"].dt.strftime(TIME),
            severity=[Severity(int(each)).name.lower() for each in fleet.severity.iloc[order]],
            replaced=np.where(members["present"], "", "yes"),
            more=["; ".join(map(shown, more)) for more, _ in differences],
            lacks=["; ".join(map(shown, lacks)) for _, lacks in differences],
        )
        made = Result("fleet", str(self.store), "", measures=False)
        made.summary = {
            "cause": Figure(cause.id, Unit.TEXT, "id"),
            "title": Figure(cause.title, Unit.TEXT, "cause"),
            "severity": Figure(cause.severity_name, Unit.TEXT, "severity"),
            "hosts": Figure(cause.hosts, label="hosts"),
            "dumps": Figure(cause.dumps, label="dumps"),
            "outliers": Figure(cause.outliers, label="dumps that differ"),
            "first": Figure(cause.first, Unit.TEXT, "first dump"),
            "last": Figure(cause.last, Unit.TEXT, "last dump"),
            "kernels": Figure(cause.kernels, Unit.TEXT, "kernels"),
            "features": Figure(cause.features, Unit.TEXT, "most have"),
            "example": Figure(cause.example, Unit.TEXT, "for example"),
            "representative": Figure(cause.representative, Unit.TEXT, "open first"),
            "command": Figure(cause.command, Unit.TEXT, "command"),
        }
        made.tables = make_tables(TABLES_OF_A_CAUSE, {"dumps": members})
        twins = int(fleet.duplicates["duplicate_of"].isin(members["attempt"]).sum())
        if twins:
            effect = "they are not counted in dumps"
            made.gaps = [Gap("dumps with equal content", "read once", twins, effect)]
        return made

    def _findings(self) -> Iterator[Finding]:
        for each in self.causes:
            opened = Remedy(
                effect="Open the dump that is most like all of them", command=each.command
            )
            dumps = Remedy(
                effect="List its dumps, and what differs in some", command=self.show_command(each)
            )
            yield Finding(
                id=f"fleet-cause:{each.id}",
                severity=each.severity,
                title=each.title,
                evidence=". ".join(
                    filter(
                        None,
                        (each.extent(self.hosts), each.where, each.shown_example, each.differing),
                    )
                ),
                figures={"hosts": Figure(each.hosts), "dumps": Figure(each.dumps)},
                remedies=(opened, dumps) if each.command else (dumps,),
            )
        numbers = self.numbers
        targets = counted(numbers["targets"], "target")
        if failed := numbers["failed"]:
            yield Finding(
                id="fleet-incomplete",
                severity=Severity.NOTICE,
                danger=Danger.INCOMPLETE,
                title=f"{failed:,} of {targets} have no report",
                evidence="; ".join(self._reasons("failed")),
                figures={"failed": Figure(failed)},
                no_remedy="The table failures has all reasons, and failed all paths; once the "
                "reasons are removed, the same `kcensus fleet run` reads these targets again",
            )
        if partly := numbers["incomplete"]:
            yield Finding(
                id="fleet-partial",
                severity=Severity.NOTICE,
                danger=Danger.INCOMPLETE,
                title=f"Analyses failed in {partly:,} of {targets}",
                evidence="; ".join(self._reasons("incomplete")),
                figures={"incomplete": Figure(partly)},
                no_remedy="The table incomplete has all errors; `kcensus fleet run` with more "
                "--max-memory, or with -s, reads these targets again",
            )

    def _reasons(self, state: str) -> list[str]:
        """Return why targets failed, or are incomplete."""
        rows = self.failures if state == "failed" else figures.reasons(self.incomplete)
        return unread(rows, _MAX_REASONS, state)
