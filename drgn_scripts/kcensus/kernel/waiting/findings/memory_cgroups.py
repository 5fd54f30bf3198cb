# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about memory cgroups at their limits: who fills them, and how to raise the limit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kcensus.human import human_bytes, human_ratio, listed
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.cgroup_mounts import cgroup_mount
from kcensus.kernel.memcg.limits import is_unified, limits, memory_by_kind, unwritten
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.memcg.processes import largest
from kcensus.kernel.mm.pressure import pressure
from kcensus.kernel.tasks.tasks import tasks
from kcensus.kernel.waiting.finder import Stall
from kcensus.results import Figure, Finding, Remedy, Severity, Unit
from kcensus.text import pasteable, printable, task_name

_MIB = 1 << 20
_WITH_SWAP = "memory.memsw.limit_in_bytes"
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


@dataclass(frozen=True)
class _Reached:
    """A limit, in bytes, and the use that it limits."""

    name: str
    """File of the cgroup."""
    value: int
    usage: int

    @property
    def is_high(self) -> bool:
        return self.name == "memory.high"


def filled(kernel: Kernel, row: int, stall: Stall, *, is_oom: bool) -> Finding:
    """Return the finding about tasks that wait for memory of a cgroup.

    :param row: of the memory cgroup
    :param is_oom: whether they wait in the OOM killer's place, at the hard limit
    """
    groups, known = memcgs(kernel), limits(kernel)
    shown, usage = printable(groups.path[row]), int(known.usage[row])
    pressed = pressure(kernel, int(groups.cgroup[row]))
    limit = _reached(kernel, row, is_oom=is_oom)
    severity = stall.severity()
    is_pressed = limit is not None and pressed is not None and pressed >= _PRESSED
    # Without the OOM killer, no memory will be free by itself.
    is_stuck = is_oom and known.is_without_oom[row] and severity >= Severity.NOTICE
    if is_pressed or is_stuck:
        severity = max(severity, Severity.WARNING)
    at = ""
    if limit is not None:
        verb = "throttles above" if limit.is_high else "is"
        at = f", and {limit.name} {verb} {human_bytes(limit.value)}"
    fillers = largest(kernel, row, _LARGEST)
    remedies = (*_raise(kernel, row, limit), *_end(kernel, fillers)) if limit else ()
    found = stall.finding(
        "waits-memory",
        shown,
        f"memory cgroup {shown}",
        "; ".join(_evidence(kernel, row, fillers, pressed, limit)),
        remedies,
        "Its use is below its limits by now: the tasks go on by themselves; `kcensus memcgs "
        "TARGET --all` shows the memory of all cgroups",
        severity=severity,
        figures={
            "usage": Figure(usage, Unit.BYTES),
            "limit": Figure(limit.value if limit else None, Unit.BYTES),
        },
    )
    return replace(found, title=f"{found.title}: it uses {human_bytes(usage)}{at}")


def _reached(kernel: Kernel, row: int, *, is_oom: bool) -> _Reached | None:
    """Return the limit that tasks wait at; None if the use is below all limits."""
    known, usage = limits(kernel), int(limits(kernel).usage[row])
    if not is_oom and 0 <= known.high[row] < usage:
        return _Reached("memory.high", int(known.high[row]), usage)
    hard = [each for each in _hard(kernel, row) if each.value >= 0]
    full = [each for each in hard if each.usage > each.value - _MIB]
    nearest = min(hard, key=lambda each: each.value - each.usage, default=None)
    return full[0] if full else nearest if is_oom else None


def _hard(kernel: Kernel, row: int) -> list[_Reached]:
    known = limits(kernel)
    most, usage = int(known.most[row]), int(known.usage[row])
    if is_unified(kernel.prog):
        return [_Reached("memory.max", most, usage)]
    most_with_swap, with_swap = int(known.most_with_swap[row]), int(known.with_swap[row])
    return [
        _Reached("memory.limit_in_bytes", most, usage),
        _Reached(_WITH_SWAP, most_with_swap, with_swap),
    ]


def _evidence(
    kernel: Kernel,
    row: int,
    fillers: list[tuple[int, int]],
    pressed: float | None,
    limit: _Reached | None,
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
    if limit and not limit.is_high and known.is_without_oom[row]:
        yield "memory.oom_control has disabled the OOM killer: tasks sleep until memory is free"
    if pressed is not None:
        yield f"some task of it lacked memory in {human_ratio(pressed)} of the last 10 s (PSI)"


def _task(kernel: Kernel, row: int) -> str:
    known = tasks(kernel)
    return task_name(known.comm[row], int(known.pid[row]))


def _raise(kernel: Kernel, row: int, limit: _Reached) -> Iterator[Remedy]:
    """Yield the remedies that raise the limit, or let the OOM killer end a process."""
    known, directory = limits(kernel), _directory(kernel, row)
    if not directory:
        return
    # Rounded up to MiB.
    value = -(-int(max(limit.usage, limit.value) * _MORE) // _MIB) * _MIB
    raised, most = [limit], int(known.most[row])
    risk = f"the cgroup may use up to {human_bytes(value - limit.usage)} more, which other "
    risk += "programs then lack"
    if limit.is_high and 0 <= most < value:
        risk += f"; memory.max ({human_bytes(most)}) still limits it: raise that, too"
    if limit.name != _WITH_SWAP:
        # The limit with swap must not be lower.
        others = (each for each in _hard(kernel, row) if each.name == _WITH_SWAP)
        raised += [each for each in others if not limit.is_high and 0 <= each.value < value]
    files = {each: shlex.quote(f"{directory}/{each.name}") for each in raised}
    yield Remedy(
        effect=f"Raise {limit.name} of {printable(memcgs(kernel).path[row])} from "
        f"{human_bytes(limit.value)} to {human_bytes(value)}, so that its tasks go on",
        command="\n".join(f"echo {value} > {files[each]}" for each in raised[::-1]),
        risk=risk,
        undo="\n".join(f"echo {each.value} > {files[each]}" for each in raised),
        until="reboot, or the service manager sets it again (systemd: `systemctl set-property`)",
    )
    if not limit.is_high and known.is_without_oom[row]:
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
    groups = memcgs(kernel)
    full = cgroup_mount(kernel, int(groups.cgroup[row]), "memory").path + groups.path[row]
    return full if row > 0 and pasteable(full) else ""
