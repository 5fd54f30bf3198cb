# SPDX-License-Identifier: LGPL-2.1-or-later
"""Series of results: a directory of Parquet files that ``kcensus record`` appends to.

:mod:`kcensus.store.layout` describes directories, files and columns,
:mod:`kcensus.store.records` makes a record of a report, :mod:`kcensus.store.dataset` adds records
and reads them, and :mod:`kcensus.store.compaction` merges files.
"""

from __future__ import annotations


class StoreError(Exception):
    """A store cannot be used; the message is one sentence for the user."""
