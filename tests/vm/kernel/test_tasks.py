# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks of real kernels and their stacks, against drgn's own walk and unwinder."""

from __future__ import annotations

import numpy as np
import pytest
from drgn import Object
from drgn.helpers.linux.pid import for_each_task

from kcensus.api.stacks import stacks as task_stacks
from kcensus.arch import architecture_of
from kcensus.arch.aarch64 import ARCHITECTURE as AARCH64
from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.registers import UNKNOWN, arguments, user_registers
from kcensus.kernel.tasks.stacks import stacks
from kcensus.kernel.tasks.tasks import Tasks, tasks
from kcensus.kernel.waiting.frames import _unwound, interrupted_in
from kcensus.sources import Target
from tests.lab import Dump, build
from tests.vm.cases import opened
from tests.vm.oracles import waits as oracle

pytestmark = pytest.mark.machines

_CODE = 0xFFFF_8000_0000_0000
"""No code of a kernel has a lower address."""
_LEAF = "__arch_clear_user"
"""A function of arm64 without a frame record, in assembler."""


@pytest.fixture(scope="module")
def dump(kernel: str) -> Dump:
    """Tasks that have waited for a snapshot since 12 s and more, with modules on their stacks."""
    return build(kernel, "kcopyd-waiting")


@pytest.fixture(scope="module")
def target(dump: Dump) -> Target:
    return opened(dump)


@pytest.fixture(scope="module")
def known(target: Target) -> Tasks:
    return tasks(Kernel(target.prog))


def test_every_task_equals_the_slow_walk(target: Target, known: Tasks) -> None:
    walked = {int(task): task for task in for_each_task(target.prog) if task.pid}
    assert set(known.address.tolist()) == set(walked)
    assert known.damaged == 0
    assert not known.faults
    assert known.counted == len(known)
    for row, address in enumerate(known.address.tolist()):
        task = walked[address]
        assert known.pid[row] == task.pid
        assert known.comm[row] == task.comm.string_().decode()
        assert known.state[row] == oracle.state(task)
        assert known.is_on_cpu[row] == bool(task.on_cpu)
    assert known.rows(known.address).tolist() == list(range(len(known)))


def test_every_stack_equals_drgns(target: Target, dump: Dump, known: Tasks) -> None:
    # Without the debug info of modules: their functions are unwound and named nevertheless.
    rows = np.flatnonzero(~known.is_on_cpu)
    faults = Faults()
    found = stacks(Kernel(target.prog), known, rows, faults)
    whole = opened(dump, "dm_mod", "dm_snapshot")
    in_modules = 0
    for stack, row in enumerate(rows.tolist()):
        task = Object(whole.prog, "struct task_struct *", int(known.address[row]))
        places = oracle.places(whole.prog, task)
        assert found.pc[found.frames(stack)].tolist() == places, known.comm[row]
        names = [whole.prog.symbol(place - 1).name for place in places]
        assert found.functions(stack) == names
        in_modules += "dm_snapshot" in found.modules_of(stack)
    assert in_modules >= 3
    assert not found.is_cut.any()
    assert not faults
    assert len(rows) > 60


@pytest.mark.kernels("7.3", "7.3-arm64")
@pytest.mark.usually
def test_stacks_of_preempted_tasks_equal_drgns(kernel: str) -> None:
    target = opened(build(kernel, "preempted"))
    known = tasks(Kernel(target.prog))
    rows = np.flatnonzero(~known.is_on_cpu & ~known.has_exited)
    faults = Faults()
    found = stacks(Kernel(target.prog), known, rows, faults)
    preempted = 0
    for stack, row in enumerate(rows.tolist()):
        task = Object(target.prog, "struct task_struct *", int(known.address[row]))
        # On x86-64, drgn may go on in the program, at what its registers happen to hold.
        places = [each for each in oracle.places(target.prog, task) if each >= _CODE]
        own, names = found.pc[found.frames(stack)].tolist(), found.functions(stack)
        if _LEAF in names and own != places:
            # drgn has no unwind information of it, and takes the caller's frame record for its own.
            leaf = names.index(_LEAF)
            assert names[leaf : leaf + 2] == [_LEAF, "read_zero"]
            del own[leaf + 1]
        assert own == places, known.comm[row]
        if "preempt_schedule_irq" in names:
            preempted += 1
            assert interrupted_in(names) not in ("", "preempt_schedule_irq")
    assert preempted >= 2
    assert not found.is_cut.any()
    assert not faults


def test_stacks_of_running_tasks_hold_drgns(target: Target, known: Tasks) -> None:
    kernel, is_arm64 = Kernel(target.prog), architecture_of(target.prog.platform) == AARCH64
    for row in np.flatnonzero(known.is_on_cpu).tolist():
        task = Object(target.prog, "struct task_struct *", int(known.address[row]))
        places = oracle.places(target.prog, task)
        own = [place for place, _ in _unwound(kernel, int(known.address[row]))]
        if is_arm64:
            # drgn may lack the caller of an interrupted function.
            rest = iter(own)
            assert all(place in rest for place in places), known.comm[row]
        else:
            # A stack of interrupts ends there.
            assert own == places[: len(own)], known.comm[row]


def test_a_task_in_user_space_is_not_unreadable() -> None:
    """The dump was taken while init of the guest ran, and the kernel did not."""
    target = opened(build("5.10", "mixed"))
    frame = target.prog.stack_trace(1)[0]
    assert frame.pc < _CODE
    found = task_stacks(target, 1)
    assert (found, found.reasons) == ({1: []}, {1: "running in user space"})
    assert repr(found).endswith("(running in user space)")


def test_registers_of_programs(target: Target, known: Tasks) -> None:
    kernel, faults = Kernel(target.prog), Faults()
    found = user_registers(kernel, known.stack, faults)
    assert set(found.row.tolist()) == set(np.flatnonzero(~known.is_kthread).tolist())
    passed = arguments(kernel, known.stack, 0, faults)
    assert (passed[known.is_kthread] == UNKNOWN).all()
    assert not faults


def test_ages_of_waits(known: Tasks) -> None:
    waiting = known.is_blocked
    assert waiting.sum() >= 4
    age = known.off_cpu_ns / 1e9
    # The scenario starts its writers one after the other, each 1.5 s after the one before, and
    # waits at least 10 s after the last one.
    assert (age[waiting] > 5).all()
    assert (age[waiting] < 60).all()
    assert (known.arrived_ns[waiting] >= known.off_cpu_ns[waiting]).all()
    assert (known.arrived_ns - known.off_cpu_ns)[waiting].max() < 1e9
    running = known.is_on_cpu
    assert (known.off_cpu_ns[running] < 1e9).all()
