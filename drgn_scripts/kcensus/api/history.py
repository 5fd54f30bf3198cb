# SPDX-License-Identifier: LGPL-2.1-or-later
"""The records of a store as a DataFrame."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from kcensus.api.answers import Result
from kcensus.api.frames import Frame
from kcensus.store import require_store

_SORTED_BY = ["host", "time", "analysis", "part", "subject", "metric"]
_NULLABLE = {"ram_bytes": "Int64", "exact": "Int64"}


def history(
    store: str | os.PathLike[str],
    *,
    host: str | Iterable[str] | None = None,
    analysis: str | Iterable[str] | None = None,
    part: str | Iterable[str] | None = None,
    metric: str | Iterable[str] | None = None,
    subject: str | Iterable[str] | None = None,
    since: str | datetime.datetime | None = None,
    until: str | datetime.datetime | None = None,
) -> pd.DataFrame:
    """Return the records of ``kcensus record``, one number of one record per row.

    Each filter takes one value or several; any where None. Filters are applied while files are
    read, so a metric of a large store takes little time and memory.

    >>> import kcensus
    >>> kcensus.history("/nowhere")
    Traceback (most recent call last):
    kcensus.store.StoreError: '/nowhere' is not a store: `kcensus record TARGET --store ...

    :param store: the directory given to ``--store``, or ``sample-series``, which comes with kcensus
    :param host: names of hosts
    :param analysis: names of analyses
    :param part: ``summary``, ``findings``, ``quality``, or names of tables
    :param metric: keys of the summary, or columns of the table
    :param subject: rows of the table, such as slab caches; empty in a summary
    :param since: time of the first record; UTC without a time zone
    :param until: time of the last record; UTC without a time zone
    :return: sorted by host and time; ``attrs`` has ``store``, ``provenance`` (how it was recorded,
        if that is unusual), ``records``, ``hosts``, and by column ``help``
    :raises StoreError: it is not a store, or it is damaged
    """
    require_store()
    from kcensus.store import dataset, layout

    path = Path(store)
    rows = dataset.read(
        path,
        since=_time(since),
        until=_time(until),
        host=_several(host),
        analysis=_several(analysis),
        part=_several(part),
        metric=_several(metric),
        subject=_several(subject),
    )
    exact = {name: rows[name].to_pandas(types_mapper=_integers) for name in _NULLABLE}
    frame = Frame(rows.drop_columns([*_NULLABLE]).to_pandas())
    for name, values in exact.items():
        frame[name] = values
    frame = frame[[*layout.COLUMNS]].sort_values(_SORTED_BY, ignore_index=True)
    frame.attrs = {
        "store": str(path),
        "provenance": dataset.provenance(path),
        "records": int(frame["record"].nunique()),
        "hosts": sorted(frame["host"].unique()),
        "help": {name: help_ for name, (_, help_) in layout.COLUMNS.items()},
    }
    return frame


def trend(
    source: str | os.PathLike[str] | pd.DataFrame,
    *,
    host: str | Iterable[str] | None = None,
    metric: str | Iterable[str] | None = None,
    since: str | datetime.datetime | None = None,
) -> Result:
    """Return the growth in a store, its rates, and the times to its limits.

    The table ``growths`` has what grows, with the days of its limit; ``memory`` has RAM by use,
    where records have it; ``forecasts`` and
    ``forecast_points`` what :func:`kcensus.plots.forecast` draws. ``growing`` has the most urgent
    series first; ``shrinking`` and ``steady`` have the
    others. Rates have a 95 % interval.

    >>> import kcensus
    >>> result = kcensus.trend("sample-series", metric="memcgs.memcgs_offline")
    >>> result.tables["growing"][["rate", "interval"]].iloc[0].to_list()
    ['311/d', '160 to 408']

    :param source: a store, or rows of :func:`kcensus.history`: amounts among them get a trend, or
        all series if none is an amount
    :param host: names of hosts; ``metric``: ``KEY``, ``ANALYSIS.KEY`` or ``ANALYSIS.TABLE.COLUMN``;
        ``since``: time of the first record; these are for a store only
    :raises StoreError: it is not a store, or has no such host or metric
    :raises KeyError: a column of :func:`kcensus.history` is missing
    """
    require_store("scipy")
    from kcensus.store.dataset import provenance
    from kcensus.store.growth import FIRST_TABLES, growth
    from kcensus.store.selection import left_out, present, select
    from kcensus.store.trends import amounts, context_of

    if isinstance(source, pd.DataFrame):
        rows = amounts(source)
        name = str(source.attrs.get("store", "a history"))
        made = growth(
            source if rows.empty else rows, name, context=context_of(source),
            provenance=str(source.attrs.get("provenance", "")),
        )  # fmt: skip
        return Result(made, FIRST_TABLES)
    metrics, hosts = (_several(each) or () for each in (metric, host))
    store = Path(source)
    damaged: dict[str, str] = {}
    rows, context = select(store, metrics=metrics, hosts=hosts, since=_time(since), damaged=damaged)
    result = growth(
        rows, str(source), context=context, now=present(store), provenance=provenance(store),
        left_out=left_out(store, _time(since), hosts), damaged=damaged,
    )  # fmt: skip
    return Result(result, () if metrics else FIRST_TABLES)


def _integers(kind: object) -> object:
    return pd.Int64Dtype() if str(kind) == "int64" else None


def _several(values: str | Iterable[str] | None) -> list[str] | None:
    return [values] if isinstance(values, str) else None if values is None else [*values]


def _time(value: str | datetime.datetime | None) -> datetime.datetime | None:
    if value is None:
        return None
    time = pd.Timestamp(value)
    time = time.tz_localize("UTC") if time.tzinfo is None else time.tz_convert("UTC")
    return time.to_pydatetime()
