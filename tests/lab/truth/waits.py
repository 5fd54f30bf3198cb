# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a guest says about tasks that wait: in /proc, in its log, and in what ours has logged there.

The guest reads it twice, ``before`` the dump and ``later``. What both reads agree on, the dump
has, too: see :func:`still`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .packed import functions, unpacked

BEFORE, LATER = "before", "later"


@dataclass(frozen=True)
class Task:
    """A task as /proc has it."""

    pid: int
    tgid: int
    comm: str
    """Of a worker, with what it works for: ``kworker/0:1+events``."""
    state: str
    """One letter: ``D``, ``S``, ``R``, …"""
    wchan: str
    """``0`` where the kernel does not tell."""
    stack: tuple[str, ...]
    """Names of functions, the innermost first, without those of the scheduler and of locks."""


@dataclass(frozen=True)
class Claim:
    """What our module or program has logged of a task: that it holds something, or waits for it."""

    pid: int
    comm: str
    is_wait: bool
    kind: str
    """``mutex``, ``rwsem``, ``percpu_rwsem``, ``rt_mutex``, ``semaphore``, ``completion``,
    ``page``, ``pipe``, ``work``, ``bit`` or ``rcu``; of programs, also ``futex``, ``log`` (of an
    XFS) or ``journal`` (of an ext4)."""
    address: int
    """0 for a page that the kernel chooses, and for what has no address; the user's of a futex."""
    mode: str


@dataclass(frozen=True)
class Blocked:
    """A task in state D as the kernel lists it for sysrq-w."""

    pid: int
    comm: str
    stack: tuple[str, ...]
    """Names of functions, the innermost first, all of them."""


@dataclass(frozen=True)
class Truth:
    """One read of it all."""

    monotonic_ns: int
    tasks: dict[int, Task]
    claims: tuple[Claim, ...]
    blocked: dict[int, Blocked]
    stalled: frozenset[int]
    """The PIDs of the readers that RCU waits for, as it warns; only tasks that were preempted."""
    stalled_cpus: frozenset[int]
    """The CPUs that RCU waits for, as it warns."""

    def waits(self) -> dict[int, Claim]:
        return {claim.pid: claim for claim in self.claims if claim.is_wait}

    def holders(self, address: int) -> set[int]:
        """The PIDs of the tasks that hold what is at an address."""
        return {c.pid for c in self.claims if c.address == address and not c.is_wait}

    def comms(self, pids: Iterable[int]) -> list[str]:
        """The names of tasks, sorted, without what follows the slash of a worker's."""
        return sorted(self.tasks[pid].comm.partition("/")[0] for pid in pids)

    def cycles(self) -> set[frozenset[int]]:
        """The sets of tasks that wait for each other in a circle, as the module has made them.

        A task that waits for an rwsem behind others waits for these, too: a reader behind a
        writer. In what the module makes, each task is in one cycle at most.
        """
        paths = (self._way_back(pid, (pid,)) for pid in self.waits())
        return {frozenset(path) for path in paths if path}

    def _way_back(self, start: int, path: tuple[int, ...]) -> tuple[int, ...]:
        """Follow what the last task of a path waits for; return the tasks on the way to a start."""
        for other in sorted(self._awaited(path[-1])):
            if other == start:
                return path
            if other not in path and (found := self._way_back(start, (*path, other))):
                return found
        return ()

    def _awaited(self, pid: int) -> set[int]:
        waits = self.waits()
        if (claim := waits.get(pid)) is None:
            return set()
        holders = self.holders(claim.address)
        held = (c for c in self.claims if c.address == claim.address and not c.is_wait)
        readers = {c.pid for c in held if c.mode == "read"}
        if claim.kind == "rwsem" and claim.mode == "read" and readers:
            # Readers do not keep it from reading: the writers in between do.
            return {
                other.pid
                for other in waits.values()
                if other.address == claim.address and other.mode == "write"
            }
        return holders


_CLAIM = re.compile(
    r"kcensus_(?:waits|spin): task (?P<pid>\d+) (?P<comm>\S+) (?P<verb>holds|waits) "
    r"(?P<kind>\w+) (?P<address>[0-9a-f]+) (?P<mode>\w+)$",
    re.MULTILINE,
)
_LISTED = re.compile(r"task:(.+?)\s+state:D\s.*?\bpid:\s*(\d+)")
_FRAME = re.compile(r"^(?:<\d>)?\[[^]]*\]  ([\w.]+)\+0x", re.MULTILINE)
_STALLED = re.compile(r"rcu: \tTasks blocked on level-\d+ rcu_node [^:]*:((?: P\d+\S*)+)")
_STALLED_CPU = re.compile(r"rcu: \t(\d+)-[^ ]*: \(")


def read(truth: Mapping[str, str], which: str = BEFORE) -> Truth:
    """Parse one read of a dump's truth."""
    files = unpacked(truth[f"waits.tasks.{which}"])
    log = truth[f"waits.log.{which}"]
    seconds, _, fraction = files.pop("monotonic").strip().partition(".")
    directories = dict.fromkeys(path.rpartition("/")[0] for path in files)
    tasks = [task for each in directories if (task := _task(files, each))]
    return Truth(
        monotonic_ns=int(seconds) * 10**9 + int(fraction),
        tasks={task.pid: task for task in tasks},
        claims=tuple(_claims(log)),
        blocked={each.pid: each for each in _blocked(log)},
        stalled=frozenset(
            int(pid) for tasks in _STALLED.findall(log) for pid in re.findall(r" P(\d+)", tasks)
        ),
        stalled_cpus=frozenset(map(int, _STALLED_CPU.findall(log))),
    )


def still(truth: Mapping[str, str]) -> dict[int, Task]:
    """The tasks that are the same in both reads, and sleep: the dump has them so."""
    before, later = (read(truth, which).tasks for which in (BEFORE, LATER))
    return {
        pid: task for pid, task in before.items() if task.state in "DSI" and later.get(pid) == task
    }


def _task(files: dict[str, str], directory: str) -> Task | None:
    # A task that ends between two of its files loses the ones that follow.
    try:
        comm, stat, wchan, stack = (
            files[f"{directory}/{name}"] for name in ("comm", "stat", "wchan", "stack")
        )
    except KeyError:
        return None
    _, _, tgid, _, pid = directory.split("/")
    return Task(
        pid=int(pid),
        tgid=int(tgid),
        comm=comm.removesuffix("\n"),
        state=stat.rpartition(") ")[2][:1],
        wchan=wchan,
        stack=functions(stack),
    )


def _claims(log: str) -> Iterator[Claim]:
    for match in _CLAIM.finditer(log):
        yield Claim(
            pid=int(match["pid"]),
            comm=match["comm"],
            is_wait=match["verb"] == "waits",
            kind=match["kind"],
            address=int(match["address"], 16),
            mode=match["mode"],
        )


def _blocked(log: str) -> Iterator[Blocked]:
    _, marker, listing = log.rpartition("Show Blocked State")
    heads = [*_LISTED.finditer(listing if marker else "")]
    ends = [*(head.start() for head in heads[1:]), len(listing)]
    for head, end in zip(heads, ends, strict=False):
        frames = _FRAME.findall(listing, head.end(), end)
        yield Blocked(int(head[2]), head[1], tuple(frames))
