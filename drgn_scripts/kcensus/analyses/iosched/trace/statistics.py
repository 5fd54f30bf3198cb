# SPDX-License-Identifier: LGPL-2.1-or-later
"""Averages and percentiles of many durations in groups."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kcensus.trace.events import Integers

_VALUE_BITS = 50
"""Enough for the nanoseconds of :data:`~kcensus.analyses.iosched.trace.figures.MAX_SECONDS`."""
_PERCENTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99}
STATISTICS = ("count", "average", *_PERCENTILES, "longest", "total")


def by_group(group: Integers, nanoseconds: Integers) -> pd.DataFrame:
    """Return a row for each group: its number, count, and :data:`STATISTICS` in seconds.

    A percentile is the smallest duration that at least so many are not longer than.

    :param group: numbers >= 0, shape (n,)
    :param nanoseconds: shape (n,); negative ones do not count
    """
    chosen = nanoseconds >= 0
    groups, values = group[chosen].astype(np.int64), nanoseconds[chosen]
    if int(groups.max(initial=0)) < 1 << (63 - _VALUE_BITS):
        words = (groups << _VALUE_BITS) | values
        words.sort()  # in place, and vectorised
        groups, values = words >> _VALUE_BITS, words & ((1 << _VALUE_BITS) - 1)
    else:
        order = np.lexsort((values, groups))
        groups, values = groups[order], values[order]
    first = np.flatnonzero(np.diff(groups, prepend=-1))
    count = np.diff(np.append(first, len(groups)))
    total = np.add.reduceat(values, first) if len(first) else np.zeros(0, np.int64)
    frame = {"group": groups[first], "count": count, "average": total / count / 1e9}
    for name, share in _PERCENTILES.items():
        # Rounded, as 0.99 * 100 is a little more than 99.
        place = np.ceil(np.round(share * count, 6)).astype(np.int64) - 1
        frame[name] = values[first + place] / 1e9
    frame["longest"] = values[first + count - 1] / 1e9
    frame["total"] = total / 1e9
    return pd.DataFrame(frame)
