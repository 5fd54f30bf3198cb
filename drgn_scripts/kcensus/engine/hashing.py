# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hash tables of pandas, where memory may be short."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

_ENTRY_BYTES = 48
"""Of a hash table with values of 64 bits: a key and an index for each bucket, of which 38 % or more
are in use, and the list of what is distinct."""


def factorized(
    values: npt.NDArray[Any], distinct: int | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return for each value its index among the distinct ones, and these by first mention.

    Where :func:`pandas.factorize` gets no memory for its hash table, the process ends with SIGSEGV
    (pandas 3.1.1). So as much is asked for before.

    :param values: of 64 bits, shape (values,)
    :param distinct: how many different ones there are at most
    :raises MemoryError: there is not enough memory
    """
    most = len(values) if distinct is None else min(distinct, len(values))
    np.empty(_ENTRY_BYTES * most, np.uint8)
    code, unique = pd.factorize(values)
    return code, np.asarray(unique)
