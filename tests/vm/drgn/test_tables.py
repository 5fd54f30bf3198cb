# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rows of tables lead to the kernel objects that they describe, and these lead back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drgn
import pytest
from drgn.helpers.linux.fs import dentry_path

import kcensus
from kcensus.analyses import analyses
from kcensus.sources import Target, open_target
from tests.lab import build

pytestmark = pytest.mark.newest

_MAX_ROWS = 50


def text(string: drgn.Object) -> str:
    return str(string.string_(), "utf-8", "backslashreplace")


def path(dentry: drgn.Object) -> str:
    return str(dentry_path(dentry), "utf-8", "backslashreplace")


_ELSEWHERE = {"processes", "hardware_queues", "requests", "requests_traced", "sleepers"} | {
    "cycles",
    "stacks",
}
"""Tables that may be empty here: no process of the workload of most tests works in a directory of
negative dentries, its disks have no requests, or no queues of them, and no task of it waits for
another one for ever."""

# What a row says of the object beside its address.
SAYS: dict[str, Callable[[drgn.Object, Any], bool]] = {
    "struct dentry": lambda it, row: row["directory"].endswith(path(it)),
    "struct dm_kcopyd_client": lambda it, row: it.nr_jobs.counter.value_() == row["nr_jobs"],
    "struct dm_snapshot": lambda it, row: it.store.chunk_size.value_() * 512 == row["chunk_bytes"],
    "struct inode": lambda it, row: it.i_data.nrpages.value_() * 4096 == row["file_bytes"],
    "struct gendisk": lambda it, row: text(it.disk_name) == row["disk"],
    "struct kmem_cache": lambda it, row: text(it.name) == row["cache"],
    "struct mem_cgroup": lambda it, row: row["memcg"].endswith(text(it.css.cgroup.kn.name)),
    "struct request": lambda it, row: it.member_("__sector").value_() == row["sector"],
    "struct super_block": lambda it, row: text(it.s_id) == row["id"],
    "struct task_struct": lambda it, row: it.tgid.value_() == row["pid"],
    "struct worker_pool": lambda it, row: it.id.value_() == row["pool"],
}


def round_trips(result: kcensus.Result, target: Target) -> set[str]:
    """Lead from rows of each table to objects and back; return the tables that had such rows."""
    found = set()
    for key, table in result.tables.items():
        if "address" not in table:
            continue
        for _, row in table[table["address"] != 0].head(_MAX_ROWS).iterrows():
            thing = kcensus.as_object(target, row)
            thing[0].read_()
            says = SAYS.get(thing.type_.type.type_name())
            assert says is None or says(thing, row), row
            assert row["address"] in [*kcensus.rows(table, thing)["address"]]
            found.add(key)
    return found


@pytest.mark.parametrize("name", analyses())
def test_rows_lead_to_objects_and_back(name: str, mixed_target: Target) -> None:
    result = getattr(kcensus, name.replace("-", "_"))(mixed_target)
    declared = {spec.name for spec in analyses()[name].tables() if "address" in spec.columns}
    assert round_trips(result, mixed_target) | _ELSEWHERE == declared | _ELSEWHERE


def test_processes_lead_to_tasks_and_back() -> None:
    dump = build("6.12", "dentries-memcg")
    target = open_target(str(dump.formats["elf"]), dump.debug)
    result = kcensus.dentries(target)
    assert "processes" in round_trips(result, target)
    task = kcensus.as_object(target, result.tables["processes"].iloc[0])
    assert text(task.comm) == "init"


def test_requests_and_tasks_that_wait_for_them_lead_to_objects_and_back() -> None:
    dump = build("6.1", "iosched-starved")
    target = open_target(str(dump.formats["elf"]), dump.debug)
    result = kcensus.iosched(target, trace=str(dump.path / "traces"))
    expected = {"disks", "hardware_queues", "requests", "requests_traced", "sleepers"}
    assert round_trips(result, target) == expected
