# SPDX-License-Identifier: LGPL-2.1-or-later
"""The largest rows of a table, by names that are the same in every dump of a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd

from kcensus.results.tables import Table, TableSpec
from kcensus.text import printable

Name = TypeVar("Name")


@dataclass(frozen=True)
class Largest(Generic[Name]):
    """Rows of a table: their names and amounts, the largest first."""

    metrics: tuple[str, ...] = ()
    rows: tuple[tuple[Name, tuple[Any, ...]], ...] = ()
    """Names, and the value of each metric; NaN if unknown."""
    left_out: int = 0
    """The number of other names."""


def largest(
    spec: TableSpec, table: Table, limit: int, name: Callable[[tuple[str, ...]], Name]
) -> Largest[Name]:
    """Return the amounts of the largest rows of a table, added up by name.

    :param limit: most rows
    :param name: makes a hashable name of the printable values of :attr:`TableSpec.key`, not
        necessarily a unique one
    """
    metrics = tuple(metric for metric in spec.series if metric in table.columns)
    if not metrics or not len(table.frame) or not {*spec.key} <= {*table.columns}:
        return Largest()  # written by another version
    amounts = {metric: pd.to_numeric(table.frame[metric], errors="coerce") for metric in metrics}
    # Codes instead of names, since pandas refuses to group by text with lone surrogates.
    codes = {key: pd.factorize(table.frame[key].to_numpy(object))[0] for key in spec.key}
    groups = pd.DataFrame(codes).groupby([*spec.key], sort=False).ngroup().to_numpy()
    sums = pd.DataFrame(amounts).groupby(groups).sum(min_count=1)
    first = sums.sort_values(metrics[0], ascending=False, kind="stable").head(limit)
    _, places = np.unique(groups, return_index=True)
    keys = table.frame[[*spec.key]].iloc[places[first.index]]
    numbers: dict[Name, int] = {}
    same = [
        numbers.setdefault(name(tuple(printable(str(part)) for part in key)), len(numbers))
        for key in keys.itertuples(index=False, name=None)
    ]
    added = first.groupby(np.array(same)).sum(min_count=1)
    rows = zip(numbers, zip(*(added[metric] for metric in metrics), strict=True), strict=True)
    return Largest(metrics, tuple(rows), len(sums) - len(first))
