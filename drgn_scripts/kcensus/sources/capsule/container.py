# SPDX-License-Identifier: LGPL-2.1-or-later
"""The file that a capsule is; FORMAT.md beside this module specifies it.

Nothing in the file is believed: sizes are bounded before anything is allocated for them, and
what was compressed must come out exactly as long as announced.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from kcensus.sources.capsule.typetable import BadTypes, as_integer, as_text
from kcensus.sources.faults import REASONS
from kcensus.sources.reader import os_reason

MAGIC = b"\x89kcaps\r\n"
VERSION = 1
BLOCK_PAGES = 256
"""Pages that are compressed together."""

_HEADER = struct.Struct("<8sIQQQ32s")
_MOST_MANIFEST = 1 << 18
_MOST_SECTION = 4 << 20
_MOST_INDEX = 64 << 20
RUN = np.dtype([("first", "<u8"), ("pages", "<u4"), ("status", "<u4")])
"""Pages in a row: the first page frame, how many, and 0 or 1 + the position in ``REASONS``."""
_MOST_FRAMES = 1 << 48
_COMPRESSORS = min(4, len(os.sched_getaffinity(0)))


class BadCapsule(Exception):
    """The file is no capsule, or damaged; the message says how, to follow its name.

    No ``ValueError``: those are caught where single pages cannot be read.
    """


class CannotWrite(Exception):
    """The file cannot be written; the message says why, to follow its name.

    No ``OSError``: while a capsule is made, those are the target's.
    """


@dataclass(frozen=True)
class Section:
    """Where a part of the file lies."""

    offset: int
    size: int
    raw_size: int
    """After decompression."""
    sha256: str
    """Digest of the part as it is stored."""


def is_capsule(path: str) -> bool:
    """Whether the file begins as capsules do; False if it cannot be read."""
    try:
        # Opening a FIFO wakes up its writer, and opening some devices does something.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False
    try:
        return os.pread(descriptor, len(MAGIC), 0) == MAGIC
    except OSError:
        return False
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Index:
    """Which pages a capsule holds, and where. Arrays of int64."""

    first: npt.NDArray[np.int64]
    """First page frame of each run, ascending."""
    pages: npt.NDArray[np.int64]
    """Pages in each run."""
    status: npt.NDArray[np.int64]
    """As in :data:`RUN`."""
    offsets: npt.NDArray[np.int64]
    """Where each block begins in the file, and the last one ends."""
    stored: int
    """Pages in all blocks."""


class Writer:
    """Writes a capsule beside its final place, and moves it there when all is well.

    Only its owner may read it, as is usual for what is made of a kernel's memory.

    :param level: of compression; 3 is fast, 19 small
    :raises CannotWrite: by all methods
    """

    def __init__(self, path: Path, level: int = 3) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._level = level
        self._sections: dict[str, Section] = {}

    def __enter__(self) -> Writer:
        with _writing():
            self._part.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self._part, flags, 0o600), "wb")
        self._write(bytes(_HEADER.size))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            with _writing() if kind is None else contextlib.suppress(OSError):
                self._file.close()
                if kind is None:
                    os.replace(self._part, self._path)
        finally:
            self._part.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        with _writing():
            self._file.write(data)

    def _compress(self, data: bytes) -> bytes:
        # One of its own for each call: they run in threads.
        return zstandard.ZstdCompressor(level=self._level, write_checksum=True).compress(data)

    def section(self, name: str, data: bytes) -> None:
        """Write a whole part."""
        offset, stored = self._file.tell(), self._compress(data)
        self._write(stored)
        digest = hashlib.sha256(stored).hexdigest()
        self._sections[name] = Section(offset, len(stored), len(data), digest)

    def json_section(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a part that is one JSON object.

        :raises CannotWrite: it is larger than a reader takes
        """
        data = json.dumps(document, separators=(",", ":")).encode()
        if len(data) > _MOST_SECTION:
            raise CannotWrite(f"{name} of {len(data)} bytes are more than a capsule can hold")
        self.section(name, data)

    def pages(self, runs: Callable[[], npt.NDArray[Any]], blocks: Iterable[bytes]) -> int:
        """Write pages and their index.

        :param runs: gives, once the blocks are written, an array of :data:`RUN`, ascending
        :param blocks: the stored pages, :data:`BLOCK_PAGES` in each but the last
        :return: bytes of the pages
        """
        offset, digest, total = self._file.tell(), hashlib.sha256(), 0
        sizes = []
        with ThreadPoolExecutor(_COMPRESSORS) as pool:
            for length, stored in _ahead(pool, self._compress, blocks):
                self._write(stored)
                digest.update(stored)
                sizes.append(len(stored))
                total += length
        place = Section(offset, self._file.tell() - offset, total, digest.hexdigest())
        self._sections["pages"] = place
        index = runs()
        counts = np.array([len(index), len(sizes)], "<u8")
        data = b"".join(part.tobytes() for part in (counts, index, np.array(sizes, "<u4")))
        if len(data) > _MOST_INDEX:
            raise CannotWrite(f"{total} bytes of memory are more than a capsule can hold")
        self.section("index", data)
        return total

    def manifest(self, manifest: Mapping[str, Any]) -> None:
        """Write what is told of the whole, and where its parts are; this comes last."""
        sections = {name: vars(section) for name, section in self._sections.items()}
        data = json.dumps({**manifest, "sections": sections}, indent=1).encode()
        offset, stored = self._file.tell(), self._compress(data)
        self._write(stored)
        with _writing():
            self._file.seek(0)
        digest = hashlib.sha256(stored).digest()
        self._write(_HEADER.pack(MAGIC, VERSION, offset, len(stored), len(data), digest))


class Reader:
    """A capsule on disk.

    :raises BadCapsule: it is none
    :raises OSError: it cannot be read
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115, open as long as its memory is read
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        self._size = os.fstat(self._file.fileno()).st_size
        header = self._pread(0, _HEADER.size)
        magic, version, offset, size, raw_size, digest = _HEADER.unpack(header)
        if magic != MAGIC:
            raise BadCapsule("is no capsule")
        if version != VERSION:
            raise BadCapsule(
                f"is a capsule of version {version}, and this kcensus reads version {VERSION}; "
                "install the kcensus that wrote it"
            )
        if raw_size > _MOST_MANIFEST or size > _most_stored(raw_size):
            raise BadCapsule("is damaged: its manifest is impossibly large")
        stored = self._pread(offset, size)
        if hashlib.sha256(stored).digest() != digest:
            raise BadCapsule("is damaged: its manifest does not match its digest")
        self.manifest = self._json("manifest", _decompress("manifest", stored, raw_size))
        self._sections = _read_sections(self.manifest.get("sections"), offset)

    def _pread(self, offset: int, size: int) -> bytes:
        if offset + size > self._size:
            raise BadCapsule("is truncated or damaged: it ends too early")
        data = os.pread(self._file.fileno(), size, offset)
        if len(data) != size:
            raise BadCapsule("is truncated: it ends too early")
        return data

    @staticmethod
    def _json(name: str, data: bytes) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BadCapsule(f"is damaged: its {name} cannot be parsed") from error
        if not isinstance(value, dict):
            raise BadCapsule(f"is damaged: its {name} is of the wrong form")
        return value

    def section(self, name: str, most: int = _MOST_SECTION) -> bytes:
        """A whole part, checked against its digest."""
        place = self._place(name)
        if place.raw_size > most or place.size > _most_stored(place.raw_size):
            raise BadCapsule(f"is damaged: its section {name} is impossibly large")
        stored = self._pread(place.offset, place.size)
        if hashlib.sha256(stored).hexdigest() != place.sha256:
            raise BadCapsule(f"is damaged: its section {name} does not match its digest")
        return _decompress(name, stored, place.raw_size)

    def json_section(self, name: str) -> dict[str, Any]:
        """A part that is one JSON object."""
        return self._json(name, self.section(name))

    def _place(self, name: str) -> Section:
        if name not in self._sections:
            raise BadCapsule(f"is damaged: it lacks its section {name}")
        return self._sections[name]

    def index(self, page_size: int) -> Index:
        """Which pages the capsule holds, and where.

        :param page_size: bytes
        :raises BadCapsule: the index contradicts itself or the file
        """
        data = self.section("index", _MOST_INDEX)
        if len(data) < 16:
            raise BadCapsule("is damaged: its index is too short")
        runs, blocks = np.frombuffer(data, "<u8", 2).tolist()
        if len(data) != 16 + runs * RUN.itemsize + blocks * 4:
            raise BadCapsule("is damaged: its index is of the wrong length")
        found = np.frombuffer(data, RUN, runs, 16)
        stored = int(found["pages"][found["status"] == 0].sum(dtype=np.int64))
        if blocks != -(-stored // BLOCK_PAGES):
            raise BadCapsule("is damaged: its index does not match its pages")
        sizes = np.frombuffer(data, "<u4", blocks, 16 + runs * RUN.itemsize).astype(np.int64)
        first, pages = found["first"].astype(np.int64), found["pages"].astype(np.int64)
        if (
            (found["first"] > _MOST_FRAMES).any()
            or (pages == 0).any()
            or (first[1:] < (first + pages)[:-1]).any()
            or (found["status"] > len(REASONS)).any()
        ):
            raise BadCapsule("is damaged: its index names impossible pages")
        place = self._place("pages")
        if sizes.sum() != place.size or place.raw_size != stored * page_size:
            raise BadCapsule("is damaged: its index does not match its pages")
        offsets = place.offset + np.concatenate([[0], np.cumsum(sizes)])
        return Index(first, pages, found["status"].astype(np.int64), offsets, stored)

    def block(self, index: Index, number: int, page_size: int) -> bytes:
        """The stored pages of one block."""
        offset, end = index.offsets[number : number + 2].tolist()
        size = min(BLOCK_PAGES, index.stored - number * BLOCK_PAGES) * page_size
        if end - offset > _most_stored(size):
            raise BadCapsule("is damaged: its memory is impossibly large")
        return _decompress("memory", self._pread(offset, end - offset), size)

    def verify(self) -> list[str]:
        """Names of the parts that do not match their digests; reads the whole file."""
        bad = []
        for name, place in self._sections.items():
            digest, offset, end = hashlib.sha256(), place.offset, place.offset + place.size
            while offset < end:
                digest.update(self._pread(offset, min(4 << 20, end - offset)))
                offset = min(offset + (4 << 20), end)
            if digest.hexdigest() != place.sha256:
                bad.append(name)
        return bad


def _ahead(
    pool: ThreadPoolExecutor, work: Callable[[bytes], bytes], items: Iterable[bytes]
) -> Iterator[tuple[int, bytes]]:
    """The length of each item and what becomes of it, in order, a few at a time."""
    pending: deque[tuple[int, Future[bytes]]] = deque()
    for item in items:
        pending.append((len(item), pool.submit(work, item)))
        if len(pending) > 2 * _COMPRESSORS:
            length, done = pending.popleft()
            yield length, done.result()
    for length, done in pending:
        yield length, done.result()


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"cannot be written ({os_reason(error)})") from error


def _most_stored(raw_size: int) -> int:
    """Bytes that so many come to when they cannot be compressed, generously."""
    return raw_size + (raw_size >> 7) + 1024


def _decompress(name: str, stored: bytes, raw_size: int) -> bytes:
    try:
        # Where a frame tells its size, zstandard allocates that, whatever the limit.
        if zstandard.frame_content_size(stored) != raw_size:
            raise BadCapsule(f"is damaged: its {name} has not the size announced")
        return zstandard.ZstdDecompressor().decompress(
            stored, max_output_size=raw_size, allow_extra_data=False
        )
    except (zstandard.ZstdError, ValueError, MemoryError) as error:
        raise BadCapsule(f"is damaged: its {name} cannot be decompressed") from error


def _read_sections(found: Any, end: int) -> dict[str, Section]:
    """Where the sections are: somewhere between the header and the manifest at ``end``."""
    sections = {}
    try:
        if not isinstance(found, dict) or len(found) > 64:
            raise BadTypes("no sections")
        for name, place in found.items():
            if not isinstance(place, dict):
                raise BadTypes("no section")
            sections[as_text(name)] = Section(
                offset=as_integer(place.get("offset"), end, _HEADER.size),
                size=as_integer(place.get("size"), end),
                raw_size=as_integer(place.get("raw_size"), 1 << 62),
                sha256=as_text(place.get("sha256")),
            )
    except BadTypes as error:
        raise BadCapsule("is damaged: its list of sections is of the wrong form") from error
    places = sorted(
        (section.offset, section.offset + section.size) for section in sections.values()
    )
    if any(after[0] < before[1] for before, after in pairwise([*places, (end, end)])):
        raise BadCapsule("is damaged: its sections overlap")
    return sections
