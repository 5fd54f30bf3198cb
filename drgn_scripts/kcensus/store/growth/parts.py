# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which series count the same bytes or things."""

from __future__ import annotations

import fnmatch

from kcensus.store.trends import Trend

_NOT_PARTS = ("memcgs", "structures")
_SAME_PARTS = "active_*"
"""Columns of tables that count the same again, as a part of another one."""
_OVERLAPS = {"memory of memory cgroups": "slab memory"}
"""Growths with bytes of another growth: structures of memory cgroups are slab memory."""
"""Tables whose rows count the same again, by owner or by kind."""


def is_part(trend: Trend) -> bool:
    """Return whether a row of a table has bytes or things that no other row counts."""
    return trend.part not in _NOT_PARTS and not fnmatch.fnmatchcase(trend.metric, _SAME_PARTS)


def overlap_of(growth: str) -> str:
    """Return the name of the growth that has some of the same bytes; empty without one."""
    return _OVERLAPS.get(growth, "")
