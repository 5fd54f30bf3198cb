# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finders add objects of waits, and their holders, to the graph of waits.

A finder is one module in ``finders``, which defines ``FINDER``: a class of :class:`Finder`. Nothing
else has to be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import Gathered, gather
from kcensus.engine.layout import Path, layout
from kcensus.engine.memory import Guess, Mask, Numbers, Words
from kcensus.human import counted, human_seconds
from kcensus.kernel.code.call_sites import CallSites
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Mode
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.tasks import Tasks
from kcensus.kernel.waiting.attempts import Attempts
from kcensus.kernel.waiting.graph import (
    GENERIC,
    OTHER,
    PROCESS,
    TASK,
    THREAD,
    Builder,
    Graph,
    NodeKind,
)
from kcensus.kernel.waiting.objects.queued import picked_words, queued
from kcensus.kernel.waiting.objects.reading import Queues, Reads
from kcensus.kernel.waiting.waits import Waits
from kcensus.results import Danger, Figure, Finding, Gap, Remedy, Severity, Unit
from kcensus.results.severity import LATE

_SHORT = 1.0
"""Seconds of the longest wait for a notice."""
LOOK_AT_STACKS = (
    "The functions on the stacks of the waiters name the driver or file system: `kcensus waits "
    "TARGET --table stacks --top 0`"
)
"""Next step of findings about tasks whose holder or waker is unknown."""


class Draft(Attempts):
    """The graph in the making, shared by all finders.

    A *lane* is a row of the sleeping tasks. ``object``, ``type``, ``evidence``, ``kind`` and
    ``mode`` describe the object of each lane's wait; finders change them as they learn more.

    :param known: all tasks
    :param waits: the sleeping tasks
    :param finders: classes of finders
    """

    def __init__(
        self, kernel: Kernel, known: Tasks, waits: Waits, finders: Iterable[type[Finder]] = ()
    ) -> None:
        super().__init__()
        self.kernel, self.known, self.waits = kernel, known, waits
        self.rows: Numbers = known.rows(waits.task)
        """Row among all tasks of each lane."""
        self.object: Words = waits.object.copy()
        self.type = list(waits.type)
        self.evidence = list(waits.evidence)
        self.kind: list[NodeKind | None] = [None] * len(waits)
        """Kind of each lane's object, if its type is ambiguous."""
        self.mode = [Mode.NONE] * len(waits)
        """Mode in which each task requests its lock."""
        self.build = Builder()
        self.types: dict[tuple[NodeKind, int], str] = {}
        """C types of objects that are no direct object of a wait."""
        self.names: dict[tuple[NodeKind, int], str] = {}
        """Names of objects; not safe to print."""
        self.states: dict[tuple[NodeKind, int], str] = {}
        """States of objects, as words that follow their names."""
        self.causes: dict[int, str] = {}
        """Id of the finding about what keeps a disk from serving I/O, by ``struct gendisk *``."""
        self.readers: dict[int, int] = {}
        """Number of readers by lock."""
        self.keeping: set[int] = set()
        """``struct gendisk *`` of disks that keep I/O, and of the disks above."""
        self.keepers: dict[int, list[tuple[NodeKind, int]]] = {}
        """Objects that keep the I/O of disks, by ``struct gendisk *``."""
        self.kept: set[int] = set()
        """Locks without a task as holder, such as those of a frozen file system."""
        self.missing += waits.missing
        self.torn = 0
        """Lists that could not be followed to their end."""
        self.finders = [finder(self) for finder in finders]
        kinds = [*GENERIC, *(kind for finder in self.finders for kind in finder.kinds)]
        self._by_type = {type_: kind for kind in kinds for type_ in kind.types}
        self._by_wait = {wait: kind for kind in kinds for wait in kind.waits}

    @cached_property
    def sites(self) -> CallSites:
        """Effects of the machine code of functions on stacks."""
        return CallSites(self.kernel)

    def kind_of(self, lane: int) -> NodeKind:
        """Return the kind of the object of a task's wait."""
        kind = self.kind[lane] or self._by_type.get(self.type[lane])
        if kind is None or kind in GENERIC:
            kind = self._by_wait.get(self.waits.kind[lane], kind)
        return kind or OTHER


def danger(severity: Severity) -> Danger:
    """Return the danger of waits with a severity."""
    return Danger.STALL if severity >= Severity.WARNING else Danger.NONE


@dataclass(frozen=True)
class Stall:
    """The tasks that wait for a node, for findings."""

    tasks: frozenset[int]
    """PIDs."""
    count: int
    seconds: float
    """Longest wait in seconds; -1 if unknown."""
    is_least: bool = False
    """Whether that task may have waited for longer."""

    def at_least(self, seconds: float) -> Stall:
        """Return the same stall, for so many seconds or longer."""
        longer = self.is_least and seconds <= self.seconds
        return replace(self, seconds=max(self.seconds, seconds), is_least=longer)

    def title(self, name: str) -> str:
        """Return the number of tasks, their object, and the longest wait as text."""
        if not self.count:
            return f"no known task waits for {name}"
        start = f"{counted(self.count, 'task', 'wait')} for {name}, "
        if self.seconds < 0:
            return f"{start}for an unknown time"
        span = f"{'at least ' * self.is_least}{human_seconds(self.seconds)}"
        return f"{start}{'the longest ' * (self.count != 1)}for {span}"

    def finding(
        self,
        kind: str,
        name: str,
        subject: str,
        evidence: str,
        remedies: Iterable[Remedy] = (),
        advice: str = "",
        *,
        severity: Severity | None = None,
        figures: Mapping[str, Figure] = MappingProxyType({}),
    ) -> Finding:
        """Return the finding about the object of the tasks.

        :param kind: kind of the finding, such as ``waits-nfs``
        :param name: name of the object in the id
        :param subject: object in the title
        :param advice: next step if there are no remedies
        :param severity: that of the wait by default
        """
        severity, remedies = self.severity() if severity is None else severity, tuple(remedies)
        return Finding(
            id=f"{kind}:{name}",
            severity=severity,
            danger=danger(severity),
            tasks=self.tasks,
            title=self.title(subject),
            evidence=evidence,
            figures={**self.figures, **figures},
            remedies=remedies,
            no_remedy="" if remedies else advice,
        )

    def severity(self, late: float = LATE) -> Severity:
        """Return how severe a wait is that is normal while it is short.

        :param late: seconds from which on it is a warning
        """
        if self.seconds >= late:
            return Severity.WARNING
        return Severity.NOTICE if self.seconds >= _SHORT else Severity.INFO

    @property
    def figures(self) -> dict[str, Figure]:
        """The figures of a finding."""
        oldest = Figure(self.seconds, Unit.SECONDS)
        return {"tasks": Figure(self.count), "oldest": oldest}


class Finder:
    """Adds the nodes and edges of one subject to the graph, and the words for them.

    :meth:`note` determines objects of waits, and adds edges that follow from them alone;
    :meth:`find` adds the holders of objects noted by any finder; :meth:`conclude` adds edges whose
    strength depends on what others found. All finders are done with one before any of them begins
    the next, so their order does not matter. Each may raise LookupError if the debug info lacks a
    type, member or variable: its subject becomes a gap.
    """

    about: ClassVar[str]
    """Name of its gap if it fails."""
    kinds: ClassVar[tuple[NodeKind, ...]] = ()
    """Kinds of its objects."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Kernel modules whose debug info it uses if they are loaded."""
    sleeps: ClassVar[Mapping[WaitKind, str]] = {}
    """Functions that wait for its objects, by kind of wait, separated by spaces."""
    queues: ClassVar[Queues] = {}
    """Wait queues that are members of its objects, by the function that waits on them."""
    lists: ClassVar[Reads] = {}
    """Readers of lists of waiters that no stack links to."""
    pointers: ClassVar[Reads] = {}
    """Readers of pointers of tasks, and of their stacks, for objects that no list of waiters shows,
    and of the places of objects."""
    bios: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Members of its objects that are a bio, or point to the object that bios name in bi_private,
    by C type, with names in various kernels."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.kernel, self.known, self.waits = draft.kernel, draft.known, draft.waits
        self.build, self.faults = draft.build, draft.faults
        self.names, self.types = draft.names, draft.types
        self.rows, self.object = draft.rows, draft.object
        self.type, self.evidence = draft.type, draft.evidence

    # Nodes and edges

    def note(self) -> None:
        """Note the objects of waits with :meth:`_note`."""

    def find(self) -> None:
        """Add edges from objects to their holders to ``build``."""

    def conclude(self) -> None:
        """Add edges for which :meth:`find` of other finders is the evidence."""

    def of_interest(self, graph: Graph) -> Iterable[int]:
        """Return nodes whose waiters belong to the graph even in state S.

        Thousands of tasks sleep for the next event, which is normal.
        """
        wanted = {kind for kind in self.kinds if kind.shows_sleepers}
        return [node for node, kind in enumerate(graph.kind) if kind in wanted] if wanted else ()

    # Words about them

    def identify(self, kind: NodeKind, addresses: Sequence[int]) -> dict[int, str]:
        """Return the names of objects of one of the kinds, by address; not safe to print.

        They are requested only for objects of many waits: ``names`` has the others.
        """
        return {}

    def remedies(self, kind: NodeKind, address: int, waiter: str) -> Iterator[Remedy]:
        """Yield the remedies that end a task's wait for an object if no signal does.

        :param waiter: name of the task, such as ``cp (PID 12)``
        """
        yield from ()

    def served(self, kind: NodeKind, address: int) -> str:
        """Return what ends with the task that serves an object; printable, and usually empty."""
        return ""

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about an object without a task as holder, instead of the usual one."""
        return None

    def hint(self, kind: NodeKind, address: int) -> str:
        """Return a sentence about an object of one of the kinds, as evidence of the finding about
        the device behind it; not safe to print, and usually empty."""
        return ""

    def alike(self, kind: NodeKind, address: int) -> Sequence[int]:
        """Return the objects that the finding about one of them is about, itself included."""
        return (address,)

    def passage(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about an object that stops tasks by itself on their way to a device,
        as part of that about the device."""
        return None

    def gaps(self, graph: Graph) -> Iterator[Gap]:
        """Yield the unreadable parts of the subject."""
        yield from ()

    # For subclasses

    def _lanes(self, functions: frozenset[str], type_: str | None) -> Numbers:
        """Return the tasks asleep in some functions, with an object of a type, or without any."""
        return np.array(
            [
                lane
                for lane, function in enumerate(self.waits.function)
                if function in functions
                and (self.type[lane] == type_ if type_ else not self.object[lane])
            ],
            np.int64,
        )

    def _heads(
        self, lanes: Numbers, waiter: str, task: str, link: str
    ) -> Iterator[tuple[int, int]]:
        """Yield tasks that are on a list of waiters, with the address of the head of that list.

        :param waiter: struct on their stacks, with members for the task and the ``list_head``
        """
        found = queued(self.kernel, self.known, self.rows[lanes], (waiter, task, link))
        self.faults.update(found.faults)
        self.draft.torn += found.torn
        for lane, head in zip(lanes[found.lane].tolist(), found.head.tolist(), strict=True):
            if head:
                yield lane, head

    def _having(self, functions: frozenset[str]) -> Numbers:
        """Return the tasks with any of the functions on their stack, ascending."""
        return self.waits.stacks.having(functions)

    def _of_type(self, *types: str) -> Numbers:
        """Return the tasks with an object of any of the types."""
        wanted = [type_ in types for type_ in self.type]
        return np.flatnonzero(np.array(wanted, np.bool_) & (self.object != 0))

    def _mentions(self, addresses: Words) -> list[tuple[int, int, int]]:
        """Return task, address and place of each address on a stack; each address once per task."""
        wanted, seen = np.sort(addresses), dict[tuple[int, int], int]()
        every = np.arange(len(self.rows)) if len(wanted) else np.empty(0, np.int64)
        for found in self._picked(every, lambda words, _: np.isin(words, wanted)):
            for lane, address, place in zip(*(part.tolist() for part in found), strict=True):
                seen.setdefault((lane, address), place)
        return [(lane, address, place) for (lane, address), place in seen.items()]

    def _picked(
        self, lanes: Numbers, pick: Callable[[Words, Numbers], Mask] | None = None
    ) -> Iterator[tuple[Numbers, Words, Words]]:
        """Yield the words of :func:`picked_words` on the stacks of tasks, by lane."""
        memory, size = self.kernel.memory, self.waits.stacks.size
        for row, word, place in picked_words(
            memory, self.known, self.rows[lanes], size, self.faults, pick
        ):
            yield lanes[row], word, place

    def _read(
        self,
        type_: drgn.Type | str,
        addresses: Words,
        members: Sequence[str] | Mapping[str, Path],
        *,
        is_guess: bool = False,
    ) -> Gathered:
        """Return members of structs.

        :param is_guess: whether an address may be of no such struct, so that it is no fault
        """
        fields = layout(self.kernel.prog, type_, members)
        return gather(self.kernel.memory, addresses, fields, Guess() if is_guess else self.faults)

    def _member(
        self, type_: str, path: Path, addresses: Words, *, is_guess: bool = False
    ) -> npt.NDArray[Any]:
        """Return one member of structs, 0 where they are unreadable."""
        return self._read(type_, addresses, {"member": path}, is_guess=is_guess)["member"]

    def _offset(self, type_: str, path: str) -> np.uint64:
        return np.uint64(drgn.offsetof(self.kernel.prog.type(type_), path))

    def _frame_at(self, lane: int, place: int) -> str:
        """Return the function of the frame at an address on a stack."""
        return self.waits.stacks.function_at(lane, place)

    def _add_threads(self, tables: Words, processes: Words) -> None:
        """Add the edges from processes to their threads.

        :param tables: table of open files (``task.files``) of each task; the threads of a process
            share one, and the graph has the process at its address
        """
        members = np.flatnonzero(np.isin(tables, processes))
        threads = TASK, self.known.address[members]
        self.build.edges(THREAD, (PROCESS, tables[members]), threads, "task.files")

    def _note(self, lane: int, address: int, type_: str, evidence: str) -> None:
        """Note the object of a task's wait, and its evidence."""
        self.object[lane], self.type[lane], self.evidence[lane] = address, type_, evidence
