# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel with an allocator that cannot be read, such as SLAB before 3.18."""

from __future__ import annotations

import drgn
import pytest

from kcensus.analyses import AnalysisError, analyses
from kcensus.analyses.runner import Context
from kcensus.engine.slub.slabs import UnsupportedAllocator
from kcensus.sources import open_target
from tests.sample.guest import Guest
from tests.sample.rhel7.conftest import DATA


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Context:
    def refuse(_: drgn.Program) -> bool:
        raise UnsupportedAllocator("an allocator of old")

    monkeypatch.setattr("kcensus.engine.slub.slabs._is_slab", refuse)
    return Context.of(open_target(DATA / "cfq.capsule"))


def test_tasks_and_what_they_wait_for_are_known(context: Context, cfq: Guest) -> None:
    result = context.run(analyses()["waits"])
    assert result.summary["tasks_blocked"].value == len(cfq.truth["stacks"])
    # The objects of one slab cache.
    assert [(gap.what, gap.count) for gap in result.gaps] == [("kinds of waits", 1)]


def test_requests_of_single_queues_are_a_gap(context: Context) -> None:
    result = context.run(analyses()["iosched"])
    assert any("an allocator of old" in gap.reason for gap in result.gaps)
    assert result.summary["sleepers"].value


def test_the_others_say_why_they_cannot(context: Context) -> None:
    for name in ("slab", "dentries"):
        with pytest.raises(AnalysisError, match="an allocator of old"):
            context.run(analyses()[name])
