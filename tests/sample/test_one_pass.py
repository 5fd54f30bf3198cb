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
from kcensus.kernel.slab.kmalloc_users import names_of_dentries
from kcensus.reports import examine
from kcensus.sources import open_target
from tests.running import on, recorded_analyses, runner


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


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["sample", "sample-io"])
def test_slab_after_dentries_finds_what_it_finds_alone(sample: str) -> None:
    """Names of dentries that a census has seen are not read again."""
    prog = open_target(sample).prog
    alone, context = runner("slab")(on(prog)), on(prog)
    runner("dentries")(context)
    assert names_of_dentries(context.kernel) is not None
    together = runner("slab")(context)
    assert (together.summary, together.gaps) == (alone.summary, alone.gaps)
    for name, table in together.tables.items():
        assert table.frame.equals(alone.tables[name].frame), name
