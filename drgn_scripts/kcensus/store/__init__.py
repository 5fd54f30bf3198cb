# SPDX-License-Identifier: LGPL-2.1-or-later
"""Series of results: a directory of Parquet files that ``kcensus record`` appends to.

:mod:`kcensus.store.layout` describes directories, files and columns,
:mod:`kcensus.store.records` makes a record of a report, :mod:`kcensus.store.dataset` adds records
and reads them, and :mod:`kcensus.store.compaction` merges files.

:mod:`kcensus.store.statistics` fits the trend of one series, :mod:`kcensus.store.trends` those of
all series of a history, :mod:`kcensus.store.limits` says what they run into, and
:mod:`kcensus.store.growth` makes a result of them.
"""

from __future__ import annotations

from importlib.util import find_spec


class StoreError(Exception):
    """A store cannot be used; the message is one sentence for the user."""


def require_arrow() -> None:
    """Check that the library that stores need is installed.

    :raises StoreError: it is not
    """
    if find_spec("pyarrow") is None:
        raise StoreError("a store needs pyarrow: install kcensus[store]")


def require_scipy() -> None:
    """Check that the library that trends need is installed.

    :raises StoreError: it is not
    """
    if find_spec("scipy") is None:
        raise StoreError("trends need scipy: install kcensus[store]")
