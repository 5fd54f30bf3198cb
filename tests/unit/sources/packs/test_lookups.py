# SPDX-License-Identifier: LGPL-2.1-or-later
"""The list of the names that kcensus looks up."""

from __future__ import annotations

from kcensus.sources.debuginfo.lookups import Lookups, lookups
from tests.lookups import in_source


def test_names_in_the_source_are_in_the_list() -> None:
    """``python -m tests.lookups`` adds what is missing."""
    assert lookups().missing(in_source()) == []


def test_what_is_missing_is_named() -> None:
    known = Lookups({"struct page": {"flags"}}, variables={"init_task"}, symbols={"_stext"})
    asked = Lookups(
        {"struct page": {"lru"}, "struct folio": set()}, objects={"init_task"}, symbols={"_end"}
    )
    assert known.missing(asked) == ["struct folio", "struct page.lru", "symbols: _end"]
    known.add(asked)
    assert known.missing(asked) == []
    assert known.count() == 2 + 2 + 1 + 2
