# SPDX-License-Identifier: LGPL-2.1-or-later
"""One kernel, and the results of its readers so far."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import drgn

from kcensus.engine.memory import CHUNK_BYTES, Memory
from kcensus.engine.slub.pages import PageChunk, PageMap
from kcensus.engine.slub.slabs import SlabMap, Watcher
from kcensus.engine.workers import Each, each
from kcensus.engine.zeros import lost_variables, note_variables
from kcensus.kernel.size import MachineSize, machine_size
from kcensus.progress import Progress, SilentProgress

T = TypeVar("T")

VECTOR_MEMBERS = {
    # page.obj_cgroups since v5.9, as above.
    # Since Linux kernel commit 87944e2992bd ("mm: Introduce page memcg flags") (in v5.11), it is
    # page.memcg_data, later slab.memcg_data.
    # Since Linux kernel commit 21c690a349ba ("mm: introduce slabobj_ext to support slab object
    # extensions") (in v6.10), it is slab.obj_exts.
    "vector": ("obj_exts", "memcg_data", "obj_cgroups"),
    # Distance of two elements, since Linux kernel commit 7a8e71bc619d ("mm/slab: use stride to
    # access slabobj_ext") (in v7.0).
    "stride": ("stride",),
    # Since Linux kernel commit b5bc35ace2c5 ("mm/slab: replace slab.stride with
    # obj_exts_in_object") (in v7.3), a flag tells the place of the elements.
    "in_object": ("obj_exts_in_object",),
    # Since Linux kernel commit 7def2e8549e5 ("mm/slab: add cache_ and slab_needs_objcg() helpers")
    # (in v7.3), a flag tells whether they hold obj_cgroups.
    "needs_objcg": ("obj_exts_needs_objcg",),
}
"""Members of a slab that lead to the memory cgroups of its objects."""
_PAGE_READERS: list[Callable[[Kernel, PageMap], Watcher | None]] = []


def reads_pages(
    make: Callable[[Kernel, PageMap], Watcher | None],
) -> Callable[[Kernel, PageMap], Watcher | None]:
    """Let a reader see all pages in the one pass over the ``struct page`` array.

    :param make: returns the watcher of a kernel, or None; its module is imported before that pass
    """
    _PAGE_READERS.append(make)
    return make


class Kernel:
    """The kernel of a program, shared by all analyses.

    Everything is read on demand and once. Results age on a live kernel, so each analysis of a
    report gets a :meth:`renewed` one there.

    :param prog: program of a Linux kernel
    :param live: whether the kernel may change while it is read
    :param is_capsule: whether the program reads a capsule
    :param has_pseudonyms: whether names are pseudonyms, in a redacted capsule
    :param jobs: worker processes for bulk reads; 1 where they cannot share the program
    :param chunk_bytes: upper bound of one bulk read
    :param progress: shows how far long reads are
    :param divide: does the tasks of bulk reads, in place of processes of this machine
    """

    def __init__(
        self,
        prog: drgn.Program,
        *,
        live: bool = False,
        is_capsule: bool = False,
        has_pseudonyms: bool = False,
        jobs: int = 1,
        chunk_bytes: int = CHUNK_BYTES,
        progress: Progress | None = None,
        divide: Each = each,
    ) -> None:
        self.prog = prog
        self.divide = divide
        self.live = live
        self.is_capsule = is_capsule
        self.has_pseudonyms = has_pseudonyms
        self.jobs = jobs
        self.chunk_bytes = chunk_bytes
        self.progress = progress or SilentProgress()
        self.untyped_modules = frozenset[str]()
        """Loaded modules of which types are wanted and missing."""
        self._read: dict[Callable[[Kernel], Any], Any] = {}

    def renewed(self) -> Kernel:
        """Return the same kernel without results of readers."""
        renewed = Kernel(
            self.prog,
            live=self.live,
            is_capsule=self.is_capsule,
            has_pseudonyms=self.has_pseudonyms,
            jobs=self.jobs,
            chunk_bytes=self.chunk_bytes,
            progress=self.progress,
            divide=self.divide,
        )
        renewed.untyped_modules = self.untyped_modules
        return renewed

    @cached_property
    def memory(self) -> Memory:
        """Bulk access to the kernel's memory."""
        note_variables(self.prog)
        return Memory(
            self.prog, self.chunk_bytes, jobs=self.jobs, progress=self.progress, divide=self.divide
        )

    @property
    def lost_variables(self) -> list[str]:
        """Names of variables that readers of :attr:`memory` looked up, and that are lost."""
        return lost_variables(self.prog) if "memory" in vars(self) else []

    @cached_property
    def slab_map(self) -> SlabMap:
        """The slab caches, and the slabs of each.

        :raises UnsupportedAllocator: the kernel uses SLOB, or SLAB as it was before 3.18
        :raises LookupError: its memory model is not supported, or its debug info is incomplete
        """
        return SlabMap(self.memory, VECTOR_MEMBERS, live=self.live, watcher=self._watcher)

    def _watcher(self, pages: PageMap) -> Watcher | None:
        watchers = {make: watch for make in _PAGE_READERS if (watch := make(self, pages))}

        def look(chunk: PageChunk) -> dict[Callable[..., Any], Any]:
            return {make: watch(chunk) for make, watch in watchers.items()}

        return look if watchers else None

    def seen(self, make: Callable[[Kernel, PageMap], Watcher | None]) -> list[Any]:
        """Return the results of a reader's watcher, one for each stretch of the array."""
        return [part[make] for part in self.slab_map.survey.watched if make in part]

    @cached_property
    def size(self) -> MachineSize:
        """RAM, CPUs and nodes."""
        return machine_size(self.prog)

    @cached_property
    def ram_bytes(self) -> int:
        """RAM in bytes, see :class:`MachineSize`; 0 if unknown."""
        return self.size.ram_bytes


def once(read: Callable[[Kernel], T]) -> Callable[[Kernel], T]:
    """Make a reader keep its result for each kernel, so that all callers share it."""

    @functools.wraps(read)
    def remembered(kernel: Kernel) -> T:
        if read not in kernel._read:
            kernel._read[read] = read(kernel)
        value: T = kernel._read[read]
        return value

    return remembered


def remember(read: Callable[[Kernel], T], kernel: Kernel, value: T) -> None:
    """Keep ``value``, which was found in passing, as the result of a reader of :func:`once`."""
    kernel._read[getattr(read, "__wrapped__", read)] = value


def already(read: Callable[[Kernel], T], kernel: Kernel) -> T | None:
    """Return the result of a reader of :func:`once`; None if it was not called yet."""
    value: T | None = kernel._read.get(getattr(read, "__wrapped__", read))
    return value
