# SPDX-License-Identifier: LGPL-2.1-or-later
"""Damaged dumps of guests with tasks that wait: gaps or checks that fail, and no new deadlock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import drgn
import pytest
from drgn.helpers.linux.pid import for_each_task

from kcensus.results import Result
from kcensus.sources import Target, open_target
from tests.lab import build
from tests.sample.block.poked import Poked
from tests.vm.cases import analyzed, opened

# 7.3 has no lists of waiters, and its tasks name what they wait for: other words count there.
pytestmark = [pytest.mark.usually("6.1"), pytest.mark.kernels("5.10", "6.1", "6.12")]

_NOWHERE, _PROGRAM = 0xFFFF_C1F0_DEAD_B000, 0x7FFF_1234_5678
_NO_ADDRESS = 0x5A5A_5A5A_5A5A_5A5A
_BENT = 40
"""Words to bend, one at a time."""
_MAX_STACK = 1200
"""Bytes above the stack pointer: what the functions that wait have there."""


class Case:
    """A dump that is damaged in one way after another."""

    def __init__(self, kernel: str, scenario: str) -> None:
        self.dump = build(kernel, scenario)
        self.target = opened(self.dump)
        self.sound = _run(self.target)
        self._poked = Poked(self.target.prog)

    def poked(self) -> Poked:
        """What damages the dump, without the damage that there was before."""
        self._poked.restore()
        return self._poked

    def damaged(self, target: Target | None = None) -> Result:
        """What is said of the damaged dump: nothing is invented, and what is missing is shown."""
        result = _run(target or self.target)
        assert _cycles(result) <= _cycles(self.sound)
        assert not self.has_changed(result) or self.is_shown(result)
        return result

    def is_shown(self, damaged: Result) -> bool:
        return damaged.gaps != self.sound.gaps or any(
            check.counter is not None and check.difference for check in damaged.checks
        )

    def has_changed(self, damaged: Result) -> bool:
        # How tasks are called and how long they sleep may be damaged as well.
        blocked = {each.amount("tasks_blocked") for each in (damaged, self.sound)}
        return _edges(damaged) != _edges(self.sound) or len(blocked) > 1

    @cached_property
    def owner(self) -> tuple[int, int]:
        (row,) = (row for row in _rows(self.sound, "objects") if row["kind"] == "mutex")
        (edge,) = (edge for edge in _edges(self.sound) if edge[0] == ("mutex", row["object"]))
        return int(row["object"]), edge[2][1]


@pytest.fixture(scope="module")
def four(kernel: str) -> Case:
    return Case(kernel, "waits-four")


@pytest.fixture(scope="module")
def convoy(kernel: str) -> Case:
    """Two hundred tasks behind a mutex whose owner waits for a page."""
    return Case(kernel, "waits-convoy")


def _run(target: Target) -> Result:
    result = analyzed(target, "waits")
    assert all(gap.count > 0 and gap.effect for gap in result.gaps)
    return result


def _rows(result: Result, table: str) -> list[dict[str, Any]]:
    return result.tables[table].frame.to_dict("records")  # type: ignore[return-value]  # of pandas


def _edges(result: Result) -> set[tuple[tuple[str, int], str, tuple[str, int]]]:
    """The edges by kind and address of their ends."""
    nodes = {row["node"]: (row["kind"], int(row["object"])) for row in _rows(result, "nodes")}
    return {
        (nodes[row["source"]], row["kind"], nodes[row["target"]]) for row in _rows(result, "edges")
    }


def _cycles(result: Result) -> set[frozenset[int]]:
    """The PIDs of each deadlock that is more than possible."""
    pids: dict[int, set[int]] = {}
    weak = {row["cycle"] for row in _rows(result, "cycles") if row["strength"] == "possible"}
    for row in _rows(result, "cycles"):
        if row["cycle"] not in weak:
            pids.setdefault(row["cycle"], set()).add(row["pid"])
    return {frozenset(each) for each in pids.values()}


def _gaps(result: Result) -> dict[str, int]:
    return {gap.what: gap.count for gap in result.gaps}


def _tasks(prog: drgn.Program, result: Result) -> list[drgn.Object]:
    return [
        drgn.Object(prog, "struct task_struct", address=int(row["address"]))
        for row in _rows(result, "tasks")
    ]


@pytest.mark.parametrize("bent", ["itself", "nothing", "program", "no address", "earlier", "other"])
@pytest.mark.parametrize("member", ["next", "prev"])
def test_a_torn_list_of_tasks(four: Case, bent: str, member: str) -> None:
    poked = four.poked()
    every = [each for each in for_each_task(poked.prog) if each.pid == each.tgid]
    victim = every[len(every) // 2].tasks
    value = {
        "itself": int(victim.address_of_()),
        "nothing": 0,
        "program": _PROGRAM,
        "no address": _NO_ADDRESS,
        "earlier": int(every[3].tasks.address_of_()),
        "other": int(every[5].thread_node.address_of_()),
    }[bent]
    poked.word(int(victim.member_(member).address_of_()), value)
    damaged = four.damaged()
    # Only a torn list is walked backwards.
    assert four.is_shown(damaged) or member == "prev"


def test_a_list_of_tasks_that_loops_both_ways(four: Case) -> None:
    poked = four.poked()
    links = [each.tasks for each in for_each_task(poked.prog) if each.pid == each.tgid]
    first, last = links[10], links[20]
    poked.word(int(last.next.address_of_()), int(first.address_of_()))
    poked.word(int(first.prev.address_of_()), int(last.address_of_()))
    damaged = four.damaged()
    assert "lists of tasks" in _gaps(damaged)


@pytest.mark.parametrize("number", range(4))
def test_a_stack_that_is_not_in_the_dump(four: Case, number: int) -> None:
    poked = four.poked()
    task = _tasks(poked.prog, four.sound)[number]
    poked.remove(int(task.stack), int(poked.prog["THREAD_SIZE"]))
    damaged = four.damaged()
    assert _gaps(damaged)["stacks of tasks"] == 1
    # Each of them keeps the cycle together.
    assert damaged.amount("deadlocks") == 0


def test_no_stack_is_in_the_dump(convoy: Case) -> None:
    poked = convoy.poked()
    for task in _tasks(poked.prog, convoy.sound):
        poked.remove(int(task.stack), int(poked.prog["THREAD_SIZE"]))
    damaged = convoy.damaged()
    blocked = damaged.amount("tasks_blocked")
    assert blocked == convoy.sound.amount("tasks_blocked")
    assert damaged.amount("tasks_undetermined") == blocked
    assert _gaps(damaged)["stacks of tasks"] == blocked


@pytest.mark.parametrize("flags", [0, 1])
@pytest.mark.parametrize("owner", [_NOWHERE, 8, "next page"])
def test_an_owner_that_is_garbage(convoy: Case, owner: int | str, flags: int) -> None:
    poked = convoy.poked()
    mutex, task = convoy.owner
    value = {8: task + 64, "next page": task + 4096}.get(owner, owner)
    poked.word(mutex, int(value) | flags)
    damaged = convoy.damaged()
    assert "tasks" in _gaps(damaged)
    (root,) = (edge[2] for edge in _edges(damaged) if edge[0] == ("mutex", mutex))
    assert root == ("task", int(value))
    # It is no task's address, so that no task is said to have exited.
    (finding,) = (each for each in damaged.findings if each.kind != "log-hung-task")
    assert finding.kind == "waits-behind"
    assert finding.figures["tasks"].value == 200


def test_no_owner(convoy: Case) -> None:
    """A mutex that was just dropped has waiters, and no owner."""
    poked = convoy.poked()
    mutex, _ = convoy.owner
    poked.word(mutex, 1)
    damaged = _run(convoy.target)
    assert damaged.amount("tasks_undetermined") == 0
    assert not [edge for edge in _edges(damaged) if edge[0] == ("mutex", mutex)]
    assert damaged.amount("deadlocks") == 0


def test_an_owner_that_is_gone(convoy: Case) -> None:
    """It has left the list of tasks, which is whole, and the mutex still names it."""
    poked = convoy.poked()
    mutex, address = convoy.owner
    task = drgn.Object(poked.prog, "struct task_struct", address=address)
    node = task.tasks
    poked.word(int(node.prev.next.address_of_()), int(node.next))
    poked.word(int(node.next.prev.address_of_()), int(node.prev))
    damaged = convoy.damaged()
    assert "tasks" in _gaps(damaged)
    assert (("mutex", mutex), "held by", ("task", address)) in _edges(damaged)
    assert damaged.amount("tasks_blocked") == 200
    (finding,) = (each for each in damaged.findings if each.kind != "log-hung-task")
    assert finding.kind == "waits-exited"


@pytest.mark.parametrize("bent", ["itself", "nothing", "nowhere", "first", "task"])
@pytest.mark.parametrize("both", [False, True])
def test_a_torn_list_of_waiters(convoy: Case, bent: str, both: bool) -> None:
    poked = convoy.poked()
    mutex, _ = convoy.owner
    head = drgn.Object(poked.prog, "struct mutex", address=mutex).wait_list
    node = head.next
    for _ in range(100):
        node = node.next
    value = {
        "itself": int(node),
        "nothing": 0,
        "nowhere": _NOWHERE,
        "first": int(head.next),
        "task": int(poked.prog["init_task"].tasks.address_of_()),
    }[bent]
    poked.word(int(node.next.address_of_()), value)
    if both:
        poked.word(int(node.prev.address_of_()), value)
    damaged = convoy.damaged()
    assert damaged.amount("tasks_blocked") == convoy.sound.amount("tasks_blocked")
    mutexes = {edge[2] for edge in _edges(damaged) if edge[2][0] == "mutex"}
    # Never another lock.
    assert mutexes <= {("mutex", mutex)}


def test_a_pipe_whose_reader_is_lost(four: Case) -> None:
    poked = four.poked()
    (reader,) = (
        each for each in _tasks(poked.prog, four.sound) if each.comm.string_() == b"core-reader"
    )
    poked.word(int(reader.files.fdt.fd.address_of_()), _NOWHERE)
    damaged = four.damaged()
    assert _gaps(damaged)["files of pipes"] == 1
    assert damaged.amount("deadlocks") == 0


def test_a_pipe_that_somebody_else_may_read(four: Case) -> None:
    """A file in flight has the other end, too: the deadlock is only possible."""
    poked = four.poked()
    (pipe,) = (row for row in _rows(four.sound, "objects") if row["kind"] == "pipe")
    readers = drgn.Object(poked.prog, "struct pipe_inode_info", address=pipe["object"]).readers
    assert int(readers) == 1
    poked.write(int(readers.address_of_()), b"\2")
    damaged = _run(four.target)
    assert (damaged.amount("deadlocks"), damaged.amount("deadlocks_possible")) == (0, 1)
    assert _gaps(damaged)["files of pipes"] == 1


_TYPES = """
    mutex mutex_waiter percpu_rw_semaphore rw_semaphore rt_mutex_waiter semaphore semaphore_waiter
    wait_queue_entry swait_queue wait_bit_queue_entry completion pipe_inode_info files_struct file
    mm_struct pt_regs wq_barrier super_block request
"""


@pytest.mark.parametrize("missing", _TYPES.split())
def test_types_that_are_missing(four: Case, convoy: Case, missing: str) -> None:
    for case in (four, convoy):
        prog = case.poked().prog
        finders = prog.enabled_type_finders()

        def find(
            prog: drgn.Program, kinds: drgn.TypeKindSet, name: str, file: str | None
        ) -> drgn.Type | None:
            if name == missing:
                raise LookupError(f"could not find {name!r}")
            return None

        prog.register_type_finder(f"without {missing}", find, enable_index=0)
        try:
            case.damaged()
        finally:
            prog.set_enabled_type_finders(finders)


def test_without_debug_info_of_modules(four: Case, convoy: Case) -> None:
    for case in (four, convoy):
        dump = case.dump
        damaged = case.damaged(open_target(str(dump.core), dump.debug[:1]))
        assert damaged.amount("tasks_undetermined") == 0
        assert _cycles(damaged) == _cycles(case.sound)


def _words(prog: drgn.Program, result: Result) -> Iterator[int]:
    """Yield where words are that the answer depends on, and that can be told to be damaged."""
    type_ = prog.type("struct task_struct")
    tasks = _tasks(prog, result)[:6]
    for task in tasks:
        links = ("tasks.next", "tasks.prev", "thread_node.next")
        for member in (*links, "signal", "stack", "thread.sp"):
            yield int(task.address_) + drgn.offsetof(type_, member)
        start = int(task.thread.sp)
        top = int(task.stack) + int(prog["THREAD_SIZE"])
        yield from range(start, min(start + _MAX_STACK, top), 8)
        if task.files:
            yield int(task.files.fdt.address_of_())
            yield int(task.files.fdt.fd.address_of_())
    for row in _rows(result, "objects"):
        if row["kind"] in ("request", "disk"):
            continue  # The tests of iosched damage these.
        yield from range(int(row["object"]), int(row["object"]) + 64, 8)


@pytest.mark.usually("6.1 convoy")
@pytest.mark.parametrize("scenario", ["four", "convoy"])
def test_bent_words(
    scenario: str, four: Case, convoy: Case, request: pytest.FixtureRequest
) -> None:
    case = four if scenario == "four" else convoy
    numbers = random.Random(16)
    places = sorted(set(_words(case.target.prog, case.sound)))
    for _ in range(_BENT if request.config.getoption("--all") else _BENT // 3):
        poked = case.poked()
        place = numbers.choice(places)
        value = numbers.choice([0, place, _NOWHERE, _PROGRAM, _NO_ADDRESS])
        try:
            poked.word(place, value)
        except drgn.FaultError:
            continue  # an object's end, on a page that is not mapped
        damaged = _run(case.target)
        assert _cycles(damaged) <= _cycles(case.sound), hex(place)
        if case.has_changed(damaged):
            assert case.is_shown(damaged), (hex(place), hex(value))
