# SPDX-License-Identifier: LGPL-2.1-or-later
"""Clusters in the words of people: a sentence, how often, where, since when, and what to open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from kcensus import explain
from kcensus.explain import Explanation
from kcensus.fleets.clusters import Cluster, Key
from kcensus.fleets.report.data import Fleet
from kcensus.human import counted, listed
from kcensus.results import Severity

_MAX_NAMED = 3
TIME = "%Y-%m-%d %H:%M"
"""Form of times, in UTC."""


@dataclass(frozen=True)
class Cause:
    """A cluster, as people see it."""

    fleet: Fleet
    cluster: Cluster
    findings: pd.DataFrame
    """Those of the representative, in the order of its report."""

    besides: str = ""
    """What it has beyond another cause with the same title."""

    @property
    def id(self) -> str:
        return self.cluster.id

    @cached_property
    def members(self) -> pd.DataFrame:
        """The rows of its targets, the latest first."""
        rows = self.fleet.reports.iloc[self.cluster.targets]
        return rows.sort_values("time", ascending=False, kind="stable")

    @property
    def dumps(self) -> int:
        return len(self.cluster.targets)

    @cached_property
    def hosts(self) -> int:
        return int(self.members["machine"].nunique())

    @cached_property
    def severities(self) -> Mapping[Severity, int]:
        """Number of dumps by severity, the gravest first."""
        count = np.bincount(self.fleet.severity.iloc[self.cluster.targets], minlength=4)
        least = int(Severity.WARNING if self.leading is None else Severity.NOTICE)
        count[least] += count[:least].sum()  # without a finding: stacks of blocked tasks
        return {
            each: int(count[each]) for each in reversed(Severity) if each >= least and count[each]
        }

    @property
    def severity(self) -> Severity:
        return next(iter(self.severities))

    @property
    def severity_name(self) -> str:
        return self.severity.name.lower()

    @cached_property
    def leading(self) -> pd.Series | None:
        """The first finding of the representative that most of the dumps have; None without one."""
        names = [name for kind, name in self.cluster.common if kind == "finding"]
        is_common = self.findings["finding"].isin(names) | self.findings["kind"].isin(names)
        found = self.findings[is_common] if is_common.any() else self.findings
        return found.iloc[0] if len(found) else None

    @cached_property
    def explanation(self) -> Explanation | None:
        """That of the finding that leads; None without one, or for a panic."""
        is_panic = any(kind == "panic" for kind, _ in self.cluster.common)
        if self.leading is None or is_panic:
            return None
        return explain.explanation(str(self.leading["kind"]))

    @cached_property
    def title(self) -> str:
        """One sentence that fits all its dumps."""
        title = self._title
        return f"{title} ({self.besides})" if self.besides else title

    @cached_property
    def _title(self) -> str:
        panics = [text for kind, text in self.cluster.common if kind == "panic"]
        if panics:
            panics.sort(key=lambda text: text.startswith("in "))  # the message, then its function
            words = [text for text in panics if not text.startswith("task ")]
            return f"Panic: {' '.join(words) or panics[0]}"
        if self.leading is None:
            return f"Blocked tasks in {listed([text for _, text in self.cluster.common], 1, '; ')}"
        _, _, subject = str(self.leading["finding"]).partition(":")
        is_named = any(self.leading["finding"] == name for _, name in self.cluster.common)
        title = self.explanation.title if self.explanation else str(self.leading["title"])
        return f"{title}: {subject}" if is_named and subject else title

    @property
    def example(self) -> str:
        """The finding of the representative; empty if the title has it."""
        return "" if self.leading is None else str(self.leading["title"])

    @property
    def features(self) -> str:
        return "; ".join(map(shown, self.cluster.common))

    @cached_property
    def _opened(self) -> pd.Series:
        return self.fleet.reports.iloc[self.cluster.representative]

    @property
    def representative(self) -> str:
        return str(self._opened["target"])

    @property
    def host(self) -> str:
        """The host of the representative."""
        return str(self._opened["machine"])

    @property
    def command(self) -> str:
        """The command that opens the representative; empty if there is none."""
        return str(self._opened["command"])

    @property
    def replaced(self) -> str:
        """``yes`` if the path of the representative has another dump now, or none."""
        return "" if self._opened["present"] else "yes"

    @property
    def opening(self) -> str:
        """What is to open where there is no command."""
        return f"{self.representative}{', which is not there any more' * bool(self.replaced)}"

    @property
    def first(self) -> str:
        return f"{self.members['time'].min():{TIME}}"

    @property
    def last(self) -> str:
        return f"{self.members['time'].max():{TIME}}"

    @property
    def kernels(self) -> str:
        return listed([*self.members["release"].value_counts().index], _MAX_NAMED)

    @property
    def named_hosts(self) -> str:
        return listed([*self.members["machine"].drop_duplicates()], _MAX_NAMED)

    def extent(self, hosts: int) -> str:
        """Return how often and since when, of a number of hosts."""
        of = f"{self.hosts:,} of {counted(hosts, 'host')}"
        graver = [f"{n:,} {each.name.lower()}" for each, n in self.severities.items()]
        kinds = f" ({', '.join(graver)})" if len(graver) > 1 else ""
        return f"{counted(self.dumps, 'dump')}{kinds} on {of}, {span(self.first, self.last)}"

    @property
    def where(self) -> str:
        """The hosts and kernels."""
        return f"{self.named_hosts}; Linux {self.kernels}"

    @property
    def shown_example(self) -> str:
        """The host of the representative, and its finding."""
        return f"On {self.host}: {self.example}" if self.example else f"On {self.host}"

    @property
    def outliers(self) -> int:
        return len(self.cluster.unlike)

    @property
    def differing(self) -> str:
        """How many are outliers, and :attr:`differs`; empty without one."""
        return f"{counted(self.outliers, 'dump', 'differ')}: {self.differs}" if self.differs else ""

    @cached_property
    def differs(self) -> str:
        """What its outliers have beyond the common features, and lack."""
        if not self.outliers:
            return ""
        more, lack = self.fleet.clusters.features.differing(self.cluster)
        parts = [("also", more), ("without", lack)]
        return "; ".join(f"{word} {_counts(keys)}" for word, keys in parts if keys)


def _counts(keys: Mapping[Key, int]) -> str:
    names = [f"{shown(key)} ({number:,})" for key, number in Counter(keys).most_common()]
    return listed(names, _MAX_NAMED)


def shown(key: Key) -> str:
    """Return a feature in words."""
    kind, text = key
    return text if kind in ("finding", "panic") else f"{kind} {text}"


def span(first: str, last: str) -> str:
    """Return two times in a sentence."""
    return first if first == last else f"{first} to {last}"


def causes(fleet: Fleet) -> list[Cause]:
    """Return the causes, the gravest first, then those on most hosts."""
    found = fleet.clusters.found
    attempts = fleet.reports["attempt"].astype(str)
    opened = [str(attempts.iat[each.representative]) for each in found]
    findings = fleet.findings(opened)
    of = dict([*findings.groupby("attempt")])
    made = [
        Cause(fleet, each, of.get(attempt, findings.iloc[:0]))
        for each, attempt in zip(found, opened, strict=True)
    ]
    return sorted(
        _told_apart(made), key=lambda each: (-each.severity, -each.hosts, -each.dumps, each.id)
    )


def _told_apart(causes: Sequence[Cause]) -> list[Cause]:
    """Add to titles that several causes have what the others lack."""
    alike: dict[str, list[Cause]] = {}
    for each in causes:
        alike.setdefault(each.title, []).append(each)
    made = []
    for same in alike.values():
        count = Counter(key for each in same for key in each.cluster.common)
        for each in same:
            own = [key for key in each.cluster.common if count[key] < len(same)]
            besides = min(own, key=count.__getitem__)[1] if own and len(same) > 1 else ""
            made.append(replace(each, besides=besides) if besides else each)
    return made


def unread(failures: pd.DataFrame, most: int, state: str) -> list[str]:
    """Return sentences about failed or incomplete targets, the most frequent reason first.

    :param failures: by reason
    :param most: reasons
    """
    most = most if len(failures) > most + 1 else most + 1
    table = "failures" if state == "failed" else state
    lines = []
    for row in failures.head(most).to_dict("records"):
        such = ", such as" if row["targets"] > 1 else ":"
        lines.append(f"{row['targets']:,} {row['step']}{such} {row['example']}: {row['error']}")
    if len(failures) > most:
        rest = int(failures["targets"].iloc[most:].sum())
        lines.append(f"{rest:,} for {len(failures) - most} other reasons (--table {table})")
    return lines
