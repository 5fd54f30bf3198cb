# SPDX-License-Identifier: LGPL-2.1-or-later
"""Type packs made from the lookups of a capsule, and a program without types to use them."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import drgn
import numpy as np
import zstandard

from kcensus.sources.capsule.container import PageStore, Reader
from kcensus.sources.custom import add_direct_map, program_of
from kcensus.sources.debuginfo.packs.elf_symbols import ElfFile
from kcensus.sources.debuginfo.packs.file import Head, encode
from kcensus.sources.debuginfo.packs.symbols import Columns, columns_of

BUILD_ID = "00112233445566778899"
LOW, HIGH = 0xFFFFFFFF81000000, 0xFFFFFFFF83000000
HEADER = struct.Struct("<8sII32s")
SYMBOL = np.dtype(
    [
        *(("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2")),
        *(("value", "<u8"), ("size", "<u8")),
    ]
)
GLOBAL, WEAK, LOCAL = 0x10, 0x20, 0
FUNC, OBJECT = 2, 1


def table(*rows: tuple[str, int, int, int, int]) -> Columns:
    """Return symbols of two sections: name, address, size, section, ``st_info``."""
    symbols = np.zeros(len(rows), SYMBOL)
    for symbol, (_, address, size, section, info) in zip(symbols, rows, strict=True):
        symbol["value"], symbol["size"], symbol["section"], symbol["info"] = (
            *(address, size, section, info),
        )
    starts, sizes = np.array([LOW, LOW + 0x1000], "<u8"), np.array([0x1000, 0x1000], "<u8")
    names = [name.encode() for name, *_ in rows]
    return columns_of(ElfFile([".text", ".data"], starts, sizes, symbols, names, (LOW, HIGH)))


def head(build_id: str | None = BUILD_ID, banner: bytes = b"Linux version 0.0.0") -> Head:
    contents = ((LOW + 0x100, banner),)
    return Head("x86_64", "0.0.0-synthetic", build_id, contents, (LOW, HIGH))


def document_of(capsule: Path) -> dict[str, Any]:
    """Return the document of a pack with the lookups of a capsule."""
    lookups = Reader(str(capsule)).json_section("lookups")
    tagged = ("struct", "union", "class", "enum")
    types: dict[str, Any] = {}
    for kind, name, _, use in lookups["type_lookups"]:
        label = f"{kind} {name}" if kind in tagged else name
        if types.get(label) is None:
            types[label] = use
    objects, asked = [], []
    for name, flags, file, data in lookups["object_lookups"]:
        asked.append(f"{name} {file}" if file else name)
        if data is not None:
            kind = "constant" if data[2] is not None else "variable"
            objects.append([name, file, "function" if flags == 2 else kind, *data])
    scope = {"module": "", "build_id": BUILD_ID, "sections": [], "objects": objects}
    scope["types"] = [list(pair) for pair in types.items()]
    return {"asked": asked, "scopes": [scope], "types": lookups["types"]}


def symbols() -> Columns:
    """Return a small symbol table."""
    return table(
        ("_stext", LOW, 0, 0, GLOBAL),
        ("first", LOW + 0x10, 0x20, 0, GLOBAL | FUNC),
        ("second", LOW + 0x40, 0x10, 0, LOCAL | FUNC),
        ("value", LOW + 0x1000, 8, 1, GLOBAL | OBJECT),
        ("per_cpu", 0x40, 8, 1, GLOBAL | OBJECT),
    )


def pack_of(capsule: Path) -> bytes:
    """Return a pack with the lookups of a capsule."""
    return encode(head(), document_of(capsule), {"": symbols()})


def program(capsule: Path) -> drgn.Program:
    """Return a program with the memory of a capsule, and no types."""
    reader = Reader(str(capsule))
    machine = reader.manifest["machine"]
    read = PageStore(reader, machine["page_size"]).read
    arch, size = drgn.Architecture[machine["arch"]], machine["memory_bytes"]
    prog = program_of(arch, reader.section("vmcoreinfo"), read, memory_bytes=size)
    add_direct_map(prog, machine["direct_map"], size, read)
    return prog


def take_apart(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the head and the decompressed parts of a pack."""
    _, _, size, _ = HEADER.unpack_from(data)
    about = json.loads(data[HEADER.size :][:size])
    parts, place = {}, HEADER.size + size
    for name, stored, _ in about["parts"]:
        parts[name] = zstandard.ZstdDecompressor().decompress(data[place : place + stored])
        place += stored
    return about, parts


def put_together(about: dict[str, Any], parts: dict[str, bytes]) -> bytes:
    """Return a pack with correct sizes and a correct digest, whatever its parts are."""
    stored = {name: zstandard.ZstdCompressor(level=1).compress(raw) for name, raw in parts.items()}
    sizes = [[name, len(stored[name]), len(raw)] for name, raw in parts.items()]
    body = json.dumps({"parts": sizes} | about).encode()
    size = len(body)
    body += b"".join(stored.values())
    return HEADER.pack(b"\x89ktyps\r\n", 1, size, hashlib.sha256(body).digest()) + body
