# SPDX-License-Identifier: LGPL-2.1-or-later
"""Waits of real guests with old kernels, against drgn's helpers and the stacks that they printed.

The capsules have what the readers need of their dumps, and no debug info: see ``record.py``.
"""

from __future__ import annotations

import random
import re
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import drgn
import numpy as np
import pytest
from drgn import Object
from drgn.helpers.linux.locking import mutex_owner

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.engine.gather import Gathered, gather
from kcensus.engine.layout import Layout, layout
from kcensus.engine.memory import Faults, Memory, Words
from kcensus.kernel.arch.x86_64 import unwinder as unwinder_module
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks import tasks as tasks_module
from kcensus.kernel.tasks.functions import ON_TIMERS, WaitKind
from kcensus.kernel.tasks.tasks import tasks
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.cycles import cycles
from kcensus.kernel.waiting.finders.copied.copies import LIMIT
from kcensus.kernel.waiting.finders.io.devices import DISK
from kcensus.kernel.waiting.finders.io.direct_io import IO
from kcensus.kernel.waiting.finders.io.requests import REQUEST, TAGS
from kcensus.kernel.waiting.finders.io.xfs_buffers import BUFFER_IO
from kcensus.kernel.waiting.finders.locks.locks import MUTEX
from kcensus.kernel.waiting.graph import HELD, SERVED, TASK, WAITS, EdgeKind, NodeKind
from kcensus.kernel.waiting.objects import reading as reading_module
from kcensus.kernel.waiting.reader import Waiting, waiting
from kcensus.kernel.waiting.waits import Waits
from kcensus.kernel.xfs import buffers as buffers_module
from kcensus.kernel.xfs import mounts as mounts_module
from kcensus.kernel.xfs.buffers import buffers
from kcensus.kernel.xfs.mounts import mounts
from kcensus.results import Result
from kcensus.sources import Target, open_target
from tests.sample.block.poked import Poked
from tests.unit.kernel.waiting.making import blocked
from tests.unit.kernel.waiting.record import DATA
from tests.vm.oracles import waits as oracle

pytestmark = pytest.mark.ends

_CAPSULE = DATA / "cfq-waits.capsule"
_TASK = re.compile(r"^DTASK (\d+) (\S+)\n((?:\[<0>\] .*\n)+)", re.MULTILINE)
_FRAME = re.compile(r"^\[<0>\] ([\w.]+)\+", re.MULTILINE)
_DISK = 8 << 20
"""sda is 8:0."""


@pytest.fixture(scope="module")
def cfq() -> Kernel:
    return Kernel(open_target(str(_CAPSULE)).prog)


@pytest.fixture(scope="module")
def found(cfq: Kernel) -> Waits:
    return blocked(cfq)


def rows(found: Waits, *kinds: WaitKind) -> list[int]:
    return [row for row, kind in enumerate(found.kind) if kind in kinds]


def test_the_tasks_are_those_that_the_guest_printed(cfq: Kernel, found: Waits) -> None:
    text = (DATA / "cfq-sleepers.txt").read_text()
    guest = {int(pid): (comm, _FRAME.findall(lines)) for pid, comm, lines in _TASK.findall(text)}
    every = tasks(cfq)
    assert len(every) == every.counted == 69
    assert len(guest) == every.is_blocked.sum() == 15
    assert sorted(found.pid.tolist()) == sorted(guest)
    for row, pid in enumerate(found.pid.tolist()):
        comm, names = guest[pid]
        assert comm.startswith(found.comm[row])
        # The guest's list leaves out the scheduler, and calls a label by its own name.
        names = [name.removesuffix("_after_hwframe") for name in names]
        assert found.stacks.functions(row)[-len(names) :] == names
    assert not found.stacks.is_cut.any()


def test_what_they_wait_for(found: Waits) -> None:
    kinds = Counter(kind.value for kind in found.kind)
    assert kinds == {"request": 8, "throttle": 3, "xfs_buf": 2, "tag": 1, "lock": 1}
    assert Counter(zip(found.function, found.entry, found.evidence, strict=True)) == {
        ("iomap_dio_rw", "pread64", "iomap_dio.submit.waiter"): 6,
        ("iomap_dio_rw", "pwrite64", "iomap_dio.submit.waiter"): 2,
        ("balance_dirty_pages", "pwrite64", "frame balance_dirty_pages"): 2,
        ("balance_dirty_pages", "write", "frame balance_dirty_pages"): 1,
        ("xfs_buf_iowait", "xfsaild", "xfs_buf.b_iowait"): 1,
        ("xfs_buf_iowait", "write", "xfs_buf.b_iowait"): 1,
        ("get_request", "wb_workfn", "request_list.wait"): 1,
        ("xfs_reclaim_inodes_ag", "write", "mutex.wait_list"): 1,
    }
    assert found.is_proven.sum() == 12
    # balance_dirty_pages() sleeps on a timer.
    assert (found.undetermined, found.contradicted, found.torn) == (0, 0, 0)
    assert found.missing == []
    assert not found.faults


def test_where_it_is(found: Waits) -> None:
    on_disk = rows(found, WaitKind.REQUEST, WaitKind.XFS_BUF)
    assert set(found.device[on_disk].tolist()) == {_DISK}
    assert len(set(found.disk[on_disk].tolist())) == 1
    buffer = rows(found, WaitKind.XFS_BUF)
    # Two clusters of inodes: the first one of the file system is read, the other one written.
    assert found.sector[buffer].tolist() == [128, 204928]
    assert found.sectors[buffer].tolist() == [32, 32]
    direct = rows(found, WaitKind.REQUEST)
    assert len(set(found.inode[direct].tolist())) == 1
    assert (found.offset[direct] >= 0).all()
    seconds = dict(zip(found.pid.tolist(), (found.since_ns / 1e9).tolist(), strict=True))
    # The guest's load ran for 40 s: these wait since its beginning.
    for pid in (7, 1048, 1049):
        assert seconds[pid] == pytest.approx(40.85, abs=0.1)
    # Each of them waited for the one before.
    assert seconds[1049] > seconds[1048] > seconds[7]
    assert seconds[1032] == pytest.approx(11.96, abs=0.01)
    assert all(0 <= age < 19 for pid, age in seconds.items() if 1036 <= pid <= 1046)


@pytest.mark.parametrize("clock", ["clock", "clock_task"])
def test_one_damaged_clock_does_not_age_all_tasks(
    cfq: Kernel, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    def four_cpus(memory: Memory, addresses: Words, members: Layout, faults: Faults) -> Gathered:
        read = gather(memory, addresses, members, faults)
        if "clock_task" not in members:
            return read
        columns = {name: np.repeat(column, 4) for name, column in read.columns.items()}
        columns["cpu"] = np.arange(4)
        columns[clock][3] |= np.uint64(1 << 55)
        return Gathered(columns, np.ones(4, np.bool_), np.ones(4, np.bool_))

    sound = tasks(cfq)
    monkeypatch.setattr(tasks_module, "gather", four_cpus)
    every = tasks(Kernel(open_target(str(_CAPSULE)).prog))
    assert (sound.bad_clocks, every.bad_clocks) == (0, 1)
    # All tasks are on the first one.
    assert every.off_cpu_ns.tolist() == sound.off_cpu_ns.tolist()
    assert every.arrived_ns.tolist() == sound.arrived_ns.tolist()


def clocks_of(*readings: tuple[int, int]) -> tasks_module._Clocks:
    clocks = tasks_module._Clocks.__new__(tasks_module._Clocks)
    clock, task = (np.array(readings, np.uint64) * np.uint64(10**9)).T
    columns = {"clock": clock, "clock_task": task, "cpu": np.arange(len(clock))}
    every = np.ones(len(clock), np.bool_)
    clocks._readings = Gathered(columns, every, every)
    clocks._sound = np.ones(len(clock), np.bool_)
    return clocks


@pytest.mark.parametrize(
    ("readings", "stamp", "damaged", "age"),
    [
        # An idle CPU's clock stopped long ago: a task confirms the only one that goes on.
        ([(1000, 1000), (100, 100)], 990, 0, 10),
        ([(1000, 1000), (100, 100)], 90, 1, 10),
        # Two that are damaged do not confirm each other.
        ([(100, 100), (9000, 9000), (8000, 8000)], 90, 2, 10),
        # The only one is taken as it is.
        ([(9000, 9000)], 90, 0, 8910),
    ],
)
def test_clocks_are_confirmed(
    readings: list[tuple[int, int]], stamp: int, damaged: int, age: int
) -> None:
    clocks, stamps = clocks_of(*readings), np.array([stamp], np.uint64) * np.uint64(10**9)
    clocks.judge(stamps)
    assert clocks.damaged == damaged
    assert clocks.since(stamps, np.array([0]), "clock").tolist() == [age * 10**9]


def test_buffers_and_log(cfq: Kernel, found: Waits) -> None:
    known, file_systems = buffers(cfq), mounts(cfq)
    # Only buffers with a waiter are kept, 2 of 48.
    objects = found.object[rows(found, WaitKind.XFS_BUF)]
    assert known.address.tolist() == np.unique(objects).tolist()
    assert len(known) == 2
    assert file_systems.log_device.tolist() == [_DISK]


def with_words(place: int, *values: int) -> Kernel:
    target = open_target(str(_CAPSULE))
    changed = Poked(target.prog)
    for at, value in enumerate(values):
        changed.word(place + 8 * at, value)
    return Kernel(target.prog)


def layout_without(word: str) -> Callable[..., Layout]:
    """The function for a kernel without types that have a word in their names."""

    def lacking(prog: drgn.Program, type_: object, *args: Any) -> Layout:
        if word in str(type_):
            raise LookupError(f"no {type_}")
        return layout(prog, type_, *args)

    return lacking


@pytest.mark.parametrize("target", [0, 0xFFFF_8880_0000_1234])
def test_a_damaged_return_address_cuts_a_stack(found: Waits, target: int) -> None:
    row = found.pid.tolist().index(7)
    frames = found.stacks.frames(row)
    # The return address of a frame is right below the stack pointer of its caller.
    damaged = blocked(with_words(int(found.stacks.sp[frames][5]) - 8, target))
    assert damaged.stacks.is_cut.tolist() == [each == row for each in range(len(found))]
    assert damaged.stacks.functions(row) == found.stacks.functions(row)[:5]


def test_stacks_before_there_was_a_frame_of_inactive_tasks(
    cfq: Kernel, found: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to v4.8, a task that sleeps has the bp of __schedule() at its stack pointer."""
    prog = open_target(str(_CAPSULE)).prog
    known, saved = tasks(cfq), prog.type("struct inactive_task_frame")
    for task in known.rows(found.task).tolist():
        sp = int(known.sp[task])
        content = prog.read(sp + drgn.offsetof(saved, "bp"), 8)

        def read(address: int, count: int, offset: int, _: bool, content: bytes = content) -> bytes:
            return content[offset : offset + count]

        prog.add_memory_segment(sp, 8, read, False)

    inside = int(found.stacks.pc[0])
    kinds = drgn.SymbolBinding.GLOBAL, drgn.SymbolKind.FUNC
    schedule = drgn.Symbol("__schedule", inside - 1, 1, *kinds)
    prog.register_symbol_finder(
        "older", lambda _, name, *__: [schedule] if name == "__schedule" else [], enable_index=0
    )
    monkeypatch.setattr(unwinder_module, "layout", layout_without("inactive_task_frame"))
    old = blocked(Kernel(prog))
    assert not old.stacks.is_cut.any()
    for row in range(len(found)):
        assert old.stacks.functions(row) == found.stacks.functions(row)
    assert old.missing == []
    assert old.object.tolist() == found.object.tolist()


def test_the_disk_of_a_node_is_not_the_one_that_it_is_on(found: Waits) -> None:
    row = rows(found, WaitKind.REQUEST)[0]
    assert found.disk[row]
    node = blocked(with_words(int(found.inode[row]), stat.S_IFBLK))
    assert node.inode[row] == found.inode[row]
    # It is for device 0:0, as i_rdev of a file is 0.
    assert (node.disk[row], node.device[row]) == (0, 0)


def test_a_buffer_of_several_maps_is_where_its_first_map_says(cfq: Kernel, found: Waits) -> None:
    row = rows(found, WaitKind.XFS_BUF)[1]
    type_, buffer = cfq.prog.type("struct xfs_buf"), int(found.object[row])
    # Such a buffer has its maps elsewhere: here, where it has its own otherwise unused words.
    place = buffer + drgn.offsetof(type_, "b_maps")
    own = drgn.offsetof(type_, "__b_map")
    assert own == drgn.offsetof(type_, "b_maps") + 8
    elsewhere = buffer + own + 8
    several = blocked(with_words(place, elsewhere, 0, 4711, 8))
    row = several.pid.tolist().index(int(found.pid[row]))
    assert (several.sector[row], several.sectors[row]) == (4711, 8)
    # Where the maps are unreadable, so is the place.
    several = blocked(with_words(place, 1 << 46, 0))
    assert several.sector[row] == -1


def test_a_kernel_without_xfs_has_all_that_is_needed(
    cfq: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(open_target(str(_CAPSULE)).prog)
    blocks = super_blocks(kernel)
    types = [type_.replace("xfs", "ext4") for type_ in blocks.type]
    monkeypatch.setattr(mounts_module, "super_blocks", lambda _: replace(blocks, type=types))
    for module in (mounts_module, buffers_module):
        monkeypatch.setattr(module, "layout", layout_without("xfs"))
    none = blocked(kernel)
    assert none.missing == []
    assert (none.torn, len(buffers(kernel)), len(mounts(kernel))) == (0, 0, 0)
    assert len(none) == 15


def test_a_lock_without_a_list_costs_only_its_task(
    found: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since v7.1, locks have no list: what looks like one is not theirs."""
    monkeypatch.setattr(reading_module, "lock_type", lambda _: "struct list_head")
    without = blocked(Kernel(open_target(str(_CAPSULE)).prog))
    assert without.missing == []
    (row,) = np.flatnonzero(without.object != found.object).tolist()
    assert (found.evidence[row], without.object[row]) == ("mutex.wait_list", 0)


@pytest.mark.parametrize("seed", range(12))
def test_damage_costs_only_what_it_hits(found: Waits, seed: int) -> None:
    """Where a task, stack, buffer or table is damaged, the rest is found nevertheless."""
    target = open_target(str(_CAPSULE))
    choice = random.Random(seed)
    row = choice.choice([row for row, address in enumerate(found.object.tolist()) if address])
    task, object_ = int(found.task[row]), int(found.object[row])
    place = choice.choice([task, object_, int(found.stacks.sp[found.stacks.frames(row)][3])])
    size = choice.choice([64, 256])
    content = choice.choice([None, bytes(size), choice.randbytes(size)])

    def read(address: int, count: int, offset: int, physical: bool) -> bytes:
        if content is None:
            raise drgn.FaultError("page excluded", address)
        return content[offset : offset + count]

    target.prog.add_memory_segment(place & ~63, size, read, False)
    # Another one may read by physical address, where there is no damage.
    kernel = Kernel(target.prog)
    damaged = blocked(kernel)
    # What the damage hits may be another object, too: the next one in the slab, a list's neighbour.
    kept = set(zip(damaged.pid.tolist(), damaged.object.tolist(), strict=True))
    lost = set(zip(found.pid.tolist(), found.object.tolist(), strict=True)) - kept
    # An unreadable page has all eight structures of direct I/O.
    assert len(lost) <= (8 if content is None else 3)
    # Something says so, except where a task's own state is overwritten: it runs, then.
    lost = {(pid, each) for pid, each in lost if content is None or pid in damaged.pid}
    every = tasks(kernel)
    said = [damaged.torn, damaged.missing, damaged.faults, not damaged.report.complete]
    said += [damaged.contradicted, damaged.undetermined, damaged.stacks.is_cut.any()]
    assert not lost or any([*said, every.damaged, every.faults]), lost


_CFQ, _OOPS = "cfq-waits", "oops-waits"
_NAMES = (_CFQ, _OOPS)
_SERVED = [(SERVED, REQUEST, 0), (SERVED, DISK, 0)]


@cache
def opened(name: str) -> tuple[Target, Waiting]:
    target = open_target(str(DATA / f"{name}.capsule"))
    return target, waiting(Kernel(target.prog))


@cache
def answer(name: str) -> Result:
    return Context.of(opened(name)[0]).run(analyses()["waits"])


def following(found: Waiting, pid: int) -> list[tuple[EdgeKind, NodeKind, int]]:
    """What a task waits for, what that is held by, and so on: PIDs of tasks, else 0."""
    graph, chain = found.graph, []
    (row,) = (found.tasks.pid == pid).nonzero()[0].tolist()
    node = graph.index[TASK, int(found.tasks.address[row])]
    while graph.following[node]:
        (edge,) = graph.following[node]
        node = int(graph.target[edge])
        row = int(found.tasks.rows(graph.address[[node]])[0])
        own = int(found.tasks.pid[row]) if row >= 0 else 0
        chain.append((graph.edge[edge], graph.kind[node], own))
    return chain


@pytest.mark.parametrize("name", _NAMES)
def test_each_task_in_state_d_waits_for_what_has_it_as_a_waiter(name: str) -> None:
    target, found = opened(name)
    sleepers = oracle.sleepers(target.prog)
    rows = {pid: row for row, pid in enumerate(found.waits.pid.tolist())}
    blocked = found.tasks.pid[found.tasks.is_blocked].tolist()
    assert sorted(sleepers) == sorted(blocked)
    for pid, task in sleepers.items():
        type_, object_ = found.waits.type[rows[pid]], int(found.waits.object[rows[pid]])
        if object_:
            assert oracle.is_waiter(target.prog, type_, object_, task), pid
        else:
            assert found.waits.function[rows[pid]] in ON_TIMERS
    assert (found.missing, found.faults.total(), found.unreadable_code) == ([], 0, 0)
    # The owner of the mutex is drgn's.
    graph = found.graph
    (node,) = (node for node, kind in enumerate(graph.kind) if kind is MUTEX)
    lock = Object(target.prog, "struct mutex", address=int(graph.address[node]))
    (edge,) = graph.following[node]
    assert graph.address[graph.target[edge]] == int(mutex_owner(lock.address_of_()))
    # There is no deadlock.
    assert cycles(graph) == []
    result = answer(name)
    assert result.amount("deadlocks") == result.amount("deadlocks_possible") == 0
    assert result.amount("tasks_undetermined") == 0
    assert all(not check.difference for check in result.checks)


def test_a_chain_to_a_request() -> None:
    """Inodes are reclaimed under a mutex, whose owner writes a cluster of them."""
    found = opened(_CFQ)[1]
    locked = [(WAITS, MUTEX, 0), (HELD, TASK, 1048), (WAITS, BUFFER_IO, 0)]
    assert following(found, 1049) == locked + _SERVED
    for pid in range(1036, 1044):
        assert following(found, pid) == [(WAITS, IO, 0), *_SERVED]
    assert following(found, 7) == [(WAITS, TAGS, 0), (SERVED, DISK, 0)]
    assert answer(_CFQ).gaps == []
    (finding,) = answer(_CFQ).findings
    assert (finding.id, finding.figures["tasks"].value) == ("waits-io:sda", 15)


def test_a_mutex_whose_owner_died_in_an_oops() -> None:
    found = opened(_OOPS)[1]
    assert following(found, 999) == [(WAITS, MUTEX, 0), (HELD, TASK, 0)]
    # The throttle of kcopyd is a semaphore of the snapshot.
    assert following(found, 280) == [(WAITS, LIMIT, 0)]
    gaps = {gap.what: gap.count for gap in answer(_OOPS).gaps}
    assert gaps == {"tasks": 1}
    limit, finding = answer(_OOPS).findings
    assert (limit.id, limit.tasks) == ("waits-copies:snap2", frozenset({280}))
    assert finding.kind == "waits-exited"
