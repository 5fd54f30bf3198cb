# SPDX-License-Identifier: LGPL-2.1-or-later
"""Record the reads and lookups of a target, and write them as a capsule."""

from __future__ import annotations

import json
import mmap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

import drgn
import numpy as np
import numpy.typing as npt
import zstandard
from drgn.helpers.linux.mm import follow_phys, pfn_to_virt

from kcensus.outputs import OutputError
from kcensus.progress import Progress
from kcensus.sources.capsule.container import BLOCK_PAGES, RUN, writing
from kcensus.sources.capsule.lookups import Lookups, Machine, ObjectData, assemble
from kcensus.sources.capsule.snapshot import Snapshot
from kcensus.sources.capsule.uses import Uses, keep_uses
from kcensus.sources.faults import REASONS, reason
from kcensus.sources.model import Target
from kcensus.sources.types.nodes import Interner, NotRecorded, Ref
from kcensus.sources.types.table import BadTypes

Scrub = Callable[[int, bytearray], None]
"""Changes pages in place before they are written: (first page frame, pages)."""

_MAX_FRAMES = 1 << 40
"""As many pages of 4 KiB as :data:`kcensus.arch.MAX_MEMORY_BYTES` has."""
_READ_PAGES = 4 * BLOCK_PAGES
_SAMPLED = 64
"""Pages in a row of a sample."""
_TAGGED = ("struct", "union", "class", "enum")


class Recorder:
    """Records all reads and lookups of a target.

    :param target: a dump, or a live kernel with a snapshot
    :param has_uses: whether to note in :attr:`uses` which bytes are used
    :param snapshot: memory of a live kernel, which would change before it is written
    """

    def __init__(
        self, target: Target, *, has_uses: bool = False, snapshot: Snapshot | None = None
    ) -> None:
        prog = target.prog
        self._prog, self.snapshot = prog, snapshot
        self._types = Interner()
        self._lookups = Lookups()
        self._page_size = int(prog["PAGE_SIZE"])
        frames = int(prog["max_pfn"])
        if not 0 < frames <= _MAX_FRAMES:
            raise OutputError(f"cannot record: max_pfn is {frames}, so the target is damaged")
        self._machine = Machine(
            arch=prog.platform.arch.name if prog.platform else "UNKNOWN",
            vmcoreinfo=prog["VMCOREINFO"].string_(),
            page_size=self._page_size,
            memory_bytes=frames * self._page_size,
            direct_map=int(pfn_to_virt(prog, 0)),
        )
        # Shared with forked workers, and allocated only where it is written.
        self._touched = mmap.mmap(-1, max(frames, 1))
        self.uses: Uses | None = None
        if has_uses:
            size, start = self._machine.memory_bytes, self._machine.direct_map
            try:
                self.uses = Uses(size, self._page_size, start, self._walk)
            except (OSError, OverflowError):
                raise OutputError(
                    f"cannot redact: memory ends at {size:#x}, so the target may be damaged"
                ) from None
        self._modules = target.modules
        self.target = replace(
            target,
            prog=assemble(self._machine, self._lookups, self),
            # The lookups of a worker would be lost.
            shareable=False,
            modules=self,
        )
        """The recorded target; analyses run on it as on the original."""
        if self.uses is not None:
            keep_uses(self.target.prog, self.uses)

    def _walk(self, address: int) -> int:
        prog = self.target.prog
        return int(follow_phys(prog["init_mm"].address_of_(), address))

    # The methods of Source and ModuleDebugInfo

    def find_type(self, kind: str, name: str, filename: str | None) -> Ref | None:
        query = f"{kind} {name}" if kind in _TAGGED else name
        try:
            ref = self._types.ref(self._prog.type(query, filename))
        except NotRecorded:  # even if it is a LookupError: unknown, not absent
            raise
        except (LookupError, SyntaxError):
            return None
        return ref if ref.node.kind.name.lower() == kind else None

    def find_object(self, name: str, flags: int, filename: str | None) -> ObjectData | None:
        try:
            variable = self._prog.object(name, drgn.FindObjectFlags(flags), filename)
        except NotRecorded:
            raise
        except LookupError:
            return None
        is_value = not variable.absent_ and variable.address_ is None
        value = variable.to_bytes_() if is_value else None
        return ObjectData(self._types.ref(variable.type_), variable.address_, value)

    def find_symbols(self, name: str | None, address: int | None, one: bool) -> list[drgn.Symbol]:
        wanted = address if name is None else name
        if not one:
            return list(self._prog.symbols(wanted))
        if wanted is None:
            return []
        try:
            return [self._prog.symbol(wanted)]
        except LookupError:
            return []

    def read(self, address: int, count: int) -> bytes:
        first, last = address // self._page_size, (address + count - 1) // self._page_size
        self._touched[first : last + 1] = b"\1" * (last + 1 - first)
        if self.uses is not None:
            self.uses.read(address, count)
        return self._memory(address, count)

    def _memory(self, address: int, count: int) -> bytes:
        if self.snapshot is not None:
            return self.snapshot.read(address, count)
        data: bytes = self._prog.read(address, count, physical=True)
        return data

    def need_modules(self, *names: str) -> list[str]:
        sentences = self._modules.need_modules(*names) if self._modules else []
        self._lookups.modules[names] = sentences
        return sentences

    def places(self) -> list[tuple[str, str]]:
        return self._modules.places() if self._modules else []

    # Writing

    @property
    def touched(self) -> npt.NDArray[np.bool_]:
        """Whether each page frame was read; a view that changes with each read."""
        return np.frombuffer(self._touched, np.bool_)

    def sample(self, pages: int, level: int, scrub: Scrub | None = None) -> tuple[float, float]:
        """Compress some of the pages; return bytes and seconds per page, 0 without any.

        :param scrub: as of :meth:`write`
        """
        frames = np.flatnonzero(self.touched)
        # Neighbours, as they are compressed together in a capsule.
        blocks = max(pages // _SAMPLED, 1)
        starts = np.linspace(0, max(len(frames) - _SAMPLED, 0), blocks).astype(int)
        size = count = 0
        begin = time.monotonic()
        for start in np.unique(starts):
            some = frames[start : start + _SAMPLED]
            status = np.zeros(len(some), np.uint32)
            data = b"".join(self._chunks(some, status, lambda _: None, scrub))
            size += len(zstandard.ZstdCompressor(level=level).compress(data))
            count += len(some)
        seconds = time.monotonic() - begin
        return size / max(count, 1), seconds / max(count, 1)

    def write(
        self,
        path: Path | BinaryIO,
        manifest: Mapping[str, Any],
        *,
        level: int,
        progress: Progress,
        scrub: Scrub | None = None,
    ) -> dict[str, int]:
        """Write the recording as a capsule.

        :param path: or an open file, empty
        :return: its ``bytes``, and how many pages are ``stored`` or ``unreadable``
        :raises OutputError: the capsule cannot be written, or a reader would refuse it
        """
        with writing(path, level) as writer:
            # This may look up more, and so read more pages.
            data = json.dumps(self._lookups.to_json(), separators=(",", ":")).encode()
            try:
                Lookups.from_json(json.loads(data), NotRecorded)
            except BadTypes as error:
                raise OutputError(
                    f"cannot write a capsule: a type of this kernel is not supported: {error}"
                ) from error
            frames = np.flatnonzero(self.touched)
            status = np.zeros(len(frames), np.uint32)
            with progress.step("writing the capsule", len(frames)) as step:
                blocks = _blocks(self._chunks(frames, status, step.advance, scrub), self._page_size)
                stored = writer.pages(lambda: _runs(frames, status), blocks) // self._page_size
            writer.section("lookups", data)
            counts = {"stored": stored, "unreadable": len(frames) - stored}
            machine = asdict(self._machine)
            writer.section("vmcoreinfo", machine.pop("vmcoreinfo"))
            size = writer.manifest({**manifest, "machine": machine, "pages": counts})
        return counts | {"bytes": size}

    def _chunks(
        self,
        frames: npt.NDArray[np.int64],
        status: npt.NDArray[np.uint32],
        advance: Callable[[int], None],
        scrub: Scrub | None,
    ) -> Iterator[bytes]:
        """Yield the content of readable page frames; note the others in ``status``."""
        for run in np.split(frames, np.flatnonzero(np.diff(frames) != 1) + 1):
            for start in range(0, len(run), _READ_PAGES):
                count = len(run[start : start + _READ_PAGES])
                yield from self._read_pages(int(run[start]), status[:count], scrub)
                status = status[count:]
                advance(count)

    def _read_pages(
        self, frame: int, status: npt.NDArray[np.uint32], scrub: Scrub | None
    ) -> Iterator[bytes]:
        try:
            data = self._memory(frame * self._page_size, len(status) * self._page_size)
        except (drgn.FaultError, ValueError) as error:
            if len(status) == 1:
                status[0] = 1 + REASONS.index(reason(error))
                return
            half = len(status) // 2
            yield from self._read_pages(frame, status[:half], scrub)
            yield from self._read_pages(frame + half, status[half:], scrub)
            return
        if scrub is not None:
            changed = bytearray(data)
            scrub(frame, changed)
            data = bytes(changed)
        yield data


def _blocks(chunks: Iterator[bytes], page_size: int) -> Iterator[bytes]:
    size = BLOCK_PAGES * page_size
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        while len(pending) >= size:
            yield bytes(pending[:size])
            del pending[:size]
    if pending:
        yield bytes(pending)


def _runs(frames: npt.NDArray[np.int64], status: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
    """Return page frames and their status as an array of :data:`RUN`."""
    begins = np.ones(len(frames), np.bool_)
    begins[1:] = (np.diff(frames) != 1) | (status[1:] != status[:-1])
    starts = np.flatnonzero(begins)
    runs = np.zeros(len(starts), RUN)
    runs["first"] = frames[starts]
    runs["pages"] = np.diff(np.append(starts, len(frames)))
    runs["status"] = status[starts]
    return runs
