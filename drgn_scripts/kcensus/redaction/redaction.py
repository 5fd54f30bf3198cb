# SPDX-License-Identifier: LGPL-2.1-or-later
"""Redact names and freed memory in capsule pages.

While a capsule is written, its pages are changed in three ways:

* Names chosen by users are replaced by pseudonyms where the kernel keeps them, and hashes of
  names (``d_name.hash``) by pseudonyms of numbers.
* The same names are replaced wherever else they occur as separate tokens: in messages, mount
  options, copies.
* The memory in :mod:`~kcensus.redaction.wiped` is zeroed: free slab objects, because they hold
  older names, registers of programs, and frames of returned functions.

On pages that an analysis read, the following is not redacted:

* anything but names, such as file contents or environment variables;
* the frames in use on the kernel stacks of sleeping tasks: addresses, numbers, and local variables
  of kernel functions, such as a part of a path, or of data being copied, encrypted or compared;
* names without a dentry, such as directory entries cached by a file system; names of disks, which
  the kernel chooses except for md arrays with a user's name;
* outside of their own place: names of fewer than
  :data:`~kcensus.redaction.tokens.MIN_TOKEN_BYTES` bytes, numbers of fewer than 8 digits, parts of
  names, names glued to other text, and names that are also words of the kernel (``dentry``);
* other numbers. A dentry's hash bucket has some 20 bits, which can confirm a guessed name.
"""

from __future__ import annotations

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.mm import follow_phys

from kcensus.engine.memory import Bytes, Mask, Words
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.progress import Progress
from kcensus.redaction.pseudonyms import Pseudonyms
from kcensus.redaction.tokens import MAX_TOKEN_BYTES, TokenSet, token_hashes
from kcensus.redaction.user_names import MODULES, Hashes, UserNames, kernel_words
from kcensus.redaction.wiped import Ranges, free_slots, task_memory
from kcensus.sources import Target


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

    :param recorded: per page frame, whether it is recorded; read when the first page is redacted
    :param key: secret of the pseudonyms; None keeps names, and only zeroes unused memory
    :raises LookupError: the debug info lacks a type or variable needed to find names
    :raises drgn.FaultError: the dump lacks memory needed to find names
    """

    def __init__(
        self, target: Target, recorded: Mask, key: bytes | None, progress: Progress
    ) -> None:
        target.need_modules("dm_mod", *MODULES)
        self._kernel = Kernel(target.prog, progress=progress)
        self._slab_map = self._kernel.slab_map
        self._recorded = recorded
        self._free: Ranges | None = None
        self._tasks: Ranges | None = None
        self._pseudonyms = Pseudonyms(key) if key is not None else None
        self._patches: list[Patches] = []
        self._spans = np.empty((0, 2), np.int64)
        self._tokens = TokenSet(np.empty(0, np.uint64))
        self._image = _kernel_image(target.prog)
        self.missing: list[str] = []
        """Parts that could not be redacted: one phrase each."""
        if self._pseudonyms is not None:
            self._collect(self._pseudonyms)

    def _collect(self, pseudonyms: Pseudonyms) -> None:
        names = UserNames(self._kernel)
        tokens: list[Words] = []
        for batch in names.find():
            if not len(batch.physical):
                continue
            if isinstance(batch, Hashes):
                numbers = pseudonyms.numbers(batch.value.astype(np.uint64))
                data = numbers[:, None].view(np.uint8)
                patches = Patches(batch.physical, data, np.full(len(data), 4))
            else:
                # A zero after each row keeps the rows apart.
                text = np.pad(batch.text, ((0, 0), (0, 1))).ravel()
                tokens.append(token_hashes(text))
                pseudonyms.replace(text, text != 0)
                rows = text.reshape(len(batch.physical), -1)
                patches = Patches(batch.physical, rows, batch.room)
            # Sorted by batch only: sorting all of them would take as much memory again.
            self._patches.append(patches)
        self.missing = names.missing
        if not names.report.complete or names.report.objects_unreadable:
            self.missing.append("names in memory that is corrupt or missing from the dump")
        self._spans = np.array([patches.span for patches in self._patches]).reshape(-1, 2)
        words = b"\0".join(kernel_words(self._kernel))
        kernels = token_hashes(np.frombuffer(words, np.uint8))
        self._tokens = TokenSet(np.concatenate(tokens or [kernels])).without(kernels)

    def __call__(self, first_frame: int, pages: bytearray) -> None:
        """Redact pages in place."""
        if self._free is None or self._tasks is None:
            # Not earlier: looking up the last types may still record pages.
            report = ScanReport()
            self._free = free_slots(self._slab_map, self._recorded, report)
            self._tasks = task_memory(self._kernel, report)
            if not report.complete:
                self.missing.append("free objects of slabs that are corrupt or not in the dump")
        start = first_frame << self._kernel.memory.page_shift
        buffer = np.frombuffer(pages, np.uint8)
        free, links = self._free.inside(start, len(buffer))
        if self._pseudonyms is not None:
            # A hardened freelist pointer is a random number that may look like a token.
            kept = buffer[links]
            self._replace_tokens(start, buffer, self._pseudonyms)
            buffer[links] = kept
            # Second, because patches were made from the original names.
            low, high = self._spans.T
            for number in np.flatnonzero((low < start + len(buffer)) & (high > start)).tolist():
                self._patches[number].apply(start, buffer)
        buffer[free | self._tasks.inside(start, len(buffer))[0]] = 0

    def _replace_tokens(self, start: int, buffer: Bytes, pseudonyms: Pseudonyms) -> None:
        """Replace names that are separate tokens, also where they cross the ends of ``buffer``."""
        before = self._around(start - MAX_TOKEN_BYTES - 1)
        after = self._around(start + len(buffer))
        whole = np.concatenate([before, buffer, after])
        wanted = self._tokens.find(whole)
        low, high = self._image.start - start, self._image.stop - start
        wanted[max(low + len(before), 0) : max(high + len(before), 0)] = False
        if wanted.any():
            pseudonyms.replace(whole, wanted)
            buffer[:] = whole[len(before) : len(before) + len(buffer)]

    def _around(self, start: int) -> Bytes:
        """Return memory beside a buffer, or a separator if it is not readable."""
        try:
            raw = self._slab_map.prog.read(start, MAX_TOKEN_BYTES + 1, physical=True)
        except (drgn.FaultError, ValueError, OverflowError):
            raw = b"\0"
        return np.frombuffer(raw, np.uint8)


def _kernel_image(prog: drgn.Program) -> range:
    """Return the physical addresses of the kernel's code and constants, which no user named."""
    try:
        ends = [prog.symbol(name).address for name in ("_stext", "__end_rodata")]
        # The image is physically contiguous.
        start = int(follow_phys(prog["init_mm"].address_of_(), ends[0]))
        stop = start + ends[1] - ends[0]
    except (LookupError, drgn.FaultError):
        return range(0)
    return range(start, stop)
