# SPDX-License-Identifier: LGPL-2.1-or-later
"""All tasks as columns: their names, their states, and the time since they were last on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import drgn
import numpy as np

from kcensus.arch import KNOWN
from kcensus.engine.chase import circular
from kcensus.engine.gather import Gathered, gather
from kcensus.engine.layout import layout, pointee_names
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.engine.rows import Addressed, rows_of
from kcensus.engine.slub.percpu import cpu_offsets
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.lists import list_members
from kcensus.kernel.names import ABSENT, DAMAGED, decode_array, integer

_MAX_TASKS = 1 << 22
"""PID_MAX_LIMIT: a longer list of tasks is damage."""

INTERRUPTIBLE = 1
"""TASK_INTERRUPTIBLE: state S."""
UNINTERRUPTIBLE = 2
"""TASK_UNINTERRUPTIBLE: state D."""
STOPPED, TRACED = 4, 8
"""__TASK_STOPPED, by a signal, and __TASK_TRACED, by a debugger."""
NOLOAD = 0x400
"""TASK_NOLOAD: state I, an idle kernel thread.

Since Linux kernel commit 80ed87c8a9ca ("sched/wait: Introduce TASK_NOLOAD and TASK_IDLE") (in
v4.2)."""
PROXY_WAKING = np.uint64((1 << 64) - 1)
"""Value of ``task.blocked_on`` for a task about to wake up (commit not verified)."""
RTLOCK_WAIT = 0x1000
"""TASK_RTLOCK_WAIT, since Linux kernel commit 5f220be21418 ("sched/wakeup: Prepare for RT sleeping
spin/rwlocks") (in v5.15): a task sleeps for a spinlock of PREEMPT_RT; shown as state D, not in the
load average."""
_MAX_LEAD = 60 * 10**9
"""Largest lead of a sound clock, nanoseconds. A clock of an idle CPU may stop for longer, but then
other clocks, or stamps of tasks, confirm the latest one."""
_KTHREAD = 0x00200000
_FROZEN_FLAG = 0x00010000
"""PF_FROZEN: a task in the refrigerator, in state D, before Linux kernel commit f5d39b020809
("freezer,sched: Rewrite core freezer logic") (in v6.1); since then another flag, for kernel
threads."""
_TRAP_FREEZE = 1 << 23
"""JOBCTL_TRAP_FREEZE, since Linux kernel commit 76f969e8948d ("cgroup: cgroup v2 freezer") (in
v5.2)."""
_OWNED = "mm", "signal"
TRAPS = frozenset({"do_freezer_trap", "get_signal"})
"""Functions in which tasks sleep that the freezer of cgroup v2 has stopped."""
FROZEN = 0x8000
"""TASK_FROZEN: since that commit, the only state of a frozen task."""


@dataclass(frozen=True)
class Tasks(Addressed):
    """Tasks as columns: all threads of all processes, process by process; no idle tasks."""

    address: Words
    pid: Numbers
    comm: list[str]
    state: Words
    """``__state``: flags such as :data:`UNINTERRUPTIBLE`; 0 for a runnable task."""
    is_on_cpu: Mask
    is_kthread: Mask
    has_exited: Mask
    """A zombie, or dead: it never runs again, but keeps its locks."""
    cpu: Numbers
    off_cpu_ns: Numbers
    """Nanoseconds since the task was last accounted run time; -1 if unknown.

    For a sleeping task, that is since it went to sleep: the scheduler then stamps ``se.exec_start``
    with its run queue's clock. "Now" is the latest clock of any run queue, so the age is too small
    by up to a tick, and with CONFIG_IRQ_TIME_ACCOUNTING or steal time by the time of interrupts and
    of the hypervisor. Since v6.12 (commit not verified), migration of a sleeping task may clear the
    stamp: then it is :attr:`arrived_ns`."""
    arrived_ns: Numbers
    """Nanoseconds since the task last got a CPU: an upper bound of :attr:`off_cpu_ns`, from
    ``sched_info.last_arrival``; -1 if the kernel has no such stamp."""
    stack: Words
    """Lowest address of the kernel stack."""
    sp: Words
    """Stack pointer of a task that is not on a CPU."""
    blocker: Words
    """``task.blocker``: the lock that a task sleeps for, 0 if the kernel lacks the member; its two
    lowest bits are 0 for a mutex, 1 for a semaphore, 2 and 3 for a reader and a writer of an rwsem.

    Since Linux kernel commit e711faaafbe5 ("hung_task: replace blocker_mutex with encoded blocker")
    (in v6.16), with CONFIG_DETECT_HUNG_TASK_BLOCKER. Since commit 3cf67d61ff98 ("hung_task: show
    the blocker task if the task is hung on mutex") (in v6.15, not verified), another member has
    mutexes only."""
    blocked_on: Words
    """The ``struct mutex`` that a task sleeps for; 0 where unknown or :data:`PROXY_WAKING`.

    Since Linux kernel commit 44e4e0297c3c (subject not verified) (in v6.17), ``task.blocked_on`` is
    a mutex; before, with CONFIG_DEBUG_MUTEXES, a waiter, which is left out here."""
    pi_blocked_on: Words
    """The ``struct rt_mutex_waiter`` of a task that sleeps for an rt_mutex, or 0."""
    is_frozen: Mask = field(default_factory=lambda: np.zeros(1, np.bool_))
    """Whether the freezer of cgroup v1, or of suspend, stops it; one element for all if unknown."""
    is_trapped: Mask = field(default_factory=lambda: np.zeros(1, np.bool_))
    """Whether the freezer of cgroup v2 wants it to stop; one element for all if unknown. Unless the
    task is blocked in the kernel, it sleeps in :data:`TRAPS`, in state S and without any lock."""
    is_queued: Mask = field(default_factory=lambda: np.zeros(1, np.bool_))
    """Whether it is on a run queue, in any state; one element for all if unknown."""
    is_waking: Mask = field(default_factory=lambda: np.zeros(1, np.bool_))
    """Whether it is queued to run, even in a sleeping state; one element if unknown.

    Since Linux kernel commit 152e11f6df29 ("sched/fair: Implement delayed dequeue") (in v6.12),
    tasks may sleep on the queue. So do tasks that wait for a mutex and lend their time to its owner
    (CONFIG_SCHED_PROXY_EXEC)."""
    now_ns: int = -1
    """The latest clock of a run queue, in the time of the kernel log; -1 if unknown."""
    counted: int | None = None
    """``nr_threads``; None if unknown."""
    damaged: int = 0
    """Lists of tasks or threads that could not be followed to their end, and unreadable tasks."""
    bad_clocks: int = 0
    """Run queues with an impossible clock; :attr:`arrived_ns` replaces their :attr:`off_cpu_ns`."""
    owned: Mapping[str, Words] = field(default_factory=dict)
    """The pointers ``mm`` and ``signal``, by name; 0 for none."""
    faults: Faults = field(default_factory=Faults)

    @cached_property
    def is_stopped(self) -> Mask:
        """Whether a signal or a debugger has stopped it."""
        return np.asarray((self.state & np.uint64(STOPPED | TRACED)) != 0)

    @cached_property
    def is_blocked(self) -> Mask:
        """Whether it sleeps in state D, uninterruptible or killable, and is not frozen."""
        asleep: Mask = (self.state & np.uint64(UNINTERRUPTIBLE | RTLOCK_WAIT)) != 0
        asleep &= ((self.state & np.uint64(NOLOAD)) == 0) & ~self.is_on_cpu & ~self.is_waking
        asleep &= ~self.is_frozen
        return asleep

    @cached_property
    def is_asleep(self) -> Mask:
        """Whether it sleeps in state D or S, or I in a process."""
        flags = UNINTERRUPTIBLE | RTLOCK_WAIT | INTERRUPTIBLE
        asleep: Mask = (self.state & np.uint64(flags)) != 0
        is_idle = ((self.state & np.uint64(NOLOAD)) != 0) & self.is_kthread
        asleep &= ~is_idle & ~self.is_on_cpu & ~self.is_waking & ~self.is_frozen
        return asleep


@once
def tasks(kernel: Kernel) -> Tasks:
    """Return all tasks of the kernel.

    :raises LookupError: the debug info lacks a type or variable
    :raises drgn.FaultError: the head of the list of tasks is not in the dump
    """
    memory, prog, faults = kernel.memory, kernel.prog, Faults()
    address, damaged = _threads(kernel, faults)
    type_ = prog.type("struct task_struct")
    members = {
        "pid": "pid",
        "comm": "comm",
        "flags": "flags",
        "stack": "stack",
        # Since Linux kernel commit 2f064a59a11f ("sched: Change task_struct::state") (in v5.14).
        "state": ("__state", "state"),
    }
    optional = {
        "sp": tuple(each.stack_pointer for each in KNOWN),
        "on_cpu": "on_cpu",
        # Since Linux kernel commit bcf9033e5449 ("sched: move CPU field back into thread_info if
        # THREAD_INFO_IN_TASK=y") (in v5.16), the CPU is in thread_info again.
        "cpu": ("thread_info.cpu", "cpu"),
        "exit_state": "exit_state",
        "exec_start": "se.exec_start",
        "last_arrival": "sched_info.last_arrival",
        "blocker": "blocker",
        "pi_blocked_on": "pi_blocked_on",
        "on_rq": "on_rq",
        "is_delayed": "se.sched_delayed",
        "jobctl": "jobctl",
        **{name: name for name in _OWNED},
    }
    if pointee_names(type_, ["blocked_on"]) == {"blocked_on": "struct mutex"}:
        optional["blocked_on"] = "blocked_on"
    read = gather(memory, address, layout(prog, type_, members, optional), faults)
    kept = read.readable
    damaged += int(np.count_nonzero(~kept))
    columns = {name: column[kept] for name, column in read.columns.items()}

    def column(name: str) -> Words:
        return columns.get(name, np.zeros(len(columns["pid"]))).astype(np.uint64)

    cpu = column("cpu").astype(np.int64)
    is_kthread = (columns["flags"] & _KTHREAD) != 0
    is_frozen = ((columns["flags"] & _FROZEN_FLAG) != 0) & ~is_kthread
    is_frozen |= (columns["state"].astype(np.uint64) & np.uint64(FROZEN)) != 0
    mutex, is_queued = column("blocked_on"), column("on_rq") != 0
    mutex[mutex == PROXY_WAKING] = 0
    clocks = _Clocks(memory, faults)
    clocks.judge(np.concatenate([column("last_arrival"), column("exec_start")]))
    arrived = clocks.since(column("last_arrival"), cpu, "clock")
    off_cpu = clocks.since(column("exec_start"), cpu, "clock_task")
    return Tasks(
        address=address[kept],
        pid=columns["pid"].astype(np.int64),
        comm=[decode_array(raw) for raw in columns["comm"].tolist()],
        state=columns["state"].astype(np.uint64),
        is_on_cpu=column("on_cpu") != 0,
        is_kthread=is_kthread,
        has_exited=column("exit_state") != 0,
        cpu=cpu,
        off_cpu_ns=np.where(off_cpu < 0, arrived, off_cpu),
        arrived_ns=arrived,
        stack=columns["stack"],
        sp=column("sp"),
        blocker=column("blocker"),
        blocked_on=mutex,
        pi_blocked_on=column("pi_blocked_on"),
        is_frozen=is_frozen,
        is_trapped=(column("jobctl") & np.uint64(_TRAP_FREEZE)) != 0,
        is_queued=is_queued,
        is_waking=is_queued & (column("is_delayed") == 0) & (mutex == 0),
        now_ns=clocks.now,
        counted=integer(prog, "nr_threads", faults),
        damaged=damaged,
        bad_clocks=clocks.damaged,
        owned={name: column(name) for name in _OWNED},
        faults=faults,
    )


def switches(kernel: Kernel, addresses: Words) -> Words:
    """Return current switch counts and state of tasks, shape (tasks, 3); zeros if unreadable.

    A task with the same row twice has not run in between.
    """
    names = {"voluntary": "nvcsw", "other": "nivcsw", "state": ("__state", "state")}
    members = layout(kernel.prog, "struct task_struct", names)
    read = gather(kernel.memory, addresses, members, Faults())
    return np.stack([read[name].astype(np.uint64) for name in names], axis=1)


def run_queue_sums(kernel: Kernel, names: Iterable[str]) -> dict[str, int]:
    """Return counters of ``struct rq``, summed over all CPUs; none if unreadable.

    :param names: members; those missing from this kernel are left out
    """
    prog, faults = kernel.prog, Faults()
    try:
        members = layout(prog, "struct rq", {}, {each: (f"{each}.counter", each) for each in names})
        queues = np.uint64(int(prog["runqueues"].address_of_())) + cpu_offsets(prog)
        read = gather(kernel.memory, queues, members, faults)
    except DAMAGED:
        return {}
    if faults:
        return {}
    # Modulo 2^32: a task that wakes up on another CPU is subtracted there.
    sums = {name: read[name].astype(np.uint32).sum(dtype=np.uint32) for name in members.fields}
    return {name: int(total.view(np.int32)) for name, total in sums.items()}


def main_threads(memory: Memory, faults: Faults) -> tuple[Words, int]:
    """Return the ``struct task_struct *`` of the main thread of each process, and torn lists.

    :raises LookupError: the debug info lacks a type or variable
    :raises drgn.FaultError: the head of the list of tasks is not in the dump
    """
    prog = memory.prog
    link = np.uint64(drgn.offsetof(prog.type("struct task_struct"), "tasks"))
    head = int(prog["init_task"].address_of_()) + int(link)
    nodes, damaged = circular(memory, head, faults, limit=_MAX_TASKS)
    return nodes - link, damaged


def _threads(kernel: Kernel, faults: Faults) -> tuple[Words, int]:
    memory, prog = kernel.memory, kernel.prog
    type_ = prog.type("struct task_struct")
    leaders, damaged = main_threads(memory, faults)
    signals = gather(memory, leaders, layout(prog, type_, ["signal"]), faults)
    known = signals["signal"] != 0
    heads = signals["signal"][known] + np.uint64(
        drgn.offsetof(prog.type("struct signal_struct"), "thread_head")
    )
    verify = not kernel.live
    lanes, links, torn = list_members(memory, heads, faults, limit=_MAX_TASKS, verify=verify)
    threads = links - np.uint64(drgn.offsetof(type_, "thread_node"))
    # A process with lost threads still has its leader.
    lane = np.concatenate([np.flatnonzero(known)[lanes], np.arange(len(leaders))])
    address = np.concatenate([threads, leaders])
    first = np.sort(np.unique(address, return_index=True)[1])
    return address[first[np.argsort(lane[first], kind="stable")]], damaged + len(torn)


class _Clocks:
    def __init__(self, memory: Memory, faults: Faults) -> None:
        prog, none = memory.prog, np.empty(0, np.uint64)
        self._readings = Gathered({"clock": none, "clock_task": none}, none != 0, none != 0)
        self._sound: Mask = none != 0
        with contextlib.suppress(*ABSENT, ValueError):
            # A kernel for one CPU only has no `cpu`.
            members = layout(prog, "struct rq", ["clock", "clock_task"], {"cpu": "cpu"})
            queues = np.uint64(int(prog["runqueues"].address_of_())) + cpu_offsets(prog)
            self._readings = gather(memory, queues, members, faults)
            self._sound = self._readings.readable.copy()

    @property
    def damaged(self) -> int:
        return int(np.count_nonzero(self._readings.readable & ~self._sound))

    @property
    def now(self) -> int:
        return int(self._readings["clock"][self._sound].max()) if self._sound.any() else -1

    def judge(self, stamps: Words) -> None:
        """Drop impossible clocks, which are ahead of all other clocks and of all ``stamps``."""
        readings, clock = self._readings, self._readings["clock"]
        if not self._sound.any():
            return
        # It lacks the time of interrupts, so it is never ahead of the clock.
        behind = readings["clock_task"] <= clock + np.uint64(_MAX_LEAD)
        if (self._sound & behind).any():
            self._sound &= behind
        times = np.sort(stamps)
        sound = np.flatnonzero(self._sound)
        order = sound[np.argsort(clock[sound])]
        # One is left at least: the latest with a confirmation by a clock or stamp, or the earliest.
        for row, other in zip(order[:0:-1].tolist(), clock[order[-2::-1]].tolist(), strict=True):
            latest = int(clock[row])
            near = np.array([max(latest - _MAX_LEAD, 0), latest], np.uint64)
            first, last = np.searchsorted(times, near)
            if latest - other <= _MAX_LEAD or first < last:
                break
            self._sound[row] = False

    def since(self, stamps: Words, cpu: Numbers, clock: str) -> Numbers:
        """Return the nanoseconds since stamps of a clock of their CPUs; -1 if unknown."""
        readings = self._readings
        if not self._sound.any():
            return np.full(len(stamps), -1)
        none = np.uint64((1 << 64) - 1)
        number = readings.columns.get("cpu", np.zeros(len(readings.readable), np.uint64))
        number = np.where(readings.readable, number.astype(np.uint64), none)
        row = rows_of(number, cpu.astype(np.uint64), np.argsort(number))
        # The clock of an idle CPU stops, so its time goes on with the latest clock.
        now = readings[clock][row] + (readings["clock"][self._sound].max() - readings["clock"][row])
        known = (stamps != 0) & (row >= 0)
        if clock != "clock":
            known &= self._sound[row]
        age = (now - stamps).view(np.int64)
        return np.where(known, np.maximum(age, 0), -1)
