# SPDX-License-Identifier: LGPL-2.1-or-later
"""RAM, CPUs and nodes of synthetic kernels in which one of the counts is damaged."""

from __future__ import annotations

import pytest

from kcensus.analyses.runner import Context
from kcensus.kernel.size import machine_size
from kcensus.results import Answer
from tests.running import analysis_of
from tests.unit.capsules import target_of
from tests.unit.fakekernel import PAGE, FakeKernel

RAM = 3072 * PAGE


def test_what_agrees_is_not_mentioned() -> None:
    size = machine_size(FakeKernel().prog)
    assert (size.ram_bytes, size.cpus, size.contradictions) == (RAM, 2, [])


@pytest.mark.parametrize("pages", [0, 1, 3000, 1 << 40, -1])
def test_totalram_pages_is_held_against_the_zones(pages: int) -> None:
    k = FakeKernel()
    k.set(k.symbols["_totalram_pages"].counter, pages)
    size = machine_size(k.prog)
    assert size.ram_bytes == RAM
    assert [each.what for each in size.contradictions] == ["RAM"]


def test_damaged_zones_leave_totalram_pages() -> None:
    k = FakeKernel()
    k.set(k.symbols["node_data"][0].node_zones[0].managed_pages.counter, 1 << 60)
    size = machine_size(k.prog)
    assert size.ram_bytes == RAM
    assert [each.what for each in size.contradictions] == ["RAM"]


def test_possible_cpus_are_held_against_their_areas() -> None:
    k = FakeKernel()
    k.set(k.symbols["__cpu_possible_mask"].bits[0], 1)
    assert [each.what for each in machine_size(k.prog).contradictions] == ["CPUs"]
    k = FakeKernel()
    k.set(k.symbols["__cpu_online_mask"].bits[0], 0)
    size = machine_size(k.prog)
    assert size.cpus is None
    assert [each.what for each in size.contradictions] == ["CPUs"]


def test_a_contradiction_is_a_gap_of_every_result() -> None:
    k = FakeKernel()
    k.set(k.symbols["_totalram_pages"].counter, 1)
    analysis = analysis_of("calm", lambda kernel: Answer())
    (gap,) = Context.of(target_of(k)).run(analysis).gaps
    assert gap.what == "RAM"
