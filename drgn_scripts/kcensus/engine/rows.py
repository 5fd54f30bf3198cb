# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rows of addresses in a column of addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Words


def rows_of(
    column: Words, addresses: Words, order: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.int64]:
    """Return the row of each address, or -1.

    :param column: addresses, each once, ascending unless ``order`` is given
    :param addresses: in any order, repeated or not
    :param order: ``np.argsort(column)``
    """
    if not len(column):
        return np.full(len(addresses), -1)
    place = np.searchsorted(column, addresses, sorter=order)
    place[place == len(column)] = 0
    rows = place if order is None else order[place]
    return np.where(column[rows] == addresses, rows, -1)


def spread(
    counts: npt.NDArray[np.integer[Any]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the row of each element of some arrays one after the other, and its index in its own.

    :param counts: lengths of the arrays
    """
    lengths = counts.astype(np.int64)
    row = np.repeat(np.arange(len(lengths)), lengths)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def within(counts: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.bool_]:
    """Return which counts to take so that they add up to ``most`` or less: the smallest ones.

    A few counts that damage made huge do not cost the others.
    """
    taken = np.zeros(len(counts), np.bool_)
    order = np.argsort(counts, kind="stable")
    taken[order] = np.cumsum(counts[order]) <= most
    return taken
