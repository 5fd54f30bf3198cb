# SPDX-License-Identifier: LGPL-2.1-or-later
"""Addresses that users pass to the API."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, TypeAlias

import drgn
import numpy as np
import pandas as pd

from kcensus.engine.memory import Words

Place: TypeAlias = drgn.Object | int
"""An object of a :class:`drgn.Program`, a pointer to one, or an address."""

MADE_FLOATS = "pandas made floats of these numbers, and addresses do not fit into them"
_STRUCTURES = (drgn.TypeKind.STRUCT, drgn.TypeKind.UNION, drgn.TypeKind.CLASS)


def address_of(place: Any) -> int:
    """Return the address that an object has, that a pointer points to, or that a number is.

    :raises ValueError: the object is a value without an address, or the number is a float, which
        has 53 bits for the 64 of an address
    :raises TypeError: it is none of these
    """
    if isinstance(place, (float, np.floating)):
        raise ValueError(f"{MADE_FLOATS}; if a join did, use join(how='inner')")
    if not isinstance(place, drgn.Object):
        return operator.index(place)
    is_structure = place.type_.unaliased_kind() in _STRUCTURES
    if is_structure and place.address_ is None:
        raise ValueError("the object is a value without an address; pass the original or a pointer")
    return int(place.address_) if is_structure else int(place)


def addresses_of(places: Place | Iterable[Any]) -> Words:
    """Return the addresses of one or several places as an array.

    :raises ValueError: an object is a value, or the numbers are floats
    :raises TypeError: they are neither objects nor numbers
    """
    if isinstance(places, (drgn.Object, int, np.integer)):
        places = [places]
    elif isinstance(places, (pd.Series, pd.Index, np.ndarray)):
        array = np.asarray(places)
        if array.dtype.kind in "ui":
            return array.astype(np.uint64, copy=False)
        places = array.tolist()
    # A list of uint64 and int becomes an array of floats, so NumPy does not choose the type.
    return np.fromiter(map(address_of, places), np.uint64)
