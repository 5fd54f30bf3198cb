# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every analysis over /proc/kcore, held against what the guest counts right before and after it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kcensus.analyses import analyses
from tests.lab.system import Running
from tests.lab.trials import slabinfo

pytestmark = [pytest.mark.usually("6.1"), pytest.mark.machines("6.12-arm64")]

PAGE = 4096
_DRIVER = Path(__file__).with_name("census.py")
_FROZEN = -1
_MINUTES = 15
"""For opening the kernel, and for each round, on a busy host."""
_SLAB_PAGES = {True: 16, False: 256}
"""By whether the load is frozen; a pass takes seconds."""
_DENTRIES = 64
_CACHES_AT_REST = 0.8
_SLABS_AT_REST = 2
_MAX_GROWTH = 1.15
_TASKS = 6
"""Tasks that start or end during a pass under load: the load has four, kworkers come and go."""
_CHUNK_SECTORS = 8
"""Of the load's snapshot."""


@dataclass(frozen=True)
class Pass:
    """One analysis, once, and the counters around it."""

    line: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.line["analysis"])

    def figure(self, key: str) -> Any:
        return self.line["summary"][key]

    def checked(self, name: str) -> int:
        """Return what a check of the analysis holds against a counter."""
        ((_, ours, _),) = [check for check in self.line["checks"] if check[0] == name]
        return int(ours)

    def counters(self, name: str) -> tuple[str, str]:
        return self.line["before"][name], self.line["after"][name]

    def range(self, name: str, pattern: str) -> tuple[int, int]:
        """Return the lower and the higher of the two readings of a counter."""
        both = [sum(map(int, re.findall(pattern, text, re.M))) for text in self.counters(name)]
        return min(both), max(both)


@pytest.fixture(scope="package")
def rounds(request: pytest.FixtureRequest) -> int:
    asked = request.config.getoption("--repetitions")
    return int(request.config.getoption("--all") if asked is None else asked)


@pytest.fixture(scope="package")
def passes(guest: Running, rounds: int) -> list[Pass]:
    guest.put(_DRIVER, "/run/census.py")
    command = f"load freeze && /opt/kcensus/bin/python /run/census.py {rounds}"
    printed = guest.run(command, timeout=60 * _MINUTES * (2 + rounds)).check()
    _opened, *lines = map(json.loads, printed.splitlines())
    return [Pass(line) for line in lines]


@pytest.fixture(scope="package")
def frozen(passes: list[Pass]) -> dict[str, Pass]:
    """By analysis: with all load frozen, only kcensus itself moves the counters."""
    return {each.name: each for each in passes if each.line["round"] == _FROZEN}


@pytest.fixture(scope="package")
def busy(passes: list[Pass], rounds: int) -> list[Pass]:
    return [each for each in passes if 0 <= each.line["round"] < rounds]


@pytest.fixture(scope="package")
def suspended(passes: list[Pass], rounds: int) -> dict[str, Pass]:
    """By analysis: while a device is suspended, so that who writes to it waits."""
    return {each.name: each for each in passes if each.line["round"] == rounds}


def of(passes: list[Pass], *names: str) -> list[Pass]:
    """Return the passes of some analyses."""
    return [each for each in passes if each.name in names]


def test_no_analysis_fails(passes: list[Pass], busy: list[Pass], rounds: int) -> None:
    assert [each.line for each in passes if "error" in each.line] == []
    assert {each.name for each in passes} == set(analyses())
    assert len(busy) == rounds * len(analyses())


def test_all_gaps_have_sizes(passes: list[Pass]) -> None:
    gaps = [gap for each in passes for gap in each.line["gaps"]]
    assert [gap for gap in gaps if gap[2] <= 0] == []


def test_slab_at_rest(frozen: dict[str, Pass]) -> None:
    """Caches that stood still have exactly the objects and slabs that the kernel counts."""
    slab = frozen["slab"]
    before, after = map(slabinfo, slab.counters("slabinfo"))
    still, off = 0, dict[str, int]()
    for name, (total, slabs) in slab.line["caches"].items():
        # slabinfo has no child caches of memory cgroups, nor the one of SLUB's own nodes at first.
        if before.get(name) == after.get(name) is not None:
            still += 1
            off[name] = abs(slabs - before[name].slabs)
            assert off[name] or total == before[name].total, name
    assert still > _CACHES_AT_REST * len(before)
    # kcensus itself may take a slab and give it back.
    assert sum(off.values()) <= _SLABS_AT_REST, {name: by for name, by in off.items() if by}


def test_slab_pages(passes: list[Pass]) -> None:
    for each in of(passes, "slab"):
        both = [
            sum(cache.pages for cache in slabinfo(text).values())
            for text in each.counters("slabinfo")
        ]
        # Under load, a cache grows and shrinks by some slabs between two readings.
        bound = _SLAB_PAGES[each.line["round"] == _FROZEN]
        pages = each.figure("slab_bytes") // PAGE
        assert min(both) - bound <= pages <= max(both) + bound


def test_dentries(passes: list[Pass]) -> None:
    for each in of(passes, "dentries"):
        assert_near(each, r"\A(\d+)", each.figure("dentries"))


def assert_near(each: Pass, pattern: str, ours: int) -> None:
    """Hold a figure against a number of /proc/sys/fs/dentry-state."""
    low, high = each.range("dentry-state", pattern)
    # Under load, those that came and went during the walk are counted or not.
    is_frozen = each.line["round"] == _FROZEN
    bound = (_DENTRIES if is_frozen else low // 50) + high - low
    assert low - bound <= ours <= high + bound


def test_memcgs_at_rest(frozen: dict[str, Pass]) -> None:
    for name in ("memcgs", "slab", "list-lru"):
        each = frozen[name]
        assert {str(each.figure("memcgs_online"))} == {*each.counters("memcgs")}
        # Since 6.12, the kernel counts those of the controller, before that all cgroups.
        texts = each.counters("cgroup.stat")
        exact = all("nr_dying_subsys_memory" in text for text in texts)
        counter = "nr_dying_subsys_memory" if exact else "nr_dying_descendants"
        low, high = each.range("cgroup.stat", rf"^{counter} (\d+)$")
        assert (low if exact else 0) <= each.figure("memcgs_offline") <= high


@pytest.mark.usually
def test_memcgs_under_load(busy: list[Pass]) -> None:
    for each in of(busy, "memcgs"):
        low, high = each.range("memcgs", r"\d+")
        # The load has at most one cgroup at a time that comes and goes.
        assert low - 1 <= each.figure("memcgs_online") <= high + 1


def test_list_lru(passes: list[Pass]) -> None:
    """The lists of all super blocks have the dentries that the kernel counts as unused."""
    for each in of(passes, "list-lru"):
        assert_near(each, r"\A\d+\s+(\d+)", each.checked("dentry lists"))


def test_kcopyd(passes: list[Pass]) -> None:
    """The chunks that a snapshot has copied are those that dmsetup counts."""
    compared = 0
    for each in passes:
        if each.name == "kcopyd" and all(each.counters("snapshots")):
            before, after = map(copied, each.counters("snapshots"))
            done, pending = each.figure("exceptions"), each.figure("pending_exceptions")
            if before <= after:  # otherwise the snapshot was replaced meanwhile
                compared += 1
                assert before - pending <= done <= after
            if each.line["round"] == _FROZEN:
                assert (done, pending) == (before, 0)
    assert compared > 0


def copied(status: str) -> int:
    """Return how many chunks have a place in the COW device, of which some may be on their way."""
    ((used, metadata),) = re.findall(r"snapshot (\d+)/\d+ (\d+)$", status, re.M)
    return (int(used) - int(metadata)) // _CHUNK_SECTORS


def test_tasks(passes: list[Pass]) -> None:
    for each in of(passes, "waits", "iosched"):
        low, high = sorted(len(states(text)) for text in each.counters("tasks"))
        bound = 0 if each.line["round"] == _FROZEN else _TASKS
        assert low - bound <= each.checked("tasks") <= high + bound


def test_blocked_tasks(suspended: dict[str, Pass]) -> None:
    each = suspended["waits"]
    before, after = (
        {pid for pid, state in states(text).items() if state == "D"}
        for text in each.counters("tasks")
    )
    assert before & after
    assert before & after <= {*each.line["pids"]}
    assert len(before & after) <= each.figure("tasks_blocked") <= len(before | after) + _TASKS


def states(text: str) -> dict[int, str]:
    return {int(pid): state for pid, state in map(str.split, text.splitlines())}


def test_nothing_hangs(passes: list[Pass], frozen: dict[str, Pass]) -> None:
    assert {each.figure("deadlocks") for each in of(passes, "waits")} == {0}
    # The journal writes when it wants to.
    low, high = frozen["iosched"].range("inflight", r"\d+")
    assert low - 1 <= frozen["iosched"].figure("requests") <= high + 1
    assert frozen["kcopyd"].figure("jobs") == 0


@pytest.mark.usually
def test_memory_is_flat(busy: list[Pass], frozen: dict[str, Pass]) -> None:
    """After the first round, which loads what it needs, no round needs more."""
    first, later = (
        max(each.line["memory"]["RssAnon"] for each in round_) for round_ in (frozen.values(), busy)
    )
    assert later < _MAX_GROWTH * first
