# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks of the tasks of a finding."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kcensus.api.frames import MIN_ADDRESS
from kcensus.api.rows import Place, addresses_of
from kcensus.api.source import Readable, context_of
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.symbols import described, symbols_of
from kcensus.kernel.tasks.tasks import Tasks
from kcensus.kernel.tasks.tasks import tasks as all_tasks
from kcensus.kernel.waiting.frames import runnable_stacks, running_frames, runs_program
from kcensus.results import Finding
from kcensus.text import printable


class TaskStacks(dict[int, list[str]]):
    """Functions by PID, the innermost first; empty where there is no readable stack."""

    def __init__(
        self, stacks: dict[int, list[str]], comms: dict[int, str], reasons: dict[int, str]
    ) -> None:
        super().__init__(stacks)
        self.comms = comms
        """Names of the tasks by PID, printable."""
        self.reasons = reasons
        """Why there are no functions, by PID."""

    def __repr__(self) -> str:
        """Return the stacks as the kernel prints them, a block for each task."""
        return "\n".join(
            "\n    ".join(
                (f"{self.comms[pid]} ({pid}):", *(functions or [f"({self.reasons[pid]})"]))
            )
            for pid, functions in self.items()
        )


def stacks(source: Readable, tasks: Finding | Place | Iterable[Place]) -> TaskStacks:
    """Return the kernel stacks of the tasks of a finding, or of any tasks.

    They are unwound without the debug info of functions, so they have neither lines nor inlined
    functions; ``prog.stack_trace(pid)`` has both with the DWARF of the kernel's vmlinux, and
    returns frames that are no callers without it.

    >>> import kcensus
    >>> report = kcensus.report("sample-waits")
    >>> finding = next(each for each in report.findings if each.id.startswith("waits-deadlock"))
    >>> stacks = kcensus.stacks("sample-waits", finding)
    >>> len(stacks), {functions[0] for functions in stacks.values()}
    (4, {'__schedule'})

    :param source: a drgn program, a target of :func:`kcensus.open_target`, or a path or name
    :param tasks: a finding with :attr:`~kcensus.results.Finding.tasks`; a PID, a ``struct
        task_struct *``, or several, such as the column ``pid`` or ``address`` of a table
    :return: functions by PID, the innermost first, with their modules: ``name [module]``; where
        there are none, ``reasons`` has why: the task runs in user space, has exited, or its stack
        or the registers of its CPU are unreadable
    :raises ValueError: the finding names no tasks
    :raises LookupError: there is no such task, or the debug info lacks a type
    """
    kernel = context_of(source).kernel
    found = all_tasks(kernel)
    if isinstance(tasks, Finding):
        if not tasks.tasks:
            raise ValueError(f"finding {tasks.id} names no tasks")
        tasks = sorted(tasks.tasks)
    wanted = addresses_of(tasks)  # PIDs are smaller than any address
    rows = np.flatnonzero(np.isin(found.pid, wanted) | np.isin(found.address, wanted))
    known = {*found.pid[rows].tolist(), *found.address[rows].tolist()}
    missing = [place for place in wanted.tolist() if place not in known]
    if missing:
        is_pid = missing[0] < MIN_ADDRESS
        raise LookupError(
            f"there is no task {missing[0]}" if is_pid else f"there is no task at {missing[0]:#x}"
        )
    unwound = runnable_stacks(kernel, found, rows)
    symbols = symbols_of(kernel)
    functions = {}
    for stack, row in enumerate(rows.tolist()):
        if found.is_on_cpu[row]:
            running = running_frames(kernel, int(found.address[row]))
            names = [described(*symbols(inside)) for _, inside in running]
        else:
            names = unwound.described(stack)
        functions[int(found.pid[row])] = [printable(name) for name in names]
    comms = {int(found.pid[row]): printable(found.comm[row]) for row in rows.tolist()}
    reasons = {
        pid: _reason(kernel, found, row)
        for row in rows.tolist()
        if not functions[pid := int(found.pid[row])]
    }
    return TaskStacks(functions, comms, reasons)


def _reason(kernel: Kernel, tasks: Tasks, row: int) -> str:
    """Return why a task has no functions."""
    if tasks.is_on_cpu[row]:
        if runs_program(kernel, int(tasks.address[row])):
            return "running in user space"
        return "running, and the registers of its CPU are unknown"
    return "exited" if tasks.has_exited[row] else "unreadable"
