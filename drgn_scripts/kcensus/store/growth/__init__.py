# SPDX-License-Identifier: LGPL-2.1-or-later
"""The trends of a history as a :class:`~kcensus.results.Result`, urgent growth first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pandas as pd

from kcensus.human import human_seconds, listed
from kcensus.progress import Progress
from kcensus.results import Figure, Gap, Result, Unit
from kcensus.results.tables import ALWAYS, TableSpec, make_tables
from kcensus.store.ceilings import TOGETHER, USED
from kcensus.store.growth.findings import findings
from kcensus.store.growth.tables import BOOTS, FIRST_TABLES, TABLES, Shown
from kcensus.store.growth.words import BLOCKS, LETTERS, clock, course
from kcensus.store.layout import UNNAMED
from kcensus.store.statistics import MIN_POINTS
from kcensus.store.trends import State, Trends, trends
from kcensus.text import printable

__all__ = ("BLOCKS", "FIRST_TABLES", "LETTERS", "TABLES", "course", "growth")
_MAX_STALE = 3


def growth(
    history: pd.DataFrame,
    name: str,
    *,
    context: pd.DataFrame | None = None,
    now: float | None = None,
    levels: str = BLOCKS,
    provenance: str = "",
    left_out: Mapping[str, pd.Timestamp] = MappingProxyType({}),
    damaged: Mapping[str, str] = MappingProxyType({}),
    progress: Progress | None = None,
) -> Result:
    """Return the growth in a history, its rates, and the times to its limits.

    :param history: a result of ``kcensus.history()``; every series in it gets a trend
    :param name: of the store
    :param context: rows without a trend that determine the severity of other series' growth
    :param now: seconds since 1970, from which on times count, and records are recent. None for a
        history of hosts that no longer run: times then count from the last records
    :param levels: characters of courses, the lowest one first
    :param provenance: how the records were made, if that is unusual
    :param left_out: hosts without a record since the wanted time, and their last records
    :param damaged: files of the store that cannot be read, and the reasons
    :raises KeyError: a column is missing
    """
    found = trends(history, progress, context=context, now=now)
    releases = ", ".join(dict.fromkeys(found.boots["release"]))
    result = Result("trend", name, releases, measures=False, provenance=provenance)
    hosts = found.boots["host"].unique()
    seconds = [each.times[-1] - each.times[0] for each in found.all]
    counts = {state: len(found.of(state)) for state in State}
    ended = sum(not each.is_current for each in found.of(State.GROWING))
    result.summary = {
        "growing": Figure(counts[State.GROWING] - ended, label="series that grow"),
        "grew": Figure(ended, label="series that grew and then ended"),
        "shrinking": Figure(counts[State.SHRINKING], label="series that shrink"),
        "no_trend": Figure(counts[State.STEADY], label="series without a trend"),
        "too_few_points": Figure(
            counts[State.SHORT], label=f"series with fewer than {MIN_POINTS} points"
        ),
        "hosts": Figure(len(hosts), label="hosts"),
        "boots": Figure(len(found.boots), label="boots"),
        "records": Figure(int(found.boots["records"].sum()), label="records"),
        "span_seconds": Figure(max(seconds, default=0.0), Unit.SECONDS, "longest series"),
    }
    specs: Sequence[TableSpec] = TABLES
    if len(hosts) > 1:
        specs = [_of_hosts(spec) for spec in TABLES]
    result.tables = make_tables(specs, Shown(found, levels))
    result.findings = [*findings(found)]
    if counts[State.GROWING] == ended and not result.findings:
        result.nothing = _nothing(counts, len(hosts), max(seconds, default=0.0))
    result.gaps = [*_damaged(damaged), *_gaps(found, hosts, left_out)]
    result.counted = _counted(found)
    return result


def _of_hosts(spec: TableSpec) -> TableSpec:
    """Return a table of trends of several hosts, with the host first."""
    if "host" not in spec.columns or spec is BOOTS:
        return spec
    host = {"host": replace(spec.columns["host"], show=ALWAYS)}
    return replace(spec, columns=host | dict(spec.columns) | host)


def _counted(found: Trends) -> str:
    """Return the time from which on the time to limits counts."""
    if found.now is None:
        last = found.boots["last"].max()
        return f"counted from the last record, {last:%Y-%m-%d %H:%M} UTC" if pd.notna(last) else ""
    return f"counted from now, {clock(found.now)}"


def _damaged(files: Mapping[str, str]) -> Iterator[Gap]:
    if files:
        named = listed([f"{name}: {why}" for name, why in files.items()], _MAX_STALE, "; ")
        effect = "the records in them are missing; restore the files from a backup"
        yield Gap("files", f"cannot be read: {named}", len(files), effect)


def _gaps(
    found: Trends, hosts: Iterable[str], left_out: Mapping[str, pd.Timestamp]
) -> Iterator[Gap]:
    if left_out:
        why = f"no record since the wanted time: {_last_records(left_out)}"
        yield Gap("hosts", why, len(left_out), "nothing is known of their growth")
    if over := sum(each.is_over and each.slope is not None for each in found.all):
        why = f"the running boot has fewer than {MIN_POINTS} points"
        yield Gap("series", why, over, "trends of these series come from an earlier boot")
    if stale := {host: time for host, time in found.stale.items() if host not in found.silent}:
        why = f"no recent record, only dumps: {_last_records(stale)}"
        effect = "times count from their last records; findings are at most a notice"
        yield Gap("hosts", why, len(stale), effect)
    if unknown := [host for host in hosts if _lacks_memory(found, host)]:
        why = f"no record has the memory in use: {printable(listed(unknown, _MAX_STALE))}"
        effect = "forecasts are of the memory of analyses alone, as if nothing else used RAM"
        yield Gap("hosts", why, len(unknown), effect)
    for names, why, effect in (
        (found.ahead, "records with a time in the future",
         "the boot of these records counts as the oldest"),
        ([each for each in hosts if each in UNNAMED], "not the name of one host",
         "records of several machines may be mixed; kcensus record --host NAME tells them apart"),
    ):  # fmt: skip
        if names:
            yield Gap("hosts", f"{why}: {printable(', '.join(names))}", len(names), effect)


def _lacks_memory(found: Trends, host: str) -> bool:
    """Return whether the records of a host have several analyses, and no use of all of RAM."""
    return found.whole(host, *USED) is None and found.whole(host, *TOGETHER) is not None


def _last_records(hosts: Mapping[str, pd.Timestamp]) -> str:
    ordered = sorted(hosts.items(), key=lambda each: each[1], reverse=True)
    last = [f"{printable(host)} (last {time:%Y-%m-%d %H:%M} UTC)" for host, time in ordered]
    return listed(last, _MAX_STALE)


def _nothing(counts: dict[State, int], hosts: int, seconds: float) -> str:
    total, where = sum(counts.values()), f"{hosts:,} host{'s' * (hosts != 1)}"
    if not total:
        return "No series: the store has no record of these hosts, metrics and times."
    if counts[State.SHORT] == total:
        return f"Too few records: a trend needs {MIN_POINTS} of one boot ({total:,} series)."
    if ended := counts[State.GROWING]:
        return (
            f"Nothing grows now: {ended:,} series of {where} grew before, in a boot that is over."
        )
    return f"Nothing grows: {total:,} series of {where} over {human_seconds(seconds)}."
