# SPDX-License-Identifier: LGPL-2.1-or-later
"""What waits for a silent disk, through whatever queues, is one finding of the report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drgn.helpers.linux.cgroup import cgroup_path
from drgn.helpers.linux.pid import for_each_task

from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.processes import path_of, states_of
from tests.lab import build
from tests.vm.cases import analyzed, command, opened

_CASES = [("6.1", "iosched-bfq"), ("6.1", "iosched-deadline"), ("7.3", "iosched-none")]


@pytest.mark.parametrize(("release", "scenario"), _CASES)
def test_one_finding(release: str, scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, found, _ = command(capsys, "report", *build(release, scenario).arguments)
    assert status == 0
    top = [each["id"] for each in found["findings"] if each["severity"] != "info"]
    top = [each for each in top if not _parent(found, each)]
    assert top[0] == "requests-stuck:vda"
    assert {each.partition(":")[0] for each in top} <= {"requests-stuck", "requests-starved"}
    under = [each["id"] for each in found["findings"] if each["part_of"] == top[0]]
    assert {"waits-io", "tasks-blocked"} <= {each.partition(":")[0] for each in under}


def _parent(found: Any, name: str) -> str:
    (parent,) = (each["part_of"] for each in found["findings"] if each["id"] == name)
    return str(parent or "")


def test_a_look_up_wakes_those_that_wait_for_its_name() -> None:
    """The queue that they wait on lies on its stack."""
    target = opened(build("6.1", "iosched-bfq"))
    result = analyzed(target, "waits")
    nodes, edges = (result.tables[name].frame for name in ("nodes", "edges"))
    node = nodes.set_index("node")
    woken = edges[edges["kind"] == "woken by"]
    assert set(woken["strength"]) == {"derived"}
    found = set(node["pid"][edges["source"][edges["target"].isin(woken["source"])]])
    asleep = {
        task.pid.value_()
        for task in for_each_task(target.prog)
        if task.comm.string_().startswith(b"look-up")
        and "d_alloc_parallel" in {frame.name for frame in target.prog.stack_trace(task)}
    }
    assert found == asleep != set()
    assert node["name"][woken["target"]].str.startswith("look-up").all()


@pytest.mark.parametrize(
    ("release", "scenario", "disk"),
    [("6.1", "iosched-bfq", "vda"), ("7.3", "iosched-kyber", "vda")],
)
def test_a_disk_is_one_finding(release: str, scenario: str, disk: str) -> None:
    findings = analyzed(opened(build(release, scenario), "xfs"), "waits").findings
    of_disk = next(each for each in findings if each.id == f"waits-io:{disk}")
    behind = [each for each in findings if each.kind == "waits-behind"]
    assert behind
    assert {each.part_of for each in behind} == {of_disk.id}
    assert all(each.tasks <= of_disk.tasks for each in behind)


def test_memory_cgroups_of_tasks() -> None:
    target = opened(build("6.1", "iosched-bfq"))
    tasks = [*for_each_task(target.prog)]
    memory = int(target.prog.constant("memory_cgrp_id"))
    wanted = [cgroup_path(task.cgroups.subsys[memory].cgroup).decode() for task in tasks]
    address = np.array([int(task) for task in tasks], np.uint64)
    faults, kernel = Faults(), Kernel(target.prog)
    states = states_of(kernel, address, faults).tolist()
    assert [path_of(kernel, state) for state in states] == wanted
    assert {"/heavy", "/light"} <= set(wanted)
    assert not faults
