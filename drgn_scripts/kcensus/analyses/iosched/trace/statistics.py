# SPDX-License-Identifier: LGPL-2.1-or-later
"""Averages and percentiles of many durations in groups."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kcensus.trace.events import Integers

_PERCENTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99}
STATISTICS = ("count", "average", *_PERCENTILES, "longest", "total")


def by_group(group: Integers, nanoseconds: Integers) -> pd.DataFrame:
    """Return a row for each group: its number, count, and :data:`STATISTICS` in seconds.

    A percentile is the smallest duration that at least so many are not longer than.

    :param group: small numbers >= 0, shape (n,)
    :param nanoseconds: shape (n,); negative ones do not count
    """
    chosen = np.flatnonzero(nanoseconds >= 0)
    groups, values = group, nanoseconds
    if len(chosen) < len(nanoseconds):
        groups, values = group[chosen], nanoseconds[chosen]
    count = np.bincount(groups)
    present = np.flatnonzero(count)
    count = count[present]
    first = np.cumsum(count) - count
    bits = int(values.max(initial=0)).bit_length()
    if int(groups.max(initial=0)).bit_length() + bits < 64:
        words = groups.astype(np.int64) << bits
        words |= values
        words.sort()  # vectorised
        base = present << bits
    else:
        words = values[np.lexsort((values, groups))]
        base = np.zeros_like(present)
    # Sums of words overflow, and so does what is subtracted: the difference does not.
    total = np.add.reduceat(words, first) if len(first) else np.zeros(0, np.int64)
    total -= base * count
    frame = {"group": present, "count": count, "average": total / count / 1e9}
    for name, share in _PERCENTILES.items():
        # Rounded, as 0.99 * 100 is a little more than 99.
        place = np.ceil(np.round(share * count, 6)).astype(np.int64) - 1
        frame[name] = (words[first + place] - base) / 1e9
    frame["longest"] = (words[first + count - 1] - base) / 1e9
    frame["total"] = total / 1e9
    return pd.DataFrame(frame)
