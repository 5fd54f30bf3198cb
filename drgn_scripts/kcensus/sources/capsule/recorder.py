# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records what is read from a target, and writes it as a capsule."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.mm import pfn_to_virt

from kcensus.progress import Progress
from kcensus.sources.capsule.container import BLOCK_PAGES, RUN, CannotWrite, Writer
from kcensus.sources.capsule.lookups import Lookups
from kcensus.sources.capsule.program import (
    Machine,
    ObjectData,
    ObjectKey,
    SymbolKey,
    TypeKey,
    assemble,
)
from kcensus.sources.capsule.types import KEYWORDS, Interner, NotRecorded, Ref
from kcensus.sources.capsule.typetable import BadTypes
from kcensus.sources.faults import REASONS, reason
from kcensus.sources.model import Target

Scrub = Callable[[int, bytearray], None]
"""Changes pages before they are written: given the first page frame and the pages."""

_READ_PAGES = 4 * BLOCK_PAGES
_PREFIXES = {kind.name.lower(): word + " " for kind, word in KEYWORDS.items()}


class Recorder:
    """A target that remembers what it was asked for.

    :param target: a dump; what a live kernel holds would change before it is written
    """

    def __init__(self, target: Target) -> None:
        prog = target.prog
        self._prog = prog
        self._types = Interner()
        self._lookups = Lookups()
        self.page_size = int(prog["PAGE_SIZE"])
        frames = int(prog["max_pfn"])
        self.machine = Machine(
            arch=prog.platform.arch.name if prog.platform else "UNKNOWN",
            vmcoreinfo=prog["VMCOREINFO"].string_(),
            memory_bytes=frames * self.page_size,
            direct_map=int(pfn_to_virt(prog, 0)),
        )
        # Shared with forked workers, and as sparse as what is read.
        self._touched = mmap.mmap(-1, max(frames, 1))
        self._modules = target.modules
        self.target = replace(
            target,
            prog=assemble(self.machine, self),
            # What a worker looks up would be lost with it.
            shareable=False,
            modules=self,
        )
        """Runs analyses as the original does."""

    # What target.capsule.program.Source asks for

    def find_type(self, key: TypeKey) -> Ref | None:
        if key not in self._lookups.types:
            query = _PREFIXES.get(key.kind, "") + key.name
            try:
                found = self._types.ref(self._prog.type(query, key.filename))
            except (LookupError, SyntaxError):
                found = None
            if found and found.node.kind.name.lower() != key.kind:
                found = None
            self._lookups.types[key] = found
        return self._lookups.types[key]

    def find_object(self, key: ObjectKey) -> ObjectData | None:
        if key not in self._lookups.objects:
            flags = drgn.FindObjectFlags(key.flags)
            try:
                found = self._prog.object(key.name, flags, key.filename)
            except LookupError:
                self._lookups.objects[key] = None
            else:
                self._lookups.objects[key] = self._object(found)
        return self._lookups.objects[key]

    def _object(self, found: drgn.Object) -> ObjectData:
        ref = self._types.ref(found.type_)
        if found.absent_:
            return ObjectData(ref)
        if found.address_ is not None:
            return ObjectData(ref, address=found.address_)
        return ObjectData(ref, value=found.to_bytes_())

    def find_symbols(self, key: SymbolKey) -> list[drgn.Symbol]:
        if key not in self._lookups.symbols:
            self._lookups.symbols[key] = self._symbols(key)
        return self._lookups.symbols[key]

    def _symbols(self, key: SymbolKey) -> list[drgn.Symbol]:
        wanted = key.name if key.name is not None else key.address
        if not key.one:
            return list(self._prog.symbols(wanted))
        if wanted is None:
            return []
        try:
            return [self._prog.symbol(wanted)]
        except LookupError:
            return []

    def read(self, address: int, count: int) -> bytes:
        first, last = address // self.page_size, (address + count - 1) // self.page_size
        self._touched[first : last + 1] = b"\1" * (last + 1 - first)
        data: bytes = self._prog.read(address, count, physical=True)
        return data

    def need_modules(self, *names: str) -> list[str]:
        """See :meth:`kcensus.sources.model.Target.need_modules`."""
        said = self._modules.need_modules(*names) if self._modules else []
        self._lookups.modules[names] = said
        return said

    def places(self) -> list[tuple[str, str]]:
        """See :meth:`kcensus.sources.model.ModuleDebugInfo.places`."""
        return self._modules.places() if self._modules else []

    # Writing

    @property
    def pages(self) -> int:
        """Pages asked for so far."""
        return int(np.count_nonzero(self.touched))

    @property
    def touched(self) -> npt.NDArray[np.bool_]:
        """Per page frame, whether it was asked for; keeps changing with each read."""
        return np.frombuffer(self._touched, np.bool_)

    def write(
        self,
        path: Path,
        manifest: Mapping[str, Any],
        *,
        level: int,
        progress: Progress,
        scrub: Scrub | None = None,
    ) -> dict[str, int]:
        """Write all that was recorded.

        :param manifest: what to tell of it besides
        :param level: of compression
        :param scrub: changes pages on their way
        :return: how many pages were stored, and how many could not be read
        """
        with Writer(path, level) as writer:
            document = self._lookups.to_json()  # may look up, and so read, still more
            _check(document)
            frames = np.flatnonzero(self.touched)
            status = np.zeros(len(frames), np.uint32)
            with progress.step("writing the capsule", len(frames)) as step:
                blocks = _blocks(self._chunks(frames, status, step.advance, scrub), self.page_size)
                size = writer.pages(lambda: _runs(frames, status), blocks)
            writer.json_section("lookups", document)
            stored = size // self.page_size
            counts = {"stored": stored, "unreadable": len(frames) - stored}
            machine = {
                "arch": self.machine.arch,
                "memory_bytes": self.machine.memory_bytes,
                "direct_map": self.machine.direct_map,
                "page_size": self.page_size,
            }
            writer.section("vmcoreinfo", self.machine.vmcoreinfo)
            writer.manifest({**manifest, "machine": machine, "pages": counts})
        return counts

    def _chunks(
        self,
        frames: npt.NDArray[np.int64],
        status: npt.NDArray[np.uint32],
        advance: Callable[[int], None],
        scrub: Scrub | None,
    ) -> Iterator[bytes]:
        """The readable ones of the page frames, as they lie in memory; notes the others."""
        breaks = np.flatnonzero(np.diff(frames) != 1) + 1
        for run in np.split(np.arange(len(frames)), breaks):
            for start in range(0, len(run), _READ_PAGES):
                part = run[start : start + _READ_PAGES]
                if len(part):
                    yield from self._read_pages(
                        int(frames[part[0]]), status[part[0] : part[-1] + 1], scrub
                    )
                    advance(len(part))

    def _read_pages(
        self, frame: int, status: npt.NDArray[np.uint32], scrub: Scrub | None
    ) -> Iterator[bytes]:
        try:
            data = self._prog.read(frame * self.page_size, len(status) * self.page_size, True)
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


def _check(document: dict[str, Any]) -> None:
    """Refuse to write what nobody could read.

    :raises CannotWrite: a type is larger or stranger than a reader takes
    """
    try:
        # As JSON has it: tuples become lists.
        Lookups.from_json(json.loads(json.dumps(document)), NotRecorded)
    except BadTypes as error:
        raise CannotWrite(f"cannot hold the types of this kernel: {error}") from error


def _blocks(chunks: Iterator[bytes], page_size: int) -> Iterator[bytes]:
    """The same bytes in blocks of equal length, but the last."""
    size = BLOCK_PAGES * page_size
    pending: list[bytes] = []
    held = 0
    for chunk in chunks:
        pending.append(chunk)
        held += len(chunk)
        if held >= size:
            data = b"".join(pending)
            whole = held // size * size
            for start in range(0, whole, size):
                yield data[start : start + size]
            pending, held = [data[whole:]], held - whole
    if held:
        yield b"".join(pending)


def _runs(frames: npt.NDArray[np.int64], status: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
    """Page frames with their status as runs of :data:`RUN`."""
    starts = (
        np.flatnonzero(
            np.concatenate(
                [[True], (np.diff(frames) != 1) | (np.diff(status.astype(np.int64)) != 0)]
            )
        )
        if len(frames)
        else np.zeros(0, np.int64)
    )
    runs = np.zeros(len(starts), RUN)
    runs["first"] = frames[starts]
    runs["pages"] = np.diff(np.append(starts, len(frames)))
    runs["status"] = status[starts]
    return runs
