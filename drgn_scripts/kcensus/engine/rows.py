# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rows of values: in a column of addresses, in arrays, among distinct values."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.engine.memory import Mask, Numbers, Words

_ENTRY_BYTES = 48
"""A key and an index of 64 bits per bucket, at least 38 % of them in use, and an entry in the list
of distinct values."""


def rows_of(column: Words, addresses: Words, order: Numbers | None = None) -> Numbers:
    """Return the row of each address, or -1.

    :param column: addresses, each once, ascending unless ``order``, its argsort, is given
    """
    if not len(column):
        return np.full(len(addresses), -1)
    place = np.searchsorted(column, addresses, sorter=order)
    place[place == len(column)] = 0
    rows = place if order is None else order[place]
    return np.where(column[rows] == addresses, rows, -1)


class Addressed:
    """Structs as columns: a row for each address."""

    address: Words

    def __len__(self) -> int:
        return len(self.address)

    @cached_property
    def _order(self) -> Numbers:
        return np.argsort(self.address, kind="stable")

    def rows(self, addresses: Words) -> Numbers:
        """Return the row of each pointer to such a struct, or -1."""
        return rows_of(self.address, addresses, self._order)


def spread(counts: npt.NDArray[np.integer[Any]]) -> tuple[Numbers, Numbers]:
    """Return the row and the index of each element of arrays, given their lengths."""
    lengths = counts.astype(np.int64)
    row = np.repeat(np.arange(len(lengths)), lengths)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def within(counts: Numbers, most: int) -> npt.NDArray[np.bool_]:
    """Return the smallest counts with a sum of at most ``most``; damage makes some huge."""
    taken = np.zeros(len(counts), np.bool_)
    order = np.argsort(counts, kind="stable")
    taken[order] = np.cumsum(counts[order]) <= most
    return taken


def factorized(
    values: npt.NDArray[Any], distinct: int | None = None
) -> tuple[Numbers, npt.NDArray[Any]]:
    """Return the index of each 64-bit value among the distinct values, and the distinct values.

    Distinct values are in the order of their first mention.

    :param distinct: most distinct values
    :raises MemoryError: there is not enough memory
    """
    most = len(values) if distinct is None else min(distinct, len(values))
    # Without memory for its hash table, pandas.factorize() ends the process with SIGSEGV (3.1.1).
    np.empty(_ENTRY_BYTES * most, np.uint8)
    code, unique = pd.factorize(values)
    return code, np.asarray(unique)


def coded(values: npt.NDArray[Any]) -> tuple[Numbers, npt.NDArray[Any]]:
    """Return codes of values as :func:`factorized`, fast where equal values come in runs.

    Only a few values of memory that was just read: no bound of memory is checked.
    """
    if (values == values.flat[0]).all():
        return np.zeros(values.size, np.int64), values.flat[:1]
    values = values.ravel()
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    if len(changes) * 4 > len(values):
        return pd.factorize(values)
    starts = np.concatenate([[0], changes])
    code, keys = pd.factorize(values[starts])
    if len(keys) == 1:
        return np.zeros(len(values), np.int64), keys
    return np.repeat(code, np.diff(starts, append=len(values))), keys


def covered(begin: Numbers, size: Numbers, length: int) -> Mask:
    """Return which of ``length`` positions lie in ranges, with few overlaps."""
    marks = np.zeros(length + 1, np.int8)
    np.add.at(marks, np.clip(begin, 0, length), 1)
    np.add.at(marks, np.clip(begin + size, 0, length), -1)
    return np.cumsum(marks[:-1], dtype=np.int8) > 0
