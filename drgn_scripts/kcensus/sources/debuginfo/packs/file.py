# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read and write type packs; FORMAT.md in this folder specifies them.

Files are untrusted: sizes are bounded before memory is allocated.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from kcensus.sources.debuginfo.packs.symbols import Columns
from kcensus.sources.formats.elf import version_of
from kcensus.sources.model import TargetError
from kcensus.sources.reader import FileReader
from kcensus.sources.types.table import BadTypes, as_integer, as_list, as_object, as_text
from kcensus.text import printable

MAGIC = b"\x89ktyps\r\n"
VERSION = 1
SUFFIX = ".kctypes"

_HEADER = struct.Struct("<8sII32s")
_MAX_FILE = 64 << 20
_MAX_HEAD = 1 << 16
_MAX_PART = 256 << 20
_MAX_DOCUMENT = 16 << 20
_MAX_PARTS = 1 << 10
_MAX_CONTENTS = 1 << 12
_MAX_ADDRESS = (1 << 64) - 1
_BUILD_ID = re.compile(r"[0-9a-f]{2,128}")
_DOCUMENT = "types"


@dataclass(frozen=True)
class Head:
    """Which kernel a pack is of."""

    arch: str
    release: str
    build_id: str | None
    contents: tuple[tuple[int, bytes], ...]
    """Linked address and bytes of ``linux_banner`` and of the build ID."""
    extent: tuple[int, int]
    """First and last address of the image, as linked."""
    anchors: tuple[tuple[str, int], ...] = ()
    """Linked addresses of symbols that VMCOREINFO has, too."""

    def __str__(self) -> str:
        build_id = f"build ID {self.build_id}" if self.build_id else ""
        return ", ".join(filter(None, (self.release, build_id)))

    @property
    def banner(self) -> str:
        """Release and version."""
        return printable(f"{self.release} {version_of(self.contents)}".strip())

    @property
    def file_name(self) -> str:
        """The name of the pack: the build ID, or a digest of ``linux_banner``."""
        banner = self.contents[-1][1] if self.contents else b""
        return (self.build_id or hashlib.sha256(banner).hexdigest()[:40]) + SUFFIX


def is_pack(path: Path) -> bool:
    """Return whether a file has the name of a type pack, or begins with the magic of one.

    A damaged pack may have only the name.
    """
    if path.suffix == SUFFIX:
        return True
    try:
        with FileReader(path) as reader:
            return reader.read(0, len(MAGIC)) == MAGIC
    except TargetError:
        return False


def encode(head: Head, document: dict[str, Any], symbols: dict[str, Columns]) -> bytes:
    """Return a pack.

    :param symbols: symbol tables by module, the kernel's under ""
    """
    raw = {_DOCUMENT: json.dumps(document, separators=(",", ":")).encode()}
    raw |= {f"symbols:{name}": columns.to_bytes() for name, columns in symbols.items()}
    compressor = zstandard.ZstdCompressor(level=19)
    parts = {name: compressor.compress(data) for name, data in raw.items()}
    about = {
        "arch": head.arch,
        "release": head.release,
        "build_id": head.build_id,
        "contents": [[address, data.hex()] for address, data in head.contents],
        "extent": head.extent,
        "anchors": head.anchors,
        "parts": [[name, len(parts[name]), len(data)] for name, data in raw.items()],
    }
    body = json.dumps(about, separators=(",", ":")).encode()
    size = len(body)
    body += b"".join(parts.values())
    return _HEADER.pack(MAGIC, VERSION, size, hashlib.sha256(body).digest()) + body


class Pack:
    """An opened pack: its head, and its parts when they are asked for.

    :raises TargetError: it is not a pack, or is corrupt
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with FileReader(path) as reader:
            self.name = reader.name
            header = reader.exact(0, _HEADER.size, "header")
            magic, version, size, self._digest = _HEADER.unpack(header)
            if magic != MAGIC and path.suffix == SUFFIX:
                raise self.corrupt("it does not begin like one")
            if magic != MAGIC:
                raise TargetError(
                    f"{self.name}: is not a type pack; pass one that `kcensus types save` wrote"
                )
            if version != VERSION:
                raise TargetError(
                    f"{self.name}: is a type pack of version {version}, but this kcensus reads "
                    f"version {VERSION}; write it again with `kcensus types save`"
                )
            self._size = reader.size
            self._start = _HEADER.size + min(size, _MAX_HEAD)
            try:
                about = as_object(_parse(reader.exact(_HEADER.size, min(size, _MAX_HEAD), "head")))
                self.head = _head(about)
                self._parts = self._read_parts(about)
            except BadTypes as error:
                raise self.corrupt(error) from error
        self._body: bytes | None = None

    def corrupt(self, reason: object) -> TargetError:
        """Return the error for a corrupt pack."""
        return TargetError(f"{self.name}: is a corrupt type pack: {reason}; copy it again")

    def _read_parts(self, about: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
        """Return offset, stored and raw size of each part."""
        parts, offset = {}, self._start
        for row in as_list(about.get("parts"))[:_MAX_PARTS]:
            name, stored, raw = as_list(row, 3)[:3]
            limit = _MAX_DOCUMENT if name == _DOCUMENT else _MAX_PART
            size = as_integer(stored, _MAX_FILE)
            parts[as_text(name)] = offset, size, as_integer(raw, limit)
            offset += size
        if offset != self._size:
            raise BadTypes("its parts do not fill it")
        return parts

    def _part(self, name: str) -> bytes:
        if name not in self._parts:
            raise BadTypes(f"part '{name}' is missing")
        if self._body is None:
            with FileReader(self.path) as reader:
                body = reader.exact(_HEADER.size, self._size - _HEADER.size, "content")
            if hashlib.sha256(body).digest() != self._digest:
                raise BadTypes("it does not match its digest")
            self._body = body
        offset, stored, raw = self._parts[name]
        data = self._body[offset - _HEADER.size :][:stored]
        try:
            # zstandard allocates the size that a frame states, whatever max_output_size is.
            if zstandard.frame_content_size(data) != raw:
                raise BadTypes(f"part '{name}' does not decompress to its declared size")
            return zstandard.ZstdDecompressor().decompress(
                data, max_output_size=raw, allow_extra_data=False
            )
        except (zstandard.ZstdError, ValueError) as error:
            raise BadTypes(f"part '{name}' cannot be decompressed") from error

    def document(self) -> dict[str, Any]:
        """Return the types and objects; raises :class:`BadTypes`."""
        return as_object(_parse(self._part(_DOCUMENT)))

    def symbols(self, module: str = "") -> Columns:
        """Return the symbols of a module, or of the kernel; raises :class:`BadTypes`."""
        return Columns.from_bytes(self._part(f"symbols:{module}"))


def _head(about: dict[str, Any]) -> Head:
    build_id = about.get("build_id")
    if build_id is not None and not _BUILD_ID.fullmatch(as_text(build_id)):
        raise BadTypes("the build ID is not hexadecimal")
    contents = []
    for row in as_list(about.get("contents"))[:2]:
        address, text = as_list(row, 2)[:2]
        if len(as_text(text)) > 2 * _MAX_CONTENTS:
            raise BadTypes("the banner is too long")
        contents.append((as_integer(address, _MAX_ADDRESS), bytes_of(text)))
    low, high = (as_integer(each, _MAX_ADDRESS) for each in as_list(about.get("extent"), 2)[:2])
    arch, release = as_text(about.get("arch")), as_text(about.get("release"))
    anchors = [as_list(row, 2) for row in as_list(about.get("anchors"))]
    places = tuple((as_text(row[0]), as_integer(row[1], _MAX_ADDRESS)) for row in anchors)
    return Head(arch, release, build_id, tuple(contents), (low, high), places)


def bytes_of(text: Any) -> bytes:
    """Return the bytes of hexadecimal digits; raises :class:`BadTypes`."""
    try:
        return bytes.fromhex(as_text(text))
    except ValueError as error:
        raise BadTypes("a value is not hexadecimal") from error


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadTypes("it is not valid JSON") from error
