# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read and write capsule files; FORMAT.md in this folder specifies them.

Files are untrusted: sizes are bounded before memory is allocated, and data must decompress to
exactly its declared size.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import drgn
import numpy as np
import numpy.typing as npt
import zstandard

from kcensus.outputs import OutputError, replacing
from kcensus.sources.faults import REASONS, UNRECORDED
from kcensus.sources.model import TargetError
from kcensus.sources.reader import FileReader
from kcensus.sources.types.table import BadTypes, as_integer, as_object, as_text

MAGIC = b"\x89kcaps\r\n"
VERSION = 1
BLOCK_PAGES = 256
"""Pages in a block, which is compressed as a whole."""

_HEADER = struct.Struct("<8sIQQQ32s")
_MAX_MANIFEST = 1 << 18
_MAX_SECTION = 4 << 20
_MAX_INDEX = 64 << 20
_MAX_SECTIONS = 64
_MAX_FRAMES = 1 << 48
_MAX_CACHED_BYTES = 64 << 20
_MAX_CACHED_PLACES = 1 << 14
_CHUNK = 4 << 20
RUN = np.dtype([("first", "<u8"), ("pages", "<u4"), ("status", "<u4")])
"""Consecutive pages: first page frame, number of pages, 0 or 1 + the position in ``REASONS``."""
_THREADS = min(4, len(os.sched_getaffinity(0)))


# Not a ValueError, which readers of memory treat as an unreadable page.
class BadCapsule(Exception):
    """The file is not a capsule, or is corrupt; the message follows the name of the file."""


def corrupt(reason: object) -> BadCapsule:
    """Return the error for a corrupt capsule."""
    return BadCapsule(f"is corrupt: {reason}; copy it again")


# Not an OSError: while a capsule is created, these come from the target.
@dataclass(frozen=True)
class Section:
    """Position and size of a section in the file, and the digest of the stored bytes."""

    offset: int
    size: int
    raw_size: int
    """Size after decompression."""
    sha256: str


def is_capsule(path: str) -> bool:
    """Return whether the file begins with the magic of a capsule; False if it is unreadable."""
    try:
        with FileReader(path) as reader:
            return reader.read(0, len(MAGIC)) == MAGIC
    except TargetError:
        return False


@dataclass(frozen=True)
class Index:
    """The pages in a capsule and their positions, as arrays of int64."""

    first: npt.NDArray[np.int64]
    """First page frame of each run, ascending."""
    pages: npt.NDArray[np.int64]
    status: npt.NDArray[np.int64]
    """Status of each run, as in :data:`RUN`."""
    offsets: npt.NDArray[np.int64]
    """Position of each block in the file, and the end of the last one."""
    positions: npt.NDArray[np.int64]
    """Position of the first page of each run among the stored pages, and their number."""


@contextmanager
def writing(path: Path | BinaryIO, level: int = 3) -> Iterator[Writer]:
    """Yield a writer of a capsule, which only its owner may read.

    :param path: or an open file, empty
    :param level: zstd compression level; 3 is fast, 19 is small
    :raises OutputError: it cannot be written, as of :func:`replacing`
    """
    with _opened(path) as file:
        file.write(bytes(_HEADER.size))
        yield Writer(file, level)


@contextmanager
def _opened(path: Path | BinaryIO) -> Iterator[BinaryIO]:
    if isinstance(path, Path):
        with replacing(path, 0o600) as part, part.open("wb") as file:
            yield file
    else:
        yield path


class Writer:
    """Writes a capsule to a file that has room for the header.

    :raises OSError: by all methods
    """

    def __init__(self, file: BinaryIO, level: int) -> None:
        self._file = file
        self._level = level
        self._sections: dict[str, Section] = {}

    def _compress(self, data: bytes) -> bytes:
        # A new compressor for each call, because calls run in threads.
        return zstandard.ZstdCompressor(level=self._level, write_checksum=True).compress(data)

    def section(self, name: str, data: bytes, limit: int = _MAX_SECTION) -> None:
        """Write a section of up to ``limit`` bytes."""
        if len(data) > limit:
            raise OutputError(
                f"cannot write a capsule: section '{name}' of {len(data)} bytes exceeds {limit}"
            )
        self._blocks(name, [data])

    def _blocks(self, name: str, blocks: Iterable[bytes]) -> tuple[int, list[int]]:
        """Write a section of blocks that are compressed separately; return its size, and theirs."""
        offset, digest, total = self._file.tell(), hashlib.sha256(), 0
        pending: deque[Future[bytes]] = deque()
        sizes = []

        def write(most: int) -> None:
            """Write until at most ``most`` blocks are pending."""
            while len(pending) > most:
                stored = pending.popleft().result()
                self._file.write(stored)
                digest.update(stored)
                sizes.append(len(stored))

        with ThreadPoolExecutor(_THREADS) as pool:
            for block in blocks:
                total += len(block)
                pending.append(pool.submit(self._compress, block))
                write(2 * _THREADS)
            write(0)
        self._sections[name] = Section(offset, sum(sizes), total, digest.hexdigest())
        return total, sizes

    def pages(self, runs: Callable[[], npt.NDArray[Any]], blocks: Iterable[bytes]) -> int:
        """Write pages and their index.

        :param runs: returns an ascending array of :data:`RUN`; called after ``blocks`` is consumed
        :param blocks: the stored pages, :data:`BLOCK_PAGES` in each block but the last
        :return: bytes of all pages
        """
        total, sizes = self._blocks("pages", blocks)
        index = runs()
        counts = np.array([len(index), len(sizes)], "<u8")
        data = b"".join(part.tobytes() for part in (counts, index, np.array(sizes, "<u4")))
        self.section("index", data, _MAX_INDEX)
        return total

    def manifest(self, manifest: Mapping[str, Any]) -> int:
        """Write the manifest with the table of sections, last; return the bytes of the file."""
        sections = {name: vars(section) for name, section in self._sections.items()}
        data = json.dumps({**manifest, "sections": sections}, indent=1).encode()
        offset, stored = self._file.tell(), self._compress(data)
        self._file.write(stored)
        self._file.seek(0)
        digest = hashlib.sha256(stored).digest()
        self._file.write(_HEADER.pack(MAGIC, VERSION, offset, len(stored), len(data), digest))
        return offset + len(stored)


class Reader:
    """Reads a capsule; raises :class:`BadCapsule` or ``OSError``."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115, open as long as its memory is read
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self.manifest, end = self._read_manifest()
            self._sections = _read_sections(self.manifest.get("sections"), end)
        except BaseException:
            self._file.close()
            raise

    def _read_manifest(self) -> tuple[dict[str, Any], int]:
        header = self._pread(0, _HEADER.size)
        magic, version, offset, size, raw_size, digest = _HEADER.unpack(header)
        if magic != MAGIC:
            raise BadCapsule("is not a capsule; pass one that `kcensus capsule create` wrote")
        if version != VERSION:
            raise BadCapsule(
                f"is a capsule of version {version}, but this kcensus reads version {VERSION}; "
                "install the kcensus that wrote it"
            )
        section = Section(offset, size, raw_size, digest.hex())
        return _parse("the manifest", self._read("the manifest", section, _MAX_MANIFEST)), offset

    def _pread(self, offset: int, size: int) -> bytes:
        # pread() fails with EINVAL for an offset that off_t cannot hold.
        if offset + size <= self._size:
            data = os.pread(self._file.fileno(), size, offset)
            if len(data) == size:
                return data
        raise BadCapsule("is truncated or corrupt: it ends too early; copy it again")

    def _read(self, name: str, section: Section, limit: int) -> bytes:
        """Return the content of a section of up to ``limit`` bytes, checked against its digest."""
        if section.raw_size > limit or section.size > _max_stored(section.raw_size):
            raise corrupt(f"{name} is too large")
        stored = self._pread(section.offset, section.size)
        if hashlib.sha256(stored).hexdigest() != section.sha256:
            raise corrupt(f"{name} does not match its digest")
        return _decompress(name, stored, section.raw_size)

    def section(self, name: str, limit: int = _MAX_SECTION) -> bytes:
        """Return the content of a section of at most ``limit`` bytes.

        :raises BadCapsule: it is missing, is corrupt, or has more than ``limit`` bytes
        """
        return self._read(f"section '{name}'", self._section(name), limit)

    def json_section(self, name: str) -> dict[str, Any]:
        """Return a section that is one JSON object."""
        return _parse(f"section '{name}'", self.section(name))

    def _section(self, name: str) -> Section:
        if name not in self._sections:
            raise corrupt(f"section '{name}' is missing")
        return self._sections[name]

    def index(self, page_size: int) -> Index:
        """Return the pages of the capsule and their positions.

        :raises BadCapsule: the index contradicts itself or the file
        """
        data = self.section("index", _MAX_INDEX)
        if len(data) < 16:
            raise corrupt("the index is too short")
        runs, blocks = np.frombuffer(data, "<u8", 2).tolist()
        if len(data) != 16 + runs * RUN.itemsize + blocks * 4:
            raise corrupt("the index has the wrong length")
        table = np.frombuffer(data, RUN, runs, 16)
        sizes = np.frombuffer(data, "<u4", blocks, 16 + runs * RUN.itemsize).astype(np.int64)
        first, pages, status = (table[name].astype(np.int64) for name in RUN.names or ())
        positions = np.concatenate([[0], np.cumsum(np.where(status == 0, pages, 0))])
        stored = int(positions[-1])
        section = self._section("pages")
        if (
            blocks != -(-stored // BLOCK_PAGES)
            or sizes.sum() != section.size
            or section.raw_size != stored * page_size
        ):
            raise corrupt("the index does not match section 'pages'")
        if (
            (table["first"] > _MAX_FRAMES).any()
            or (pages == 0).any()
            or (first[1:] < (first + pages)[:-1]).any()
            or (status > len(REASONS)).any()
        ):
            raise corrupt("the index has an invalid run of pages")
        offsets = section.offset + np.concatenate([[0], np.cumsum(sizes)])
        return Index(first, pages, status, offsets, positions)

    def block(self, index: Index, number: int, page_size: int) -> bytes:
        """Return the pages of one block."""
        offset, end = index.offsets[number : number + 2].tolist()
        size = min(BLOCK_PAGES, int(index.positions[-1]) - number * BLOCK_PAGES) * page_size
        if end - offset > _max_stored(size):
            raise corrupt(f"block {number} is too large")
        return _decompress(f"block {number}", self._pread(offset, end - offset), size)

    def verify(self) -> list[str]:
        """Return the names of the sections that do not match their digest; reads the whole file."""
        return [name for name, each in self._sections.items() if self._digest(each) != each.sha256]

    def _digest(self, section: Section) -> str:
        digest, end = hashlib.sha256(), section.offset + section.size
        for start in range(section.offset, end, _CHUNK):
            digest.update(self._pread(start, min(_CHUNK, end - start)))
        return digest.hexdigest()


class PageStore:
    """Reads physical memory from a capsule; pages that are corrupt raise :class:`BadCapsule`."""

    def __init__(self, reader: Reader, page_size: int) -> None:
        index = reader.index(page_size)
        self._size = page_size
        self._block = functools.lru_cache(_MAX_CACHED_BYTES // (BLOCK_PAGES * page_size))(
            functools.partial(reader.block, index, page_size=page_size)
        )
        # Address translation reads the same few pages of page tables again and again.
        self._place = functools.lru_cache(_MAX_CACHED_PLACES)(
            functools.partial(_place, index, page_size=page_size)
        )

    def read(self, address: int, count: int) -> bytes:
        """Return physical memory; raises :class:`drgn.FaultError` with one of ``REASONS``."""
        size = self._size
        pieces = []
        end = address + count
        while address < end:
            frame, within = divmod(address, size)
            block, page, pages = self._place(frame)
            length = min(pages * size - within, end - address)
            start = page * size + within
            pieces.append(self._block(block)[start : start + length])
            address += length
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _place(index: Index, frame: int, page_size: int) -> tuple[int, int, int]:
    """Return the block of a page, its number there, and the number of pages from it on in both."""
    run = int(np.searchsorted(index.first, frame, side="right")) - 1
    offset = frame - int(index.first[run]) if run >= 0 else 0
    if run < 0 or offset >= index.pages[run]:
        raise drgn.FaultError(UNRECORDED, frame * page_size)
    if status := int(index.status[run]):
        raise drgn.FaultError(REASONS[status - 1], frame * page_size)
    block, page = divmod(int(index.positions[run]) + offset, BLOCK_PAGES)
    return block, page, min(int(index.pages[run]) - offset, BLOCK_PAGES - page)


def _max_stored(raw_size: int) -> int:
    # Incompressible data takes less.
    return raw_size + (raw_size >> 7) + 1024


def _decompress(name: str, stored: bytes, raw_size: int) -> bytes:
    try:
        # zstandard allocates the size that a frame states, whatever max_output_size is.
        if zstandard.frame_content_size(stored) != raw_size:
            raise corrupt(f"{name} does not decompress to its declared size")
        return zstandard.ZstdDecompressor().decompress(
            stored, max_output_size=raw_size, allow_extra_data=False
        )
    except (zstandard.ZstdError, ValueError) as error:
        raise corrupt(f"{name} cannot be decompressed") from error


def _parse(name: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise corrupt(f"{name} is not valid JSON") from error
    if not isinstance(value, dict):
        raise corrupt(f"{name} is not a JSON object")
    return value


def _read_sections(table: Any, end: int) -> dict[str, Section]:
    """Return the sections, all of them between the header and the manifest at ``end``."""
    try:
        if len(as_object(table)) > _MAX_SECTIONS:
            raise BadTypes("the table of sections is too long")
        sections = {
            as_text(name): Section(
                offset=as_integer(row.get("offset"), end, _HEADER.size),
                size=as_integer(row.get("size"), end),
                raw_size=as_integer(row.get("raw_size"), 1 << 62),
                sha256=as_text(row.get("sha256")),
            )
            for name, row in table.items()
        }
    except (BadTypes, AttributeError) as error:
        raise corrupt("the table of sections is invalid") from error
    spans = sorted((section.offset, section.offset + section.size) for section in sections.values())
    if any(after[0] < before[1] for before, after in pairwise([*spans, (end, end)])):
        raise corrupt("sections overlap")
    return sections
