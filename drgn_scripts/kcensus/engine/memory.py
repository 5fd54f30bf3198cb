# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bulk reads of a program's memory that skip unreadable pages."""

from __future__ import annotations

import time
import timeit
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.mm import pfn_to_virt

from kcensus.arch import MAX_MEMORY_BYTES, addresses_of
from kcensus.engine.tags import tag_of, untagged_word
from kcensus.engine.workers import Each, each
from kcensus.progress import Progress, SilentProgress
from kcensus.sources.capsule.uses import Use, uses_of
from kcensus.sources.faults import reason

T = TypeVar("T")

CHUNK_BYTES = 4 << 20
"""Default unit of bulk reads: it stays in the processor's cache while it is cut into columns."""
_TRIAL_SECONDS, _GAIN_SECONDS = 0.05, 0.3
"""Time that one process works alone, and time that worker processes must then save.

The first tasks are slower than others: pages are touched for the first time. Two processes take
50 ms of each CPU to start. In a process of some gigabytes, it is several times as much: a fork
copies the page tables.
"""

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]


def add_counts(total: object, part: object) -> None:
    """Add the numbers and counters of ``part``, also nested ones, to ``total`` of the same type."""
    for name, value in vars(part).items():
        if isinstance(value, int):
            setattr(total, name, getattr(total, name) + value)
        elif not isinstance(value, Counter):
            add_counts(getattr(total, name), value)
        # Nearly always empty, and updating a Counter with nothing is slow.
        elif value:
            getattr(total, name).update(value)


class Faults(Counter[str]):
    """Number of unreadable pages, by reason."""

    def note(self, error: Exception, pages: int = 1) -> None:
        """Count ``pages`` unreadable because of ``error``."""
        self[reason(error)] += pages

    def add(self, why: str, number: int | np.integer[Any]) -> None:
        """Count ``number`` faults of a reason, if there are any."""
        if number:
            self[why] += int(number)


class Guess(Faults):
    """Faults at addresses that are only a guess: no faults of the dump.

    What is read there may be anything, also text, and is noted as such where memory is recorded.
    """


def direct_map_start(prog: drgn.Program) -> int:
    """Return the virtual address of physical address 0.

    :raises LookupError: it is unknown
    """
    try:
        return int(pfn_to_virt(prog, 0))
    except Exception as error:
        # Of a kernel whose variables are unknown, drgn says so with the base of all exceptions.
        if type(error) is Exception:
            raise LookupError(str(error)) from error
        raise


class Memory:
    """Reader of a program's pages in bulk.

    :param chunk_bytes: upper bound of one bulk read; peak memory is a small multiple of it
    :param jobs: worker processes of :meth:`each`; 1 if they cannot share the program
    :param divide: does the tasks of :meth:`each`, in place of processes of this machine
    """

    def __init__(
        self,
        prog: drgn.Program,
        chunk_bytes: int = CHUNK_BYTES,
        *,
        jobs: int = 1,
        progress: Progress | None = None,
        divide: Each = each,
    ) -> None:
        self.prog = prog
        self.divide = divide
        self.uses = uses_of(prog)
        self.tag = tag_of(prog)
        """Bits of pointers that may hold a tag."""
        self.jobs = jobs
        self.progress = progress or SilentProgress()
        self.page_shift = int(prog["PAGE_SHIFT"])
        self.page_size = 1 << self.page_shift
        self.chunk_bytes = max(chunk_bytes, self.page_size)
        end = int(prog["max_pfn"]) << self.page_shift
        self.end = end if 0 < end <= MAX_MEMORY_BYTES else MAX_MEMORY_BYTES
        """End of physical memory in bytes, which bounds what can be in memory."""
        self.places = addresses_of(prog.platform)
        """Addresses at which the kernel's memory can be."""
        self._direct_map = self._find_direct_map()
        self._kept: dict[tuple[int, int], bytes] | None = None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep what is read until the end of the context, for many reads of the same pages."""
        self._kept = {}
        try:
            yield
        finally:
            self._kept = None

    def _find_direct_map(self) -> range:
        """Return the virtual addresses that are faster to read by physical address, if known."""
        # If drgn walks page tables, as for QEMU's dumps, the walk is half of the time of reading a
        # page. If the dump or its reader knows virtual addresses, it is the other way round. So
        # both are tried, with a page that every dump has: the page of a task.
        start = direct_map_start(self.prog)
        direct = range(start, int(pfn_to_virt(self.prog, self.prog["max_pfn"])))
        try:
            probe = int(self.prog["init_task"].tasks.next)
            virtual = self.prog.read(probe, 8)
            if probe not in direct or self.prog.read(probe - start, 8, physical=True) != virtual:
                return range(0)
        except (LookupError, drgn.FaultError, ValueError):
            return range(0)
        slower = self._seconds(probe, False) > 1.5 * self._seconds(probe - start, True)
        return direct if slower else range(0)

    def _seconds(self, address: int, physical: bool) -> float:
        return min(timeit.repeat(lambda: self.prog.read(address, 8, physical), number=1, repeat=9))

    def each(self, title: str, work: Callable[[int], T], tasks: int) -> Iterator[T]:
        """Yield ``work(0)`` … ``work(tasks - 1)`` as :func:`workers.each` does, with progress.

        This process begins alone, and worker processes join for a longer time.
        """
        with self.progress.step(title, tasks) as step:
            done = 0
            if self.divide is each and self.jobs > 1:
                for result in self._begin(work, tasks):
                    yield result
                    step.advance()
                    done += 1
            rest = (lambda task: work(done + task)) if done else work
            for result in self.divide(rest, tasks - done, self.jobs):
                yield result
                step.advance()

    def _begin(self, work: Callable[[int], T], tasks: int) -> Iterator[T]:
        """Yield results of the first tasks, or of all if worker processes would not be faster."""
        seconds = 0.0
        for task in range(tasks):
            # What the caller does with a result is not measured.
            start = time.perf_counter()
            result = work(task)
            seconds += time.perf_counter() - start
            yield result
            left = tasks - task - 1
            gain = seconds / (task + 1) * (left - -(-left // self.jobs))
            if seconds >= _TRIAL_SECONDS and gain >= _GAIN_SECONDS:
                break

    @property
    def fills_elsewhere(self) -> bool:
        """Whether tasks of :meth:`each` fill columns from other processes, so must share them."""
        return self.jobs > 1 or self.divide is not each

    @property
    def chunk_pages(self) -> int:
        """Pages in one bulk read."""
        return self.chunk_bytes >> self.page_shift

    def _read(self, address: int, size: int) -> bytes:
        if self._kept is not None and (known := self._kept.get((address, size))) is not None:
            return known
        direct = address in self._direct_map
        place = address - self._direct_map.start if direct else address
        # Without nullcontext(), which would cost a tenth of reading a page.
        if self.uses is None:
            data: bytes = self.prog.read(place, size, direct)
        else:
            with self.uses.bulk(address, size):
                data = self.prog.read(place, size, direct)
        if self._kept is not None:
            self._kept[address, size] = data
        return data

    def note(self, addresses: Words, size: int | Numbers, use: Use | None) -> None:
        """Note, where memory is recorded, what ``size`` bytes at each address were used as.

        :param use: None for bytes that were not used
        """
        if self.uses is not None and use is not None:
            self.uses.note(addresses, size, use)

    def is_direct(self, address: int) -> bool:
        """Return whether an address lies in the direct map."""
        return address in self._direct_map

    def word(self, address: int) -> int:
        """Read one pointer; raise :class:`drgn.FaultError` where it is unreadable."""
        if address in self._direct_map:
            word = self.prog.read_word(address - self._direct_map.start, physical=True)
        else:
            word = self.prog.read_word(address)
        return untagged_word(word, self.tag) if self.tag else word

    def span(
        self, address: int, pages: int, faults: Faults, use: Use | None = Use.UNKNOWN
    ) -> tuple[Bytes, Mask | None]:
        """Read ``pages`` pages from the page-aligned virtual ``address``.

        :param use: of all bytes; None if the caller notes what it uses
        :return: the bytes, and a mask of the readable pages (None: all of them). Unreadable pages
            are zeros, and counted in ``faults``.
        """
        if use is not None and self.uses is not None:
            each = np.arange(pages, dtype=np.uint64) << np.uint64(self.page_shift)
            self.note(np.uint64(address) + each, self.page_size, use)
        buffer, readable = np.empty(0, np.uint8), np.zeros(pages, np.bool_)
        stack = [(0, pages)]
        while stack:
            start, count = stack.pop()
            low, high = start << self.page_shift, (start + count) << self.page_shift
            try:
                data = self._read(address + low, high - low)
            except (drgn.FaultError, ValueError) as error:
                if count == pages:
                    buffer = np.zeros(pages << self.page_shift, np.uint8)
                if count == 1:
                    faults.note(error)
                else:
                    # Halving finds the readable pages.
                    half = count // 2
                    stack += [(start + half, count - half), (start, half)]
            else:
                if count == pages:
                    return np.frombuffer(data, np.uint8), None
                buffer[low:high] = np.frombuffer(data, np.uint8)
                readable[start : start + count] = True
        return buffer, readable

    def pages(self, addresses: Words, faults: Faults) -> tuple[Bytes, Mask | None]:
        """Read the pages at ``addresses``, which are page-aligned and ascending.

        Neighbors lie together in the result, so that an object across both can be cut from it. The
        caller notes which of the bytes it uses, with :meth:`note`.

        :return: ``len(addresses) * page_size`` bytes, and a mask as of :meth:`span`
        """
        breaks = np.flatnonzero(np.diff(addresses) != self.page_size) + 1
        starts = [0, *breaks.tolist()]
        ends = [*breaks.tolist(), len(addresses)]
        if len(starts) == 1:
            return self.span(int(addresses[0]), len(addresses), faults, None)
        buffer = np.empty(len(addresses) << self.page_shift, np.uint8)
        # A memoryview takes bytes at half the cost of an array's slice, and there are many.
        view, shift = buffer.data, self.page_shift
        readable: Mask | None = None
        for address, start, end in zip(addresses[starts].tolist(), starts, ends, strict=True):
            try:
                view[start << shift : end << shift] = self._read(address, (end - start) << shift)
            except (drgn.FaultError, ValueError):
                if readable is None:
                    readable = np.ones(len(addresses), np.bool_)
                data, ok = self.span(address, end - start, faults, None)
                buffer[start << shift : end << shift] = data
                readable[start:end] = True if ok is None else ok
        return buffer, readable
