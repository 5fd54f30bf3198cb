# SPDX-License-Identifier: LGPL-2.1-or-later
"""Series of results: a directory of Parquet files that ``kcensus record`` appends to.

:mod:`kcensus.store.layout` describes directories, files and columns,
:mod:`kcensus.store.records` makes a record of a report, :mod:`kcensus.store.dataset` adds records
and reads them, and :mod:`kcensus.store.compaction` merges files.
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
