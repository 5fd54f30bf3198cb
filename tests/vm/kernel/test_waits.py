# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tasks in state D wait for on real kernels, against the guest and a slow walk."""

from __future__ import annotations

from collections import Counter

import drgn
import numpy as np
import pytest
from drgn.helpers.linux.slab import find_slab_cache, slab_cache_for_each_allocated_object

from kcensus.kernel.clock import clock
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import ON_TIMERS, WaitKind
from kcensus.kernel.waiting.waits import Waits
from kcensus.kernel.xfs.buffers import buffers
from kcensus.kernel.xfs.mounts import mounts
from kcensus.sources import Target
from tests.lab import Dump, build
from tests.lab.truth import io
from tests.unit.kernel.waiting.making import blocked
from tests.vm.cases import opened
from tests.vm.iosched.cases import SCHEDULERS, STARVED, usually
from tests.vm.oracles import waits as oracle

pytestmark = usually

_IN_VARIABLES = (WaitKind.XFS_BUF, WaitKind.FOLIO, WaitKind.REQUEST)
_MODULES = ("xfs", "dm_mod", "dm_snapshot")


@pytest.fixture(scope="module", params=SCHEDULERS)
def dump(request: pytest.FixtureRequest, kernel: str) -> Dump:
    return build(kernel, request.param)


@pytest.fixture(scope="module")
def target(dump: Dump) -> Target:
    return opened(dump, *_MODULES)


@pytest.fixture(scope="module")
def found(target: Target) -> Waits:
    return blocked(Kernel(target.prog))


def guest_stacks(dump: Dump) -> dict[int, tuple[str, ...]]:
    """Functions on the stacks of tasks in state D by PID, as the guest printed them at last."""
    return {pid: task.stack for pid, task in io.read(dump.truth).tasks.items() if task.stack}


def test_the_tasks_and_stacks_are_the_guests(dump: Dump, found: Waits) -> None:
    said = guest_stacks(dump)
    # Workers of queues and writers that dirty pages again go on between the two.
    still = set(found.pid.tolist()) & set(said)
    assert len(still) >= 0.9 * max(len(found), len(said))
    same = 0
    for row in np.flatnonzero(np.isin(found.pid, list(still))).tolist():
        names = [name.removesuffix("_after_hwframe") for name in said[int(found.pid[row])]]
        # /proc leaves out the scheduler's own functions.
        same += found.stacks.functions(row)[-len(names) :] == names
    assert same >= 0.9 * len(still)


def waits_for_buffers(dump: Dump) -> bool:
    """Return whether a task waits for a buffer of XFS, by the guest's stacks; some dump has none.

    :raises AssertionError: it has none although its scenario waits until it has
    """
    stacks = guest_stacks(dump).values()
    # On 6.12, xfs_buf_iowait() is inlined; further up, it may wait for a tag instead.
    found = any(
        {"xfs_buf_lock", "xfs_buf_iowait"} & {*stack} or stack[0] == "__xfs_buf_submit"
        for stack in stacks
    )
    assert found or dump.scenario not in STARVED
    return found


def test_every_object_says_that_the_task_waits_for_it(
    dump: Dump, target: Target, found: Waits
) -> None:
    prog = target.prog
    tasks = oracle.sleepers(prog)
    assert sorted(found.pid.tolist()) == sorted(tasks)
    kinds: Counter[WaitKind] = Counter()
    for row, pid in enumerate(found.pid.tolist()):
        task = tasks[pid]
        assert int(found.task[row]) == int(task)
        if found.object[row]:
            address, type_ = int(found.object[row]), found.type[row]
            assert oracle.is_waiter(prog, type_, address, task), (pid, type_, found.function[row])
            kinds[found.kind[row]] += 1
            if type_ == "struct sbitmap_queue":
                # The guest's only disk with I/O.
                disk = drgn.Object(prog, "struct gendisk *", value=int(found.disk[row]))
                assert disk.disk_name.string_() == b"vda"
        else:
            assert found.function[row] in ON_TIMERS
        named = oracle.named(prog, task)
        if named is not None and found.kind[row] in _IN_VARIABLES:
            assert named == (found.type[row], int(found.object[row]))
    assert kinds[WaitKind.REQUEST]
    assert bool(kinds[WaitKind.XFS_BUF]) == waits_for_buffers(dump)
    assert (found.undetermined, found.contradicted, found.torn, found.missing) == (0, 0, 0, [])
    assert not found.faults


def test_ages_are_those_that_the_guest_saw(dump: Dump, target: Target, found: Waits) -> None:
    before, after = (io.read(dump.truth, which) for which in (io.FIRST, io.LAST))
    now = clock(Kernel(target.prog)).ns
    compared = 0
    for row, (pid, since) in enumerate(
        zip(found.pid.tolist(), found.since_ns.tolist(), strict=True)
    ):
        if pid not in before.tasks or pid not in after.tasks:
            continue
        counts = [
            {key: value for key, value in each.tasks[pid].status.items() if "ctxt_" in key}
            for each in (before, after)
        ]
        if counts[0] != counts[1]:
            # It ran after the first look at it.
            assert since < now - before.monotonic_ns
        elif since < now - after.monotonic_ns:
            # It slept from look to look and ran afterwards. blk_wait_io() and blk_io_schedule()
            # return after half the time of the hung task check, 60 s, and then wait again.
            assert found.kind[row] is WaitKind.REQUEST or found.function[row] in ON_TIMERS
            if found.kind[row] is WaitKind.REQUEST:
                assert found.since_ns.max() > 55e9
        else:
            compared += 1
    assert compared >= 0.5 * len(found)
    assert (found.since_ns < 600e9).all()


def test_buffers_are_those_of_a_slow_walk(dump: Dump, target: Target, found: Waits) -> None:
    kernel = Kernel(target.prog)
    known, file_systems = buffers(kernel), mounts(kernel)
    assert len(file_systems) == 1
    cache = find_slab_cache(target.prog, "xfs_buf")
    walk = slab_cache_for_each_allocated_object(cache, "struct xfs_buf")
    expected = {int(each) for each in walk if each.b_target and any(oracle.waiters(each[0]))}
    assert set(known.address.tolist()) == expected
    assert bool(expected) == waits_for_buffers(dump)
    assert known.report.complete
    assert not known.faults
    assert (np.unique(known.device) == file_systems.log_device).all()
    row = known.rows(found.object[[kind is WaitKind.XFS_BUF for kind in found.kind]])
    assert (row >= 0).all()
    # Who waits for its lock, or for its I/O, waits for a locked one.
    for address in known.address[row].tolist():
        assert drgn.Object(target.prog, "struct xfs_buf", address=address).b_sema.count == 0


@pytest.mark.parametrize("scenario", STARVED)
def test_a_starved_write_has_sleepers_behind_it(kernel: str, scenario: str) -> None:
    found = blocked(Kernel(opened(build(kernel, scenario), *_MODULES).prog))
    rows = [row for row, name in enumerate(found.function) if name == "xfs_buf_lock"]
    assert rows
    assert {found.evidence[row] for row in rows} == {"xfs_buf.b_sema"}
    assert {found.entry[row] for row in rows} == {"openat"}
    assert min(found.since_ns[rows]) > 3e9


@pytest.mark.usually("7.3")
def test_without_debug_info_of_xfs(kernel: str) -> None:
    found = blocked(Kernel(opened(build(kernel, "iosched-starved")).prog))
    assert found.missing[:2] == ["XFS buffers", "XFS logs"]
    # Stacks lead to the semaphore in the buffer, and debug info of direct I/O is the kernel's.
    locks = [row for row, name in enumerate(found.function) if name == "xfs_buf_lock"]
    assert {found.kind[row] for row in locks} == {WaitKind.XFS_BUF}
    # Small ones are no struct iomap_dio on 7.3.
    assert sum(each in ("struct iomap_dio", "struct completion") for each in found.type) >= 10


@pytest.mark.usually("5.10", "7.3")
def test_snapshots_and_writeback(kernel: str) -> None:
    target = opened(build(kernel, "kcopyd-waiting"), *_MODULES)
    prog = target.prog
    found = blocked(Kernel(prog))
    assert found.undetermined == 0
    tasks = oracle.sleepers(prog)
    for row, pid in enumerate(found.pid.tolist()):
        assert oracle.is_waiter(prog, found.type[row], int(found.object[row]), tasks[pid])
    by_function = Counter(found.function)
    assert by_function["wait_for_in_progress"] >= 3
    folios = [row for row, kind in enumerate(found.kind) if kind is WaitKind.FOLIO]
    assert len(folios) == 1
    # It is written to the block device itself.
    assert found.device[folios[0]] >> 20 in (252, 253, 254)
