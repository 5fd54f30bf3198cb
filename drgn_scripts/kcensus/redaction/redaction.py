# SPDX-License-Identifier: LGPL-2.1-or-later
"""Takes from the pages of a capsule what is nobody else's business.

Three things are done to the pages, on their way into the file:

* names that users chose are replaced by pseudonyms where the kernel keeps them, and numbers that
  it computed from them by random ones;
* names that occur elsewhere, by themselves, are replaced in the same way: in messages, options of
  mounts, copies;
* free memory of the slab allocator is wiped but for what links it, for it holds older names.

What stays, if it lies on a page that an analysis read: anything that is no such name, such as
contents of files or environment variables; names that the kernel has no dentry of, as in
directories that a file system keeps in memory; outside of their own place, names of less than
:data:`~kcensus.redaction.tokens.SHORTEST` bytes, numbers of less than eight digits, parts of names,
names glued to other text, and names that are also words of the kernel (``dentry``); and all
numbers, of which a name's place in the kernel's hash table (some 20 bits) can confirm what
somebody guesses.
"""

from __future__ import annotations

from dataclasses import dataclass

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.mm import follow_phys

from kcensus.engine.memory import Bytes, Mask, Words
from kcensus.engine.slub.free_slots import FreeSlots, free_slots
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.progress import Progress
from kcensus.redaction.pseudonyms import Pseudonyms
from kcensus.redaction.tokens import LONGEST, TokenSet, token_hashes
from kcensus.redaction.user_names import Hashes, Places, UserNames, kernel_words
from kcensus.sources import Target

_LONGEST_PATCH = 4096
"""Bytes; there are none of that length."""


@dataclass(frozen=True)
class Patches:
    """Bytes to be written, in ascending order of address."""

    address: Words
    """Physical."""
    ends: npt.NDArray[np.int64]
    """Where in :attr:`data` each one's bytes end."""
    data: Bytes

    @staticmethod
    def of(address: Words, lengths: npt.NDArray[np.int64], data: Bytes) -> Patches:
        """Sort patches.

        :param data: the bytes of all, one after the other
        """
        order = np.argsort(address, kind="stable")
        starts, ends = np.cumsum(lengths) - lengths, np.cumsum(lengths[order])
        shift = starts[order] - (ends - lengths[order])
        at = np.arange(len(data)) + np.repeat(shift, lengths[order])
        return Patches(address[order], ends, data[at])

    @property
    def span(self) -> tuple[int, int]:
        """Where the first one begins, and where the last one ends at most."""
        return int(self.address[0]), int(self.address[-1]) + _LONGEST_PATCH

    def apply(self, start: int, buffer: Bytes) -> None:
        """Write what belongs to a stretch of memory.

        :param start: its physical address
        """
        end = start + len(buffer)
        reach = max(start - _LONGEST_PATCH, 0)
        low, high = np.searchsorted(self.address, np.array([reach, end], np.uint64))
        if low == high:
            return
        begin = int(self.ends[low - 1]) if low else 0
        ends = self.ends[low:high] - begin
        starts = np.concatenate([[0], ends[:-1]])
        shift = self.address[low:high].astype(np.int64) - start - starts
        at = np.arange(int(ends[-1])) + np.repeat(shift, ends - starts)
        inside = (at >= 0) & (at < len(buffer))
        buffer[at[inside]] = self.data[begin : begin + int(ends[-1])][inside]


class Redaction:
    """Redacts the pages of one target; to be used as
    :data:`~kcensus.sources.capsule.recorder.Scrub`.

    :param recorded: per page frame, whether it is recorded; looked at when the first page comes
    :param key: secret of the pseudonyms; None leaves names as they are, and only wipes
    :raises LookupError: names cannot be found: debug information is lacking
    :raises drgn.FaultError: memory that is needed to find them is not in the dump
    """

    def __init__(
        self, target: Target, recorded: Mask, key: bytes | None, progress: Progress
    ) -> None:
        target.need_modules("dm_mod")
        self._kernel = Kernel(target.prog, progress=progress)
        self._memory, self._slab_map = self._kernel.memory, self._kernel.slab_map
        self._recorded = recorded
        self._free: FreeSlots | None = None
        self._pseudonyms = Pseudonyms(key) if key is not None else None
        self._names: list[Patches] = []
        self._spans = np.empty((0, 2), np.int64)
        self._tokens = TokenSet(np.empty(0, np.uint64))
        self._constant = _constant_memory(target.prog)
        self.missing: list[str] = []
        """Kinds of names that could not be looked for: one sentence each."""
        if self._pseudonyms is not None:
            self._find(self._pseudonyms)

    def _find(self, pseudonyms: Pseudonyms) -> None:
        names = UserNames(self._kernel)
        hashes: list[Words] = []
        for found in names.find():
            if not len(found.physical):
                continue
            if isinstance(found, Hashes):
                numbers = pseudonyms.numbers(found.value.astype(np.uint64)).astype("<u4")
                lengths = np.full(len(numbers), 4)
                patches = Patches.of(found.physical, lengths, numbers.view(np.uint8))
            else:
                hashes.append(_tokens_of(found))
                patches = _replaced(found, pseudonyms)
            # They stay as they come: all in one order would take as much memory again.
            self._names.append(patches)
        self.missing = names.missing
        if not names.report.complete or names.report.objects_unreadable:
            self.missing.append("names in memory that is not in the dump, or damaged")
        self._spans = np.array([patches.span for patches in self._names]).reshape(-1, 2)
        words = b"\0".join(kernel_words(self._kernel))
        kernels = token_hashes(np.frombuffer(words, np.uint8))
        self._tokens = TokenSet(np.concatenate(hashes or [kernels])).without(kernels)

    def __call__(self, first_frame: int, pages: bytearray) -> None:
        """Redact pages, in place."""
        if self._free is None:
            # The number of pages is final only now.
            report = ScanReport()
            self._free = free_slots(self._slab_map, self._recorded, report)
            if not report.complete:
                self.missing.append("free memory of slabs that are not in the dump, or damaged")
        start = first_frame << self._memory.page_shift
        buffer = np.frombuffer(pages, np.uint8)
        free, links = self._free_bytes(start, len(buffer))
        if self._pseudonyms is not None:
            # Hardened links are random numbers, and look like anything once in a while.
            kept = buffer[links]
            self._replace_tokens(start, buffer, self._pseudonyms)
            buffer[links] = kept
            # These come second, for by now they know what was there before.
            low, high = self._spans.T
            for at in np.flatnonzero((low < start + len(buffer)) & (high > start)).tolist():
                self._names[at].apply(start, buffer)
        buffer[free] = 0

    def _replace_tokens(self, start: int, buffer: Bytes, pseudonyms: Pseudonyms) -> None:
        """Replace names wherever they stand by themselves, also across the ends of the pages."""
        before = self._around(start - LONGEST - 1)
        after = self._around(start + len(buffer))
        whole = np.concatenate([before, buffer, after])
        found = self._tokens.find(whole)
        low, high = self._constant.start - start, self._constant.stop - start
        found[max(low + len(before), 0) : max(high + len(before), 0)] = False
        if found.any():
            pseudonyms.replace(whole, found)
            buffer[:] = whole[len(before) : len(before) + len(buffer)]

    def _around(self, start: int) -> Bytes:
        """A little memory beside some pages; a separator where there is none."""
        try:
            raw = self._slab_map.prog.read(start, LONGEST + 1, physical=True)
        except (drgn.FaultError, ValueError, OverflowError):
            raw = b"\0"
        return np.frombuffer(raw, np.uint8)

    def _free_bytes(self, start: int, size: int) -> tuple[Mask, npt.NDArray[np.int64]]:
        """What to wipe of some pages, and where the bytes are that link free memory."""
        assert self._free is not None
        slots = self._free
        base = start + int(self._slab_map.pages.direct_map)
        reach = base - int(slots.size.max(initial=0))
        low, high = np.searchsorted(slots.address, np.array([reach, base + size], np.uint64))
        begin = (slots.address[low:high] - np.uint64(base)).astype(np.int64)
        marks = np.zeros(size + 1, np.int8)
        np.add.at(marks, np.clip(begin, 0, size), 1)
        np.add.at(marks, np.clip(begin + slots.size[low:high], 0, size), -1)
        free = np.cumsum(marks[:-1], dtype=np.int8) > 0
        linked = slots.link[low:high] >= 0
        words = (begin + slots.link[low:high])[linked]
        words = words[(words >= 0) & (words < size)]
        links = (words[:, None] + np.arange(8)).ravel()
        free[links] = False
        return free, links


def _constant_memory(prog: drgn.Program) -> range:
    """Physical addresses of the kernel's code and constants: no user's name is there."""
    try:
        ends = [prog.symbol(name).address for name in ("_stext", "__end_rodata")]
        # The image lies in one piece.
        start = int(follow_phys(prog["init_mm"].address_of_(), ends[0]))
        stop = start + ends[1] - ends[0]
    except (LookupError, drgn.FaultError):
        return range(0)
    return range(start, stop)


def _tokens_of(names: Places) -> Words:
    """Hashes of the names, and of the parts that control characters separate."""
    return token_hashes(np.pad(names.text, ((0, 0), (0, 1))).ravel())


def _replaced(names: Places, pseudonyms: Pseudonyms) -> Patches:
    """What is to be written in the names' stead."""
    text = np.pad(names.text, ((0, 0), (0, 1))).ravel()
    pseudonyms.replace(text, text != 0)
    rows = text.reshape(len(names.physical), -1)
    room = np.minimum(names.room, rows.shape[1])
    return Patches.of(names.physical, room, rows[np.arange(rows.shape[1]) < room[:, None]])
