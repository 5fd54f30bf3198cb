# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages of the kernel log: soft lockups are no oopses, and tasks count once."""

from __future__ import annotations

from unittest import mock

import pytest

from kcensus.analyses.waits.figures import log as of_log
from kcensus.kernel.kernel import Kernel
from tests.unit.fakekernel import FakeKernel

_COMM = "CPU: 1 UID: 0 PID: 110 Comm: spin-holder Tainted: G           OE       7.3.4 #1"
_PLACE = "RIP: 0010:spin_holder+0x5e/0x70 [kcensus_spin]"
_LOCKUP = "watchdog: BUG: soft lockup - CPU#1 stuck for 3s! [spin-holder:110]"


def _read(*lines: str) -> of_log.Log:
    stamped = [(float(at), line) for at, line in enumerate(lines)]
    with mock.patch("kcensus.kernel.log.records", return_value=stamped):
        return of_log.kernel_log(Kernel(FakeKernel().prog))


def test_a_soft_lockup_kills_no_task() -> None:
    log = _read(_LOCKUP, "Modules linked in: x", _COMM, "Tainted: [O]=OOT_MODULE", _PLACE)
    assert log.oopses == []
    assert log.lockups == {110: (0.0, 3)}
    assert log.seen == {110: (4.0, "spin_holder [kcensus_spin]")}


_HARD = "watchdog: Watchdog detected hard LOCKUP on cpu 1"


def test_a_hard_lockup_names_the_task_of_its_cpu() -> None:
    log = _read(_LOCKUP, _COMM, _HARD, "Modules linked in: x", "irq event stamp: 0", _COMM, _PLACE)
    assert log.lockups == {110: (2.0, 10)}
    assert log.hard == {110}
    assert log.seen == {110: (6.0, "spin_holder [kcensus_spin]")}
    # Another report, of a soft lockup, is later.
    assert _read(_HARD, _COMM, _LOCKUP).hard == frozenset()


def test_a_task_of_another_cpu_has_no_hard_lockup() -> None:
    other = _COMM.replace("CPU: 1", "CPU: 2").replace("110", "777")
    assert _read(_HARD, other).hard == frozenset()
    assert _read(_HARD, other, _COMM).hard == {110}


def test_a_panic_names_the_task_of_another_cpu() -> None:
    log = _read(_HARD, "Kernel panic - not syncing: Hard LOCKUP", _COMM)
    assert (log.lockups, log.hard) == ({}, frozenset())


@pytest.mark.parametrize(
    "line",
    [
        "Oops: 0002 [#1] PREEMPT SMP",
        "kernel BUG at mm/slub.c:1!",
        "general protection fault, probably for non-canonical address 0x1: 0000 [#1] SMP",
        "BUG: unable to handle page fault for address: 0000000000001000",
        "BUG: kernel NULL pointer dereference, address: 0000000000000000",
        "divide error: 0000 [#1] SMP",
    ],
)
def test_an_oops_kills_its_task(line: str) -> None:
    assert _read(line, _COMM).oopses == ["spin-holder (PID 110)"]


@pytest.mark.parametrize(
    "line",
    [
        "BUG: workqueue lockup - pool cpus=1 node=0 flags=0x0 nice=0 stuck for 35s!",
        "BUG: sleeping function called from invalid context at mm/slab.h:1",
        "WARNING: kernel/workqueue.c:5938 at __alloc_workqueue+0x6be/0x7a0, CPU#1: init/1",
        "NMI backtrace for cpu 1",
    ],
)
def test_a_warning_kills_no_task(line: str) -> None:
    assert _read(line, _COMM).oopses == []


def test_a_task_that_is_reported_again_counts_once() -> None:
    line = "INFO: task spin-behind:107 blocked for more than {} seconds."
    log = _read(line.format(1), line.format(2), line.format(3))
    assert (log.hung, log.names) == ({(107, "spin-behind"): 3}, {107: "spin-behind"})


def test_tasks_with_the_same_pid_are_two() -> None:
    line = "INFO: task {}:107 blocked for more than {} seconds."
    log = _read(line.format("first", 120), line.format("second", 60), line.format("second", 90))
    assert (log.hung, log.names) == ({(107, "first"): 120, (107, "second"): 90}, {107: "second"})
