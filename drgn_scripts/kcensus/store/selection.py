# SPDX-License-Identifier: LGPL-2.1-or-later
"""The part of a store with the requested trends, read without the rest of it."""

from __future__ import annotations

import datetime
import difflib
import functools
import time
from collections.abc import Collection, Iterable
from pathlib import Path

import pandas as pd

from kcensus.human import listed
from kcensus.samples import DIRECTORY
from kcensus.store import StoreError, dataset
from kcensus.store.ceilings import TOGETHER
from kcensus.store.layout import bounded_host, located
from kcensus.store.together import INPUTS, LARGE
from kcensus.store.trends import CONTEXT, LIVE, NEEDED, amounts, context_of, with_together
from kcensus.text import printable

_MAX_NAMES = 10


def select(
    store: Path,
    *,
    metrics: Collection[str] = (),
    hosts: Collection[str] = (),
    since: datetime.datetime | None = None,
    damaged: dict[str, str] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of a store for trends, and the rows of their context.

    :param metrics: ``KEY``, ``ANALYSIS.KEY`` or ``ANALYSIS.TABLE.COLUMN``; all amounts if empty
    :param hosts: all if empty
    :param damaged: takes the names of unreadable files, which are left out, and the reasons
    :raises StoreError: it is not a store, or has no such metric or host
    """
    hosts = [bounded_host(printable(host)) for host in hosts]
    keys = {name.rpartition(".")[2] for name in metrics}
    is_together = TOGETHER[1] in keys
    keys |= {metric for _, metric in CONTEXT} if keys else set()
    keys |= INPUTS if is_together else set()
    read = functools.partial(
        _read, store, (*NEEDED, LIVE), host=hosts or None, since=since, damaged=damaged
    )
    every = read(metric=keys or None)
    if is_together and LARGE[2] not in keys:  # many rows have this metric
        analysis, part, metric = LARGE
        every = pd.concat([every, read(analysis=[analysis], part=[part], metric=[metric])])
    known = with_together(every) if is_together else every
    rows = _matching(known, metrics) if metrics else amounts(every)
    # A name missing since a time must have been there at some time.
    for kind, wanted in (("metric", metrics), ("host", hosts)):
        for name in wanted:
            if _matching(rows, [name]).empty if kind == "metric" else name not in {*rows["host"]}:
                _refuse_unknown(store, kind, name)
    return rows, context_of(every)


def present(store: Path) -> float | None:
    """Return the present time of a store's hosts; None if its clock was simulated."""
    is_bundled = DIRECTORY in located(store).parents
    return None if is_bundled or dataset.provenance(store) else time.time()


def left_out(
    store: Path, since: datetime.datetime | None, hosts: Collection[str] = ()
) -> dict[str, pd.Timestamp]:
    """Return the hosts without a record since a time, and the times of their last records.

    :param hosts: all if empty
    """
    if since is None:
        return {}
    wanted = [bounded_host(printable(host)) for host in hosts] or None
    # One row of each record: every analysis has one.
    rows = _read(
        store, ("host", "time"), host=wanted, metric=["failed"], part=["quality"], damaged={}
    )
    last = rows.groupby("host")["time"].max()
    return {str(host): time for host, time in last.items() if time < since}


def _read(store: Path, columns: Iterable[str], **conditions: object) -> pd.DataFrame:
    table = dataset.read(store, columns=[*columns], **conditions)  # type: ignore[arg-type]
    frame: pd.DataFrame = table.to_pandas(split_blocks=True)
    return frame


def _matching(rows: pd.DataFrame, metrics: Iterable[str]) -> pd.DataFrame:
    wanted = {tuple(name.split(".")) for name in metrics}
    kinds = pd.MultiIndex.from_frame(rows[["analysis", "part", "metric"]])
    chosen = [
        (analysis, part, metric)
        for analysis, part, metric in kinds.unique()
        if wanted & {(metric,), (analysis, metric), (analysis, part, metric)}
    ]
    return rows[kinds.isin(chosen)]


def _refuse_unknown(store: Path, kind: str, name: str) -> None:
    columns = ["analysis", "metric"] if kind == "metric" else ["host"]
    known = _read(store, columns, damaged={}).drop_duplicates()
    names = [".".join(row) for row in known.itertuples(index=False, name=None)]
    keys = {each.rpartition(".")[2] for each in names} if kind == "metric" else set()
    parts = name.split(".")
    if name in names or name in keys or (len(parts) == 3 and f"{parts[0]}.{parts[2]}" in names):
        return
    # Names of hosts are alike, so that all are as near.
    near = difflib.get_close_matches(name, [*names, *keys], _MAX_NAMES) if keys else []
    choices = listed([*map(printable, near or sorted(names))], _MAX_NAMES)
    raise StoreError(
        f"the store '{printable(str(store))}' has no {kind} '{printable(name)}'"
        + (f" (it has {choices})" if names else ": it has no record")
    )
