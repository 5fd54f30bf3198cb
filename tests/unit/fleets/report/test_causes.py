# SPDX-License-Identifier: LGPL-2.1-or-later
"""Features of reports: equal on all machines with one cause."""

from __future__ import annotations

import pandas as pd

from kcensus.fleets.causes import PATCH, features, general
from kcensus.reports import Report, Section
from kcensus.results import Danger, Figure, Finding, Machine, Result, Severity
from kcensus.results.tables import Column, Table


def table(rows: list[dict[str, object]]) -> Table:
    frame = pd.DataFrame(rows)
    return Table(frame, {str(name): Column() for name in frame})


def report(*findings: Finding, machine: Machine | None = None, **tables: Table) -> Report:
    head = Result("report", "x", "6.1", machine=machine)
    waits = Result("waits", "x", "6.1")
    waits.findings, waits.tables = [*findings], tables
    return Report(head, [Section("waits", waits)])


def finding(name: str, severity: Severity = Severity.WARNING, **more: object) -> Finding:
    return Finding(id=name, severity=severity, title=name, **more)  # type: ignore[arg-type]


def keys(made: Report) -> dict[tuple[str, str], float]:
    return {(each.kind, each.feature): each.weight for each in features(made)}


def test_numbers_addresses_and_offsets_are_left_out() -> None:
    first = general("BUG: unable to handle page fault for address: ffff8880deadbeef at f+0x12/0x40")
    other = general("BUG: unable to handle page fault for address: ffff88801234abcd at f+0x1c/0x44")
    assert first == other


def test_subjects_are_kept_only_if_they_are_names_of_code() -> None:
    made = report(
        finding("requests-starved:vda"), finding("requests-starved:sdb", Severity.CRITICAL),
        finding("slab-waste:dentry", memory={"slab:dentry": 1}), finding("rule:r1"),
    )  # fmt: skip
    assert keys(made) == {
        ("finding", "requests-starved"): 3.0,
        ("finding", "slab-waste:dentry"): 2.0,
        ("finding", "rule:r1"): 2.0,
    }


def test_what_kcensus_could_not_do_is_no_cause() -> None:
    made = report(
        finding("waits-incomplete", danger=Danger.INCOMPLETE), finding("a", Severity.INFO)
    )
    assert keys(made) == {}


def test_the_part_of_a_symptom_is_a_feature_unless_it_repeats_it() -> None:
    made = report(
        finding("waits-behind:7"), finding("waits-spinlock:9", part_of="waits-behind:7"),
        finding("log-hung-task", part_of="waits-behind:7"),
        finding("waits-smb:a"), finding("waits-frozen", part_of="waits-smb:a"),
    )  # fmt: skip
    assert keys(made) == {
        ("finding", "waits-behind"): 0.5,
        ("finding", "waits-spinlock"): 1.0,
        ("finding", "waits-smb"): 2.0,
    }


def test_edges_of_a_deadlock_have_names_of_code_only() -> None:
    cycles = table(
        [
            {"waits_for": "rwsem i_rwsem of /srv/a", "mode": "write", "function": "create"},
            {"waits_for": "pipe 0xffff8b788132d540", "mode": "", "function": "anon_pipe_write"},
        ]
    )
    assert keys(report(cycles=cycles)) == {
        ("deadlock", "rwsem i_rwsem (write) in create"): 3.0,
        ("deadlock", "pipe N in pipe_write"): 3.0,
    }


def test_stacks_are_those_of_tasks_long_in_state_d() -> None:
    columns = ("state", "asleep", "entry", "function")
    rows = [
        ("D", 20.0, "pread64", "__iomap_dio_rw"),
        ("D", 20.0, "pread64", "iomap_dio_rw"),
        ("D", 1.0, "read", "f"),
        ("S", 99.0, "read", "f"),
    ]
    made = report(tasks=table([dict(zip(columns, row, strict=True)) for row in rows]))
    (one,) = features(made)
    assert (one.kind, one.feature, one.tasks) == ("stack", "preadN → iomap_dio_rw", 2)


def test_what_tasks_wait_for_tells_convoys_apart() -> None:
    columns = ("kind", "name", "waiters", "behind")
    rows = [
        ("CPU", "1", 0, 5),
        ("RCU grace period", "of rcu_preempt", 1, 4),
        ("rwsem", "i_rwsem of /srv/a", 2, 4),
    ]
    objects = table([dict(zip(columns, row, strict=True)) for row in rows])
    awaited = {
        ("awaited", "RCU grace period of rcu_preempt"): 0.5,
        ("awaited", "rwsem i_rwsem"): 0.5,
    }
    behind, known = ("finding", "waits-behind"), ("finding", "waits-smb")
    assert keys(report(finding("waits-behind:7"), objects=objects)) == {behind: 0.5, **awaited}
    assert {*keys(report(finding("waits-behind:7"), finding("waits-smb:a"), objects=objects))} == {
        behind,
        known,
    }


def test_tables_without_rows_or_columns_have_no_features() -> None:
    made = report(tasks=table([]), cycles=table([{"waits_for": "mutex a"}]))
    assert [*features(made)] == []


def test_a_panic_is_its_message_and_the_kind_of_its_task() -> None:
    machine = Machine(taken_by="Fatal exception (task kworker/1:1)", is_panic=True)
    assert keys(report(machine=machine)) == {
        ("panic", "Fatal exception"): 3.0,
        ("panic", "task kworker/N:N"): 1.0,
    }


def test_an_oops_is_the_function_in_which_it_happened() -> None:
    text = "BUG: kernel NULL pointer dereference, address: 0000000000000008"
    machine = Machine(taken_by=f"{text} in __bio_endio [dm_mod] (task kworker/1:1)", is_panic=True)
    assert keys(report(machine=machine)) == {
        ("panic", "BUG: kernel NULL pointer dereference, address: N"): 1.0,
        ("panic", "in bio_endio [dm_mod]"): 3.0,
        ("panic", "task kworker/N:N"): 1.0,
    }


def test_tasks_that_a_missing_patch_stalls_are_counted_once() -> None:
    made = report(
        finding("a", patch="p", tasks=frozenset({1, 2})),
        finding("b", patch="p", tasks=frozenset({2, 3})),
        finding("c", patch="q", figures={"tasks": Figure(7)}),
    )
    stalled = {each.feature: each.tasks for each in features(made) if each.kind == PATCH}
    assert stalled == {"p": 3, "q": 7}
    assert {each.weight for each in features(made) if each.kind == PATCH} == {0.0}
