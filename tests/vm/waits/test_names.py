# SPDX-License-Identifier: LGPL-2.1-or-later
"""Modules, stacks, and what locks belong to, against what drgn reads object by object."""

from __future__ import annotations

import re

import pytest
from drgn.helpers.linux.fs import for_each_mount
from drgn.helpers.linux.pid import find_task

from kcensus.results import Result
from kcensus.sources import Target
from tests.lab import build
from tests.vm.cases import analyzed, opened

_OWNER = re.compile(r"mmap_lock of .* \(PID (\d+)\)$")
_SB = re.compile(r"s_writers \((?:write|page faults|internal)\) of xfs on (\S+)$")

pytestmark = pytest.mark.usually("6.1")


def _of(kernel: str, scenario: str) -> tuple[Target, Result]:
    target = opened(build(kernel, scenario))
    return target, analyzed(target, "waits")


def test_functions_and_locks_of_a_module(kernel: str) -> None:
    target, result = _of(kernel, "waits-four")
    stacks = result.tables["stacks"].frame
    cycles = result.tables["cycles"].frame
    assert set(cycles["pid"]) <= set(stacks["pid"])
    for pid in set(stacks["pid"].tolist()):
        frames = stacks[stacks["pid"] == pid]
        # drgn has inlined functions, too, and each frame of ours.
        trace = target.prog.stack_trace(pid)
        places = [frame.pc for frame in trace if not frame.is_inline]
        assert [int(place, 16) for place in frames["place"]] == places[: len(frames)]
    assert any(name.endswith(" [kcensus_waits]") for name in stacks["function"])
    names = set(result.tables["objects"].frame["name"])
    assert {"mutexes [kcensus_waits]", "percpu_rwsem [kcensus_waits]"} <= names
    # The task that has slept longest comes first.
    assert cycles["asleep"].iloc[0] >= cycles["asleep"].max() - 0.01


@pytest.mark.usually("7.3")
def test_locks_of_processes_and_file_systems(kernel: str) -> None:
    target, result = _of(kernel, "waits-freeze")
    prog = target.prog
    maps = levels = 0
    blocks = {mount.mnt.mnt_sb.value_(): mount.mnt.mnt_sb for mount in for_each_mount(prog)}
    for _, row in result.tables["objects"].frame.iterrows():
        address = int(row["object"])
        if match := _OWNER.match(row["name"]):
            mm, maps = find_task(prog, int(match[1])).mm, maps + 1
            assert address == mm.mmap_lock.address_of_().value_()
        elif _SB.match(row["name"]):
            levels += 1
            locks = [lock for block in blocks.values() for lock in block.s_writers.rw_sem]
            assert [lock.address_of_().value_() for lock in locks].count(address) == 1
    assert maps
    assert levels
