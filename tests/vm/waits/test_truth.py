# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guests with tasks that wait for each other report what their scenarios are for."""

from __future__ import annotations

from collections import Counter

import drgn
import pytest

from tests.lab import Dump, build
from tests.lab.truth import waits
from tests.vm.oracles.waits import sleepers
from tests.vm.waits.scenarios import CYCLES, FOUND, MADE, READ_ONCE, params

_WAITING = {
    "waits-abba": 6,
    "waits-four": 4,
    "waits-rwsem": 6,
    "waits-self": 5,
    "waits-completion": 4,
    "waits-kinds": 8,
    "waits-convoy": 201,
    "waits-rcu": 4,
}

# One of these is on the stack of a task that waits for such a thing.
_FUNCTIONS = {
    "mutex": ("__mutex_lock",),
    "rwsem": ("rwsem_down_read_slowpath", "rwsem_down_write_slowpath"),
    "percpu_rwsem": ("percpu_rwsem_wait", "percpu_down_write"),
    "rt_mutex": ("rt_mutex_slowlock", "__rt_mutex_slowlock", "rt_mutex_lock"),
    "semaphore": ("__down", "down"),
    "completion": ("wait_for_completion", "__wait_for_common"),
    "page": ("kcensus_isolate_page", "kcensus_read_disk"),
    "pipe": ("pipe_write", "anon_pipe_write"),
    "work": ("flush_work", "__flush_work"),
    "bit": ("out_of_line_wait_on_bit", "bit_wait"),
    "rcu": ("synchronize_rcu", "synchronize_rcu_normal"),
}


@pytest.fixture(scope="module", params=params(MADE))
def dump(kernel: str, request: pytest.FixtureRequest) -> Dump:
    """A dump of a guest in which our module has made tasks that wait."""
    return build(kernel, request.param)


@pytest.fixture(scope="module")
def truth(dump: Dump) -> waits.Truth:
    return waits.read(dump.truth)


def _name(comm: str) -> str:
    return comm.partition("/")[0]


def test_the_tasks_wait_in_the_cycles_that_were_made(dump: Dump, truth: waits.Truth) -> None:
    comms = {claim.pid: _name(claim.comm) for claim in truth.claims}
    cycles = sorted(sorted(comms[pid] for pid in cycle) for cycle in truth.cycles())
    assert cycles == sorted(map(sorted, CYCLES[dump.scenario]))
    assert len(truth.waits()) == _WAITING[dump.scenario]


def test_who_waits_sleeps_in_the_function_for_that(dump: Dump, truth: waits.Truth) -> None:
    still = waits.still(dump.truth)
    for pid, claim in truth.waits().items():
        assert still[pid].state == ("S" if claim.kind == "pipe" else "D"), claim
        # /proc leaves out the functions of locks, and the other list the tasks in state S.
        stack = {*still[pid].stack}
        if still[pid].state == "D":
            stack |= {*truth.blocked[pid].stack}
        assert {name.partition(".")[0] for name in stack} & {*_FUNCTIONS[claim.kind]}, claim


def test_all_blocked_tasks_are_those_of_the_module(dump: Dump, truth: waits.Truth) -> None:
    still = waits.still(dump.truth)
    blocked = {pid for pid, task in still.items() if task.state == "D"}
    assert blocked == {pid for pid, claim in truth.waits().items() if claim.kind != "pipe"}
    assert blocked <= set(truth.blocked)


def test_the_detector_names_the_owners_that_the_module_names(
    dump: Dump, truth: waits.Truth
) -> None:
    wanted = truth.waits()
    hung = {each.pid for each in truth.hung}
    assert hung <= set(wanted)
    assert len(hung) >= min(len(wanted) - 2, 4)
    for blocker in truth.blockers:
        if blocker.owner is not None:
            assert blocker.owner in truth.holders(wanted[blocker.pid].address)
    if dump.kernel == "7.3":
        assert truth.blockers


def test_the_dump_has_the_same_tasks(dump: Dump) -> None:
    program = drgn.Program()
    program.set_core_dump(dump.formats["elf"])
    program.load_debug_info(dump.debug)
    still = waits.still(dump.truth)
    blocked = {pid for pid, task in still.items() if task.state == "D"}
    assert set(sleepers(program)) == blocked
    # Ours, too, has debug info.
    assert program.variable("waits", "kcensus_waits.c").counter == len(
        waits.read(dump.truth).waits()
    ) - (2 if dump.scenario == "waits-four" else 0)


@pytest.fixture(params=["waits-rcu"])
def rcu(kernel: str, request: pytest.FixtureRequest) -> waits.Truth:
    """What a guest says in which readers hold up RCU."""
    return waits.read(build(kernel, request.param).truth)


@pytest.mark.usually("waits-rcu 7.3")
def test_the_kernel_sees_the_readers_that_the_module_names(rcu: waits.Truth, kernel: str) -> None:
    readers = {claim.pid: claim.comm for claim in rcu.claims if claim.kind == "rcu"}
    sync = {pid for pid, claim in rcu.waits().items() if claim.kind == "rcu"}
    assert [rcu.tasks[pid].comm for pid in sync] == ["rcu-sync"]
    del readers[sync.pop()]
    busy = rcu.running[1]
    assert (busy.comm, busy.stack[0]) == ("rcu-reader", "rcu_reader")
    if kernel == "5.10":  # its readers cannot be preempted
        assert readers == {busy.pid: "rcu-reader"}
        assert rcu.stalled_cpus == {1}
        return
    assert sorted(readers.values()) == ["rcu-preempted", "rcu-reader"]
    above = rcu.running[2]
    assert (above.comm, above.stack[0]) == ("rcu-above", "rcu_above")
    preempted = {pid for pid, comm in readers.items() if comm == "rcu-preempted"}
    assert preempted <= rcu.stalled <= set(readers)


@pytest.fixture(scope="module", params=params(FOUND))
def found(kernel: str, request: pytest.FixtureRequest) -> Dump:
    """A dump of a guest in which tasks wait without our module."""
    return build(kernel, request.param)


# How many tasks of a name sleep with a function on their stack.
_SLEEPERS = {
    "waits-freeze": [
        ("write", "D", "percpu_rwsem_wait", 3),
        ("make-directory", "D", "percpu_rwsem_wait", 1),
        ("fault", "D", "percpu_rwsem_wait", 1),
        ("fault-unmap", "D", "", 1),
        ("fault-ps", "D", "", 1),
        ("freeze", "S", "", 1),
    ],
    "waits-coredump": [
        ("crash-threads", "S", "pipe_write", 1),
        # On some kernels they do not count as load, as idle workers do.
        ("crash-threads", "DI", "do_exit", 3),
        ("core-sleeper", "S", "", 1),
    ],
    "waits-fuse": [
        ("make-directory", "S", "request_wait_answer", 2),
        ("make-directory", "D", "rwsem_down_write_slowpath", 4),
        ("look-up", "D", "rwsem_down_read_slowpath", 1),
        ("serve", "D", "rwsem_down_write_slowpath", 1),
        ("serve", "S", "", 1),
    ],
    "waits-futex": [
        ("pi-owner", "S", "pipe_read", 1),
        ("pi-middle", "S", "futex_lock_pi", 1),
        ("pi-last", "S", "futex_lock_pi", 1),
        ("robust-owner", "S", "pipe_read", 1),
        ("robust-wait", "S", "futex_wait", 2),
        ("normal-owner", "S", "pipe_read", 1),
        ("normal-wait", "S", "futex_wait", 2),
    ],
    "waits-log": [
        ("reserve-log", "D", "", 60),
        ("force-log", "D", "xfs_file_fsync", 1),
        ("force-log", "D", "jbd2_log_wait_commit", 1),
        ("jbd2/dm-1-8", "D", "jbd2_journal_commit_transaction", 1),
        ("join", "D", "__ext4_get_inode_loc", 1),
        ("direct-read", "D", "", 1),
        ("join", "D", "wait_transaction_locked", 3),
    ],
    "waits-healthy": [("sleepers", "S", "", 1167)],
}


def test_tasks_wait_without_the_module(found: Dump) -> None:
    read = waits.read(found.truth)
    still = read.tasks if found.scenario in READ_ONCE else waits.still(found.truth)
    blocked = read.blocked
    counts: Counter[tuple[str, str, str]] = Counter()
    for name, state, function, _ in _SLEEPERS[found.scenario]:
        for pid, task in still.items():
            stack = {*task.stack, *(blocked[pid].stack if pid in blocked else ())}
            functions = {"", *(each.partition(".")[0].removeprefix("anon_") for each in stack)}
            if task.comm == name and task.state in state and function in functions:
                counts[name, state, function] += 1
    assert counts == {(n, s, f): count for n, s, f, count in _SLEEPERS[found.scenario]}
    if found.scenario == "waits-log":
        innermost = Counter(task.stack[0] for task in still.values() if task.comm == "reserve-log")
        assert innermost["xlog_grant_head_wait"] >= 30
        # One per allocation group; a compiler may have the one in the other.
        assert innermost["xfs_buf_iowait"] + innermost["__xfs_buf_submit"] == 4
    if found.scenario == "waits-futex":
        holders = {pid: read.holders(claim.address) for pid, claim in read.waits().items()}
        names = [(read.tasks[pid].comm, read.comms(holders[pid])) for pid in holders]
        assert sorted(names) == [
            ("normal-wait", ["normal-owner"]),
            ("normal-wait", ["normal-owner"]),
            ("pi-last", ["pi-middle"]),
            ("pi-middle", ["pi-owner"]),
            ("robust-wait", ["robust-owner"]),
            ("robust-wait", ["robust-owner"]),
        ]
