# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writers at the limit of dirty pages of their memory cgroup, against its own statistics."""

from __future__ import annotations

import re
from contextlib import suppress

import numpy as np
import pytest
from drgn import FaultError
from drgn.helpers.linux.pid import for_each_task

from kcensus.human import human_bytes
from kcensus.kernel.waiting.finders.io.devices import DISK
from kcensus.kernel.waiting.finders.writeback.flushers import DIRTY, FLUSHER
from tests.vm.cases import analyzed
from tests.vm.waits.scenarios import FOUND, params
from tests.vm.waits.test_graph import Case

_SCENARIO = "waits-dirty"
pytestmark = pytest.mark.parametrize("case", params({_SCENARIO: FOUND[_SCENARIO]}), indirect=True)


def _writers(case: Case) -> set[int]:
    """Return the writers that the limit stops; reclaim stops, or kills, others before."""
    prog, found = case.target.prog, set[int]()
    procs = {*map(int, case.dump.truth["procs"].split())}
    for task in for_each_task(prog):
        if (pid := task.pid.value_()) in procs:
            with suppress(FaultError):  # it has exited
                frames = {frame.name for frame in prog.stack_trace(task)}
                found |= {pid} if "balance_dirty_pages" in frames else set()
    return found


def test_the_writers_wait_for_the_limit_of_their_cgroup(case: Case) -> None:
    graph, names = case.found.graph, case.found.names
    limits = [node for node, kind in enumerate(graph.kind) if kind is DIRTY]
    behind = np.flatnonzero(graph.sure.reached(limits, back=True) & graph.is_task).tolist()
    assert {case.pid(node) for node in behind} == _writers(case)
    if not limits:
        return
    (limit,) = limits
    stat = dict(line.split() for line in case.dump.truth["memory.stat"].splitlines())
    dirty = human_bytes(int(stat["file_dirty"]) + int(stat["file_writeback"]))
    name = names[DIRTY, int(graph.address[limit])]
    assert f"of memory cgroup /small ({dirty} dirty or in writeback, limit " in name
    # 20 % (vm.dirty_ratio) of the memory that the cgroup has for them: less than 32 MiB.
    number = re.search(r"limit ([0-9.]+) MiB", name)
    assert number is not None
    assert 1 < float(number[1]) < 0.2 * 32
    ends = {graph.kind[int(graph.target[edge])] for edge in graph.sure.following[limit]}
    assert ends == {FLUSHER}
    reached = np.flatnonzero(graph.sure.reached([limit])).tolist()
    assert DISK in {graph.kind[node] for node in reached}


def test_the_finding_about_the_disk_names_the_cgroup(case: Case) -> None:
    result = analyzed(case.target, "waits")
    (finding,) = (each for each in result.findings if each.id == "waits-io:vda")
    is_named = "limit of dirty pages of memory cgroup /small" in finding.evidence
    assert is_named == bool(_writers(case))


def test_the_limit_is_a_part_of_the_finding_about_the_disk(case: Case) -> None:
    findings = analyzed(case.target, "waits").findings
    limits = [each for each in findings if each.kind == "waits-dirty-limit"]
    assert len(limits) == bool(_writers(case))
    for limit in limits:
        assert (limit.id, limit.part_of) == ("waits-dirty-limit:/small", "waits-io:vda")
        assert limit.figures["tasks"].value == len(limit.tasks)
        assert limit.tasks == _writers(case)
        assert limit.no_remedy
