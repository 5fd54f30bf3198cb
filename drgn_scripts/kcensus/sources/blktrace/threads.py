# SPDX-License-Identifier: LGPL-2.1-or-later
"""Work in several threads: NumPy works outside of the interpreter's lock most of the time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_MAX_WORKERS = 8
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def workers(count: int) -> int:
    """Return the number of threads for a number of items."""
    return max(1, min(len(os.sched_getaffinity(0)), count, _MAX_WORKERS))


def side_by_side(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Return the results of a function for all items."""
    every = [*items]
    if len(every) < 2:
        return [work(item) for item in every]
    with ThreadPoolExecutor(workers(len(every))) as pool:
        return [*pool.map(work, every)]
