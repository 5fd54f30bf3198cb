# SPDX-License-Identifier: LGPL-2.1-or-later
"""Addresses that users pass to the API."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from kcensus.engine.memory import Words

MADE_FLOATS = "pandas made floats of these numbers, and addresses do not fit into them"


def address_of(value: Any) -> int:
    """Return an address as a number.

    :raises ValueError: it is a float, which has 53 bits for the 64 of an address
    :raises TypeError: it is not a number
    """
    if isinstance(value, (float, np.floating)):
        raise ValueError(f"{MADE_FLOATS}; if a join did, use join(how='inner')")
    return operator.index(value)


def addresses_of(values: Iterable[Any]) -> Words:
    """Return addresses as an array.

    :raises ValueError: they are floats
    :raises TypeError: they are not numbers
    """
    if isinstance(values, (pd.Series, pd.Index, np.ndarray)):
        array = np.asarray(values)
        if array.dtype.kind in "ui":
            return array.astype(np.uint64, copy=False)
        values = array.tolist()
    # A list of uint64 and int becomes an array of floats, so NumPy does not choose the type.
    return np.fromiter(map(address_of, values), np.uint64)
