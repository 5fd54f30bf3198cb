# SPDX-License-Identifier: LGPL-2.1-or-later
"""A report reads the ``struct page`` array once, whatever the number of its analyses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kcensus.analyses.runner import Context
from kcensus.engine.memory import Faults, Memory
from kcensus.engine.slub.pages import PageChunk, PageMap
from kcensus.engine.slub.slabs import SlabMap
from kcensus.reports import examine
from kcensus.sources import open_target
from tests.running import recorded_analyses


@pytest.mark.slow
def test_a_report_makes_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Counter[str] = Counter()
    read: Counter[int] = Counter()
    pages = PageMap.read

    def counted(self: PageMap, start_pfn: int, count: int, faults: Faults) -> PageChunk:
        read.update(range(start_pfn, start_pfn + count))
        return pages(self, start_pfn, count, faults)

    for kind in (Memory, SlabMap):
        original = kind.__init__

        def note(self: Any, *args: Any, _init: Any = original, **kw: Any) -> None:
            made[type(self).__name__] += 1
            _init(self, *args, **kw)

        monkeypatch.setattr(kind, "__init__", note)
    monkeypatch.setattr(PageMap, "read", counted)
    context = Context.of(open_target("sample"), jobs=1)
    report = examine(context)
    assert {each.name for each in report.sections if each.result} >= {*recorded_analyses()}
    assert made == {"Memory": 1, "SlabMap": 1}
    assert set(read.values()) == {1}
    assert len(read) == context.kernel.slab_map.pages.pages > 100_000
