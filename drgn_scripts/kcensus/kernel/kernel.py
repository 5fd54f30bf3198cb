# SPDX-License-Identifier: LGPL-2.1-or-later
"""One kernel, and what has been read of it so far."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import drgn

from kcensus.engine.memory import CHUNK_BYTES, Memory
from kcensus.engine.slub.slabs import SlabMap
from kcensus.kernel.memcg.objcg import VECTOR_MEMBERS
from kcensus.kernel.size import MachineSize, machine_size
from kcensus.progress import Progress, SilentProgress

T = TypeVar("T")


class Kernel:
    """The kernel that a program reads, shared by all analyses of it.

    Nothing is read before it is asked for, and then only once: the slab map and its one pass over
    the ``struct page`` array, and whatever a reader decorated with :func:`once` returns. What was
    read ages with a live kernel, so there each analysis of a report gets :meth:`renewed` ones.

    :param prog: program of a Linux kernel
    :param live: whether the kernel may change while it is read
    :param jobs: worker processes for bulk reads; 1 where they cannot share the program
    :param chunk_bytes: upper bound of one bulk read
    :param progress: shows how far long reads are
    """

    def __init__(
        self,
        prog: drgn.Program,
        *,
        live: bool = False,
        jobs: int = 1,
        chunk_bytes: int = CHUNK_BYTES,
        progress: Progress | None = None,
    ) -> None:
        self.prog = prog
        self.live = live
        self.jobs = jobs
        self.chunk_bytes = chunk_bytes
        self.progress = progress or SilentProgress()
        self._read: dict[Callable[[Kernel], Any], Any] = {}

    def renewed(self) -> Kernel:
        """Return the same kernel without what has been read of it."""
        return Kernel(
            self.prog,
            live=self.live,
            jobs=self.jobs,
            chunk_bytes=self.chunk_bytes,
            progress=self.progress,
        )

    @cached_property
    def memory(self) -> Memory:
        """Bulk access to the kernel's memory."""
        return Memory(self.prog, self.chunk_bytes, jobs=self.jobs, progress=self.progress)

    @cached_property
    def slab_map(self) -> SlabMap:
        """The slab caches, and where the slabs of each are.

        :raises UnsupportedAllocator: the kernel uses SLAB or SLOB
        :raises LookupError: its memory model is not supported, or its debug info is incomplete
        """
        # It imports this module.
        from kcensus.kernel.memcg.charges import watcher

        return SlabMap(self.memory, VECTOR_MEMBERS, watcher=functools.partial(watcher, self))

    @cached_property
    def size(self) -> MachineSize:
        """RAM, CPUs and nodes."""
        return machine_size(self.prog)

    @cached_property
    def ram_bytes(self) -> int:
        """``totalram_pages()`` in bytes, or what else says how much it is; 0 if unknown."""
        return self.size.ram_bytes


def once(read: Callable[[Kernel], T]) -> Callable[[Kernel], T]:
    """Make a reader remember what it read of a kernel, so that all callers share it."""

    @functools.wraps(read)
    def remembered(kernel: Kernel) -> T:
        if read not in kernel._read:
            kernel._read[read] = read(kernel)
        value: T = kernel._read[read]
        return value

    return remembered
