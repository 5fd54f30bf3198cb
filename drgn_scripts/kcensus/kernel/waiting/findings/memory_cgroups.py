# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about memory cgroups at their limits: who fills them, and how to raise the limit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import numpy as np

from kcensus.human import human_bytes, human_ratio, listed
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.limits import (
    Limits,
    is_unified,
    limits,
    memory_by_kind,
    pressure,
    unwritten,
)
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.memcg.processes import largest
from kcensus.kernel.tasks.tasks import tasks
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Stall
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit
from kcensus.text import printable, task_name

_MIB = 1 << 20
_LARGEST = 3
"""Processes to name."""
_MORE = 1.25
"""Factor of a limit above the present use."""
_UNWRITTEN = 0.1
"""Share of dirty memory to mention."""
_PRESSED = 0.1
"""Share of time without memory that is a warning: each sleep of a throttled task is short."""
_UNINTERRUPTIBLE, _WAKEKILL = np.uint64(2), np.uint64(0x180)
"""Bits of a task's state; TASK_WAKEKILL of all versions."""


def filled(kernel: Kernel, row: int, stall: Stall, *, is_oom: bool) -> Finding:
    """Return the finding about tasks that wait for memory of a cgroup.

    :param row: of the memory cgroup
    :param is_oom: whether they wait in the OOM killer's place, at the hard limit
    """
    groups, known = memcgs(kernel), limits(kernel)
    shown, usage = printable(groups.path[row]), int(known.usage[row])
    pressed = pressure(kernel, int(groups.cgroup[row]))
    limit = _limit(known, row, is_oom=is_oom)
    severity = stall.severity()
    is_pressed = limit is not None and pressed is not None and pressed >= _PRESSED
    # Without the OOM killer, no memory will be free by itself.
    is_stuck = is_oom and known.is_without_oom[row] and severity >= Severity.NOTICE
    if is_pressed or is_stuck:
        severity = max(severity, Severity.WARNING)
    at = ""
    if limit is not None:
        name = "memory.high" if limit == "high" else _hard(kernel)
        verb = "throttles above" if limit == "high" else "is"
        at = f", and {name} {verb} {human_bytes(_value(known, row, limit))}"
    fillers = largest(kernel, row, _LARGEST)
    remedies = (*_raise(kernel, row, limit), *_end(kernel, fillers)) if limit else ()
    return Finding(
        id=f"waits-memory:{shown}",
        severity=severity,
        danger=Danger.STALL if severity >= Severity.WARNING else Danger.NONE,
        tasks=stall.tasks,
        title=f"{stall.title(f'memory cgroup {shown}')}: it uses {human_bytes(usage)}{at}",
        evidence="; ".join(_evidence(kernel, row, fillers, pressed, limit)),
        figures={
            **stall.figures,
            "usage": Figure(usage, Unit.BYTES),
            "limit": Figure(_value(known, row, limit) if limit else None, Unit.BYTES),
        },
        remedies=remedies,
        no_remedy=""
        if remedies
        else "Its use is below its limits by now: the tasks go on by themselves; `kcensus memcgs "
        "TARGET --all` shows the memory of all cgroups",
    )


def _limit(known: Limits, row: int, *, is_oom: bool) -> str | None:
    """Return the limit that tasks wait at: ``high``, ``most``, or None if the use is below."""
    if is_oom:
        return "most" if known.most[row] >= 0 else None
    if 0 <= known.high[row] < known.usage[row]:
        return "high"
    is_full = known.most[row] >= 0 and known.usage[row] > known.most[row] - _MIB
    return "most" if is_full else None


def _value(known: Limits, row: int, limit: str) -> int:
    return int((known.high if limit == "high" else known.most)[row])


def _hard(kernel: Kernel) -> str:
    return "memory.max" if is_unified(kernel.prog) else "memory.limit_in_bytes"


def _evidence(
    kernel: Kernel,
    row: int,
    fillers: list[tuple[int, int]],
    pressed: float | None,
    limit: str | None,
) -> Iterator[str]:
    groups, known = memcgs(kernel), limits(kernel)
    kinds = memory_by_kind(kernel, int(groups.address[row]))
    if any(kinds.values()):
        order = sorted(kinds.items(), key=lambda item: -item[1])
        yield listed([f"{human_bytes(size)} {kind}" for kind, size in order if size])
    late = unwritten(kernel, int(groups.address[row]))
    if late >= _UNWRITTEN * known.usage[row]:
        yield f"{human_bytes(late)} are dirty or under writeback, and stay until a disk has them"
    if fillers:
        names = [f"{_task(kernel, task)} {human_bytes(size)}" for task, size in fillers]
        yield f"largest processes: {listed(names)}"
    if limit == "most" and known.is_without_oom[row]:
        yield "memory.oom_control has disabled the OOM killer: tasks sleep until memory is free"
    if pressed is not None:
        yield f"some task of it lacked memory in {human_ratio(pressed)} of the last 10 s (PSI)"


def _task(kernel: Kernel, row: int) -> str:
    known = tasks(kernel)
    return task_name(known.comm[row], int(known.pid[row]))


def _raise(kernel: Kernel, row: int, limit: str) -> Iterator[Remedy]:
    """Yield the remedies that raise the limit, or let the OOM killer end a process."""
    known, directory = limits(kernel), _directory(kernel, row)
    if not directory:
        return
    name = "memory.high" if limit == "high" else _hard(kernel)
    before = _value(known, row, limit)
    # Rounded up to MiB.
    value = -(-int(max(int(known.usage[row]), before) * _MORE) // _MIB) * _MIB
    more = human_bytes(value - int(known.usage[row]))
    file, most = shlex.quote(f"{directory}/{name}"), int(known.most[row])
    risk = f"the cgroup may use up to {more} more, which other programs then lack"
    if limit == "high" and 0 <= most < value:
        risk += f"; memory.max ({human_bytes(most)}) still limits it: raise that, too"
    if not is_unified(kernel.prog):
        risk += "; fails with EINVAL above memory.memsw.limit_in_bytes: raise that first"
    yield Remedy(
        effect=f"Raise {name} of {printable(memcgs(kernel).path[row])} from "
        f"{human_bytes(before)} to {human_bytes(value)}, so that its tasks go on",
        command=f"echo {value} > {file}",
        risk=risk,
        undo=f"echo {before} > {file}",
        until="reboot, or the service manager sets it again (systemd: `systemctl set-property`)",
    )
    if limit == "most" and known.is_without_oom[row]:
        control = shlex.quote(f"{directory}/memory.oom_control")
        yield Remedy(
            effect="Enable the OOM killer of the cgroup",
            command=f"echo 0 > {control}",
            risk="it kills a process of the cgroup at once",
            undo=f"echo 1 > {control}",
            until="reboot",
        )


def _end(kernel: Kernel, fillers: list[tuple[int, int]]) -> Iterator[Remedy]:
    """Yield the remedy that ends the largest process, unless no signal wakes it up."""
    known = tasks(kernel)
    for row, size in fillers[:1]:
        pid, state = int(known.pid[row]), known.state[row]
        if pid > 1 and (not state & _UNINTERRUPTIBLE or state & _WAKEKILL):
            yield Remedy(
                effect=f"Kill {_task(kernel, row)}, the largest process, which frees up to "
                f"{human_bytes(size)}",
                command=f"kill -KILL {pid}",
                risk="its work is lost, and what it has written to tmpfs stays; a service manager "
                "may start it again",
            )


def _directory(kernel: Kernel, row: int) -> str:
    """Return the directory of a memory cgroup; empty if its name cannot be pasted."""
    path, mount = memcgs(kernel).path[row], _mount(kernel)
    full = f"{mount}{path}"
    is_plain = printable(full) == full and "\\x" not in full and "?" not in full
    return full if row > 0 and is_plain else ""


def _mount(kernel: Kernel) -> str:
    unified = is_unified(kernel.prog)
    if not unified:
        return "/sys/fs/cgroup/memory"
    blocks = super_blocks(kernel)
    mounts = np.array(blocks.mount, object)[[type_ == "cgroup2" for type_ in blocks.type]]
    return next(filter(None, mounts.tolist()), "/sys/fs/cgroup")
