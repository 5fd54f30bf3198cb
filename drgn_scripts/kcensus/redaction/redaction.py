# SPDX-License-Identifier: LGPL-2.1-or-later
"""Redact names and unused memory in capsule pages.

While a capsule is written, its pages are changed:

* All bytes that no analysis used are zeroed, see :mod:`~kcensus.sources.capsule.uses`. This takes
  everything off the pages that only lies beside what is used.
* Of the used bytes, text is replaced by pseudonyms, except words of the kernel: strings; what reads
  as text at an address that was only guessed; and long text even where numbers were expected.
* Names chosen by users are replaced where the kernel keeps them even if they are also words of the
  kernel, and hashes of names (``d_name.hash``) by pseudonyms of numbers; dentries change
  their hash chains, see :mod:`~kcensus.redaction.buckets`.
* The memory in :mod:`~kcensus.redaction.wiped` is zeroed, and so are the guards of stacks and keys.

What remains readable:

* outside of their own place: names that are also words of the kernel (``dentry``), and numbers of
  up to 7 digits;
* pieces of less than :data:`_MIN_NUMBER` bytes of other text, where an analysis took them for
  numbers, and of less than :data:`_MIN_UNKNOWN` bytes, where it guessed;
* lengths and separators of names, and that two words are the same;
* other numbers.
"""

from __future__ import annotations

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.arch import name_of
from kcensus.engine.layout import number_dtype, word_dtype
from kcensus.engine.memory import Bytes, Mask, Words
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.arch.readers import readers_of
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import DAMAGED
from kcensus.progress import Progress
from kcensus.redaction.buckets import moved_dentries
from kcensus.redaction.pseudonyms import Pseudonyms
from kcensus.redaction.tokens import MAX_TOKEN_BYTES, KernelText, printable_lengths
from kcensus.redaction.user_names import MODULES, Hashes, UserNames, kernel_words, symbol_names
from kcensus.redaction.wiped import Ranges, constants, free_slots, log_text, registers, secrets
from kcensus.sources import Target
from kcensus.sources.capsule.recorder import Recorder
from kcensus.sources.capsule.uses import Use

_MIN_TEXT, _MIN_UNKNOWN, _MIN_NUMBER = 2, 6, 16
"""Least printable bytes in a row that are text, by their use. A pointer has at most 5, and a random
number of 8 bytes seldom has printable bytes around it."""


class Patches:
    """The first ``length`` bytes of each row of ``data``, to write at physical addresses."""

    def __init__(self, physical: Words, data: Bytes, length: npt.NDArray[np.int64]) -> None:
        order = np.argsort(physical, kind="stable")
        self._physical, self._data, self._length = physical[order], data[order], length[order]

    @property
    def span(self) -> tuple[int, int]:
        """Physical addresses between which all patches lie."""
        return int(self._physical[0]), int(self._physical[-1]) + self._data.shape[1]

    def apply(self, start: int, buffer: Bytes) -> None:
        """Write the bytes of patches that lie in ``buffer``, which begins at ``start``."""
        width = self._data.shape[1]
        ends = np.array([max(start - width, 0), start + len(buffer)], np.uint64)
        rows = slice(*np.searchsorted(self._physical, ends))
        columns = np.arange(width)
        positions = self._physical[rows].astype(np.int64)[:, None] - start + columns
        inside = (positions >= 0) & (positions < len(buffer))
        inside &= columns < self._length[rows, None]
        buffer[positions[inside]] = self._data[rows][inside]


class Redaction:
    """Redacts the pages of one target, as a :data:`~kcensus.sources.capsule.recorder.Scrub`.

    :param recorder: has read the target, and noted the uses of memory; its pages are looked up when
        the first one is redacted
    :param key: secret of the pseudonyms; None keeps names, and only zeroes unused memory
    :param keeps_log: whether the text of the kernel log stays
    :param frames: all page frames that are going to be redacted; None: any. A machine can have more
        names than fit in memory
    :raises LookupError: the debug info lacks a type or variable needed to find names
    :raises drgn.FaultError: the dump lacks memory needed to find names
    """

    def __init__(
        self,
        target: Target,
        recorder: Recorder,
        key: bytes | None,
        progress: Progress,
        *,
        keeps_log: bool = False,
        frames: Mask | None = None,
    ) -> None:
        if recorder.uses is None:
            raise ValueError("the recorder has not noted the uses of memory")
        platform = target.prog.platform
        readers = readers_of(platform)
        if readers is None or readers.user_registers is None:
            raise LookupError(
                "kcensus does not find the registers of programs on architecture "
                f"'{name_of(platform)}', which may hold anything; create the capsule without "
                "--redact"
            )
        target.need_modules("dm_mod", *MODULES)
        self._kernel = Kernel(target.prog, progress=progress)
        self._recorder, self._uses = recorder, recorder.uses
        self._wiped: tuple[Ranges, Ranges] | None = None
        self._secrets = np.empty(0, np.uint64)
        self._pseudonyms = Pseudonyms(key) if key is not None else None
        self._patches: list[Patches] = []
        self._spans = np.empty((0, 2), np.int64)
        self._missing: list[str] = []
        self.missing: list[str] = []
        """Parts that could not be redacted: one phrase each."""
        self._constants, content = constants(self._kernel)
        words = kernel_words(self._kernel) + symbol_names(target.prog)
        self._kernel_text = KernelText(words, content)
        self._kept = [self._constants]
        if keeps_log:
            self._kept.append(log_text(self._kernel))
        if self._pseudonyms is not None:
            self._collect(self._pseudonyms, frames)
        self._missing = [*self.missing]

    def _collect(self, pseudonyms: Pseudonyms, frames: Mask | None) -> None:
        names = UserNames(self._kernel, frames)
        for batch in names.find():
            if not len(batch.physical):
                continue
            if isinstance(batch, Hashes):
                numbers = pseudonyms.numbers(batch.value.astype(np.uint64))
                word = number_dtype(self._kernel.prog, "u4")
                data = numbers.astype(word)[:, None].view(np.uint8)
                patches = Patches(batch.physical, data, np.full(len(data), 4))
            else:
                # A zero after each row keeps the rows apart.
                text = np.pad(batch.text, ((0, 0), (0, 1))).ravel()
                if not batch.is_kernels:
                    pseudonyms.replace(text, text != 0)
                rows = text.reshape(len(batch.physical), -1)
                patches = Patches(batch.physical, rows, batch.room)
            # Sorted by batch only: sorting all of them would take as much memory again.
            self._patches.append(patches)
        try:
            secret = pseudonyms.secret("chains of dentries")
            moved = moved_dentries(self._kernel, secret, frames)
        except DAMAGED:
            names.missing.append("hash chains of dentries, which tell about their names")
        else:
            for physical, rows in filter(lambda each: len(each[0]), moved):
                self._patches.append(Patches(physical, rows, np.full(len(rows), rows.shape[1])))
        self.missing = names.missing
        if not names.report.complete or names.report.objects_unreadable:
            self.missing.append("names in memory that is corrupt or missing from the dump")
        self._spans = np.array([patches.span for patches in self._patches]).reshape(-1, 2)

    def begin(self) -> None:
        """Begin a capsule: the recorder may have other pages than at the one before."""
        self._wiped = None
        self.missing = [*self._missing]

    def __call__(self, first_frame: int, pages: bytearray) -> None:
        """Redact pages in place."""
        if self._wiped is None:
            # Not earlier: looking up the last types may still record pages.
            report = ScanReport()
            slots = free_slots(self._kernel.slab_map, self._recorder.touched, report)
            self._wiped = slots, registers(self._kernel, report)
            self._secrets = secrets(self._kernel, report)
            if not report.complete:
                self.missing.append("free objects of slabs that are corrupt or not in the dump")
        start = first_frame << self._kernel.memory.page_shift
        buffer = np.frombuffer(pages, np.uint8)
        by_page = buffer.reshape(-1, self._kernel.memory.page_size)
        was_empty = ~by_page.any(axis=1)
        uses = self._uses.of(start, len(buffer))
        free, links = self._wiped[0].inside(start, len(buffer))
        following = buffer[links]
        if self._pseudonyms is not None:
            self._replace_text(start, buffer, uses, self._pseudonyms)
            # Second, because patches were made from the original names.
            low, high = self._spans.T
            for number in np.flatnonzero((low < start + len(buffer)) & (high > start)).tolist():
                self._patches[number].apply(start, buffer)
        unused = (uses == 0) & ~self._constants.inside(start, len(buffer))[0]
        buffer[unused | free | self._wiped[1].inside(start, len(buffer))[0]] = 0
        buffer[links] = following
        if len(self._secrets):
            words = buffer.view(word_dtype(self._kernel.prog))
            places = np.flatnonzero(words)
            words[places[np.isin(words[places], self._secrets)]] = 0
        # Readers take a page of zeros for a lost one, if a pointer leads to it.
        unused = unused.reshape(by_page.shape)
        emptied = np.flatnonzero(~was_empty & ~by_page.any(axis=1) & unused.any(axis=1))
        by_page[emptied, unused[emptied].argmax(axis=1)] = 0xFF

    def _replace_text(
        self, start: int, buffer: Bytes, uses: npt.NDArray[np.uint8], pseudonyms: Pseudonyms
    ) -> None:
        """Replace text except words of the kernel, also where it crosses the ends of ``buffer``."""
        (before, used_before), (after, used_after) = (
            self._around(at) for at in (start - MAX_TOKEN_BYTES - 1, start + len(buffer))
        )
        use = np.concatenate([used_before, uses, used_after])
        around = np.concatenate([before, buffer, after])
        # A number of one byte is no text with the unused bytes around it.
        whole = np.where(use == Use.NONE, np.uint8(0), around)
        inside = slice(len(before), len(before) + len(buffer))
        lengths = printable_lengths(whole, use == Use.TEXT)
        least = np.array([1 << 62, _MIN_NUMBER, _MIN_TEXT, _MIN_UNKNOWN])[use]
        wanted = lengths >= least
        # Text right before a pointer does not make its lowest bytes text.
        is_pointer = np.repeat(buffer.reshape(-1, 8)[:, 7] == 0xFF, 8)
        wanted[inside] &= ~(is_pointer & (uses != Use.TEXT))
        for kept in self._kept:
            wanted[inside] &= ~kept.inside(start, len(buffer))[0]
        if wanted.any():
            # A word may be right behind other memory.
            wanted &= ~self._kernel_text.find(np.where(wanted, whole, np.uint8(0)), around)
            pseudonyms.replace(whole, wanted)
            buffer[:] = np.where(uses == Use.NONE, buffer, whole[inside])

    def _around(self, start: int) -> tuple[Bytes, Bytes]:
        """Return memory beside a buffer and its use; an unused separator if it is unreadable."""
        try:
            raw = self._kernel.prog.read(start, MAX_TOKEN_BYTES + 1, physical=True)
        except (drgn.FaultError, ValueError, OverflowError):
            return np.zeros(1, np.uint8), np.zeros(1, np.uint8)
        return np.frombuffer(raw, np.uint8), self._uses.of(start, len(raw))
