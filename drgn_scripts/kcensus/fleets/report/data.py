# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tables of a store as the reports need them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kcensus.fleets.causes import PATCH
from kcensus.fleets.clusters import Clusters, clusters
from kcensus.fleets.store import FIGURES, REPORTED, Reader
from kcensus.fleets.tables import DEBUGINFOD
from kcensus.render.plain import NO_HOST
from kcensus.results import Severity
from kcensus.store.layout import UNKNOWN_HOST
from kcensus.text import pasteable

_INCOMPLETE, _FAILED, _DUPLICATE = "incomplete", "failed", "duplicate"
_NO_CAUSE = r"-(?:incomplete|unsupported)$"
"""Kinds of findings about what kcensus could not do."""
_SUPPOSED = "projected_", "old_"
"""Beginnings of figures that would be, with or without a patch."""
_SEVERITIES = {each.name.lower(): int(each) for each in Severity if each >= Severity.NOTICE}


@dataclass(frozen=True)
class Fleet:
    """A store."""

    store: str | os.PathLike[str]
    since: str = ""
    """Day of the first dumps to look at, in UTC: 2026-01-31; all if empty."""

    def _rows(
        self, name: str, columns: Sequence[str], where: pc.Expression | None = None
    ) -> pa.Table:
        is_recent = pc.field("day") >= self.since
        return self._reader.read(
            name, columns, where=is_recent if where is None else is_recent & where
        )

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self.store)

    @cached_property
    def targets(self) -> pd.DataFrame:
        """The rows of ``targets``, the latest dump first, with its ``machine`` and ``command``.

        Hosts without a name are told apart by their boots. The command opens the dump; it is empty
        where the path has another one now.
        """
        names = [
            *("attempt", "target", "state", "step", "error", "duplicate_of", "time", "boot"),
            *("host", "release", "build_id", "panic", "record", "debug_info", "present"),
        ]
        frame: pd.DataFrame = self._rows("targets", names).to_pandas()
        frame = frame.sort_values(["time", "target"], ascending=[False, True], ignore_index=True)
        has_name = ~frame["host"].isin(["", NO_HOST, UNKNOWN_HOST])
        boot = frame["boot"].str[:12].where(frame["boot"] != "", "unknown")
        opened = zip(frame["target"], frame["debug_info"], frame["present"], strict=True)
        return frame.assign(
            machine=frame["host"].where(has_name, "(no name) boot " + boot),
            command=[opening(*words) if is_present else "" for *words, is_present in opened],
        )

    @cached_property
    def reports(self) -> pd.DataFrame:
        """The dumps with a result: those that can be opened, the complete ones, then the latest."""
        frame = self.targets[self.targets["state"].isin(REPORTED)]
        return frame.sort_values(
            ["present", "state"], ascending=[False, True], kind="stable", ignore_index=True
        )

    @cached_property
    def incomplete(self) -> pd.DataFrame:
        """The targets whose report lacks an analysis."""
        return self.targets[(self.targets["state"] == _INCOMPLETE) & self.targets["present"]]

    @cached_property
    def failed(self) -> pd.DataFrame:
        return self.targets[self.targets["state"] == _FAILED]

    @cached_property
    def duplicates(self) -> pd.DataFrame:
        return self.targets[self.targets["state"] == _DUPLICATE]

    @cached_property
    def latest(self) -> pd.DataFrame:
        """The latest report of each machine."""
        return self.reports.sort_values("time", ascending=False).drop_duplicates("machine")

    @cached_property
    def clusters(self) -> Clusters:
        columns = ["attempt", "kind", "feature", "weight"]
        table = self._rows("features", columns, pc.field("weight") > 0)
        return clusters(table, self.reports["attempt"].tolist())

    @cached_property
    def severity(self) -> pd.Series:
        """The severity of each report: that of its gravest finding; 0 without one."""
        rows = self._findings(pc.field("severity").isin(pa.array([*_SEVERITIES])))
        grave = rows["severity"].map(_SEVERITIES).groupby(rows["attempt"]).max()
        known = grave.astype(float).reindex(self.reports["attempt"]).fillna(0.0)
        is_panic = (self.reports["panic"] != "").to_numpy()
        return pd.Series(np.where(is_panic, int(Severity.CRITICAL), known.astype(np.int64)))

    def findings(self, attempts: Sequence[str]) -> pd.DataFrame:
        """Return the findings of some reports, each in the order of the report."""
        rows = self._findings(pc.field("attempt").isin(pa.array(attempts, pa.string())))
        # The order by severity is the report's, too; a store may mix rows where it deletes some.
        grave = rows["severity"].map(_SEVERITIES).astype(float).fillna(0)
        return rows.iloc[(-grave).argsort(kind="stable")].reset_index(drop=True)

    def _findings(self, where: pc.Expression) -> pd.DataFrame:
        names = [*("attempt", "analysis", "finding", "kind", "severity", "title", "holds_bytes")]
        where = where & (pc.field("part_of") == "") & (pc.field("analysis") != "report")
        frame: pd.DataFrame = self._rows("findings", names, where).to_pandas()
        return frame[~frame["kind"].str.contains(_NO_CAUSE)]

    def amounts(self, records: Sequence[str]) -> pd.DataFrame:
        """Return the amounts of memory in the summaries of some records.

        :return: ``record``, ``analysis``, ``metric`` (categories), ``ram_bytes``, ``value``
        """
        return self._amounts[self._amounts["record"].isin(records)].reset_index(drop=True)

    @cached_property
    def _amounts(self) -> pd.DataFrame:
        """Those of all records; ``figures`` has a file for each host and day."""
        where = (pc.field("part") == "summary") & (pc.field("unit") == "bytes")
        names = ["record", "analysis", "metric", "ram_bytes", "value"]
        table = self._rows(FIGURES, names, where)
        frame: pd.DataFrame = table.to_pandas(strings_to_categorical=True)
        is_measured = ~frame["metric"].str.startswith(_SUPPOSED)
        return frame[frame["value"].notna() & is_measured]

    def patches(self, attempts: Sequence[str]) -> pd.DataFrame:
        """Return the fixes that the kernels of some reports lack."""
        where = (
            (pc.field("state") == "absent")
            & (pc.field("kind") == "fix")
            & pc.field("attempt").isin(pa.array(attempts, pa.string()))
        )
        names = ["attempt", "release", "patch", "cost_bytes", "cost_seconds"]
        frame: pd.DataFrame = self._rows("patches", names, where).to_pandas()
        return frame

    def stalled(self) -> pd.DataFrame:
        """Return the tasks that missing patches stall: ``attempt``, ``patch``, ``tasks``."""
        names = ["attempt", "feature", "tasks"]
        table = self._rows("features", names, pc.field("kind") == PATCH)
        frame: pd.DataFrame = table.to_pandas()
        return frame.rename(columns={"feature": "patch"})


def opening(target: str, debug_info: str) -> str:
    """Return the command that opens a dump; empty if a name in it cannot be pasted.

    :param debug_info: column of ``targets``: paths of debug info, separated by colons
    """
    words = ["kcensus", "report", target]
    for path in filter(None, debug_info.split(os.pathsep)):
        words += ["--debuginfod"] if path == DEBUGINFOD else ["-s", path]
    pasted = [pasteable(each) for each in words]
    return " ".join(pasted) if all(pasted) else ""
