# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules of *synthetic* kernels, and capsules taken apart and put together again.

This module implements FORMAT.md without code of the writer under test, and writes any content,
valid or not, with correct digests.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from kcensus.analyses import Analysis
from kcensus.capsule import create
from kcensus.sources.model import Target
from tests.unit.fakekernel import FakeKernel, Machine

HEADER = struct.Struct("<8sIQQQ32s")
MAGIC = b"\x89kcaps\r\n"
RUN = np.dtype([("first", "<u8"), ("pages", "<u4"), ("status", "<u4")])


def target_of(machine: Machine, name: str = "synthetic") -> Target:
    """Return a synthetic kernel as a target, as if it were a dump."""
    return Target(
        prog=machine.prog,
        name=name,
        kind="vmcore",
        format="synthetic",
        live=False,
        kernel="0.0.0-synthetic",
        shareable=False,
        compressed=False,
    )


def kernel_with_slabs(era: str = "7.0") -> FakeKernel:
    """Return a kernel with a few caches, memory cgroups and charged objects."""
    k = FakeKernel(era)
    group = k.memcg("group", k.root)
    dentry = k.cache("dentry", 192, reclaimable=True)
    slabs = [k.slab(dentry, free) for free in ([], [3, 1, 5], range(21))]
    k.slab(k.cache("filp", 232, 256), [0, 1])
    k.charge(slabs[0], dict.fromkeys(range(7), group))
    k.settle()
    return k


def recorded(path: Path, analyses: Sequence[Analysis], machine: Machine | None = None) -> Path:
    """Record a capsule of a synthetic kernel."""
    create(target_of(machine or kernel_with_slabs()), path, analyses)
    return path


@dataclass
class Parts:
    """The parts of a capsule."""

    manifest: dict[str, Any]
    """Without the table of sections."""
    sections: dict[str, bytes]
    """Decompressed, except ``pages`` and ``index``."""
    runs: np.ndarray
    blocks: list[bytes]
    """Decompressed."""
    changed: dict[str, Any] = field(default_factory=dict)
    """False rows of the table of sections, by name."""

    @property
    def lookups(self) -> Any:
        return json.loads(self.sections["lookups"])

    @lookups.setter
    def lookups(self, value: Any) -> None:
        self.sections["lookups"] = json.dumps(value).encode()


def take_apart(data: bytes) -> Parts:
    """Return the parts of a valid capsule."""
    decompress = zstandard.ZstdDecompressor().decompress
    magic, version, offset, size, _, _ = HEADER.unpack(data[: HEADER.size])
    assert (magic, version) == (MAGIC, 1)
    manifest = json.loads(decompress(data[offset : offset + size]))
    places = manifest.pop("sections")
    stored = {
        name: data[place["offset"] : place["offset"] + place["size"]]
        for name, place in places.items()
    }
    pages = stored.pop("pages")
    sections = {name: decompress(part) for name, part in stored.items()}
    index = sections.pop("index")
    runs, blocks = struct.unpack("<QQ", index[:16])
    sizes = np.frombuffer(index, "<u4", blocks, 16 + runs * RUN.itemsize).tolist()
    ends = np.cumsum([0, *sizes]).tolist()
    return Parts(
        manifest,
        sections,
        np.frombuffer(index, RUN, runs, 16).copy(),
        [decompress(pages[start:end]) for start, end in pairwise(ends)],
    )


def put_together(parts: Parts, index: bytes | None = None) -> bytes:
    """Return a capsule of these parts.

    :param index: replaces the index of ``parts.runs`` and ``parts.blocks``
    """
    compress = zstandard.ZstdCompressor(level=1, write_checksum=True).compress
    body, places = bytearray(HEADER.size), {}

    def put(name: str, stored: bytes, raw_size: int) -> None:
        digest = hashlib.sha256(stored).hexdigest()
        place = {"offset": len(body), "size": len(stored), "raw_size": raw_size, "sha256": digest}
        places[name] = place
        body.extend(stored)

    stored = [compress(block) for block in parts.blocks]
    put("pages", b"".join(stored), sum(map(len, parts.blocks)))
    if index is None:
        sizes = np.array([len(block) for block in stored], "<u4")
        index = struct.pack("<QQ", len(parts.runs), len(stored))
        index += parts.runs.tobytes() + sizes.tobytes()
    for name, raw in {"index": index, **parts.sections}.items():
        put(name, compress(raw), len(raw))
    manifest = json.dumps({**parts.manifest, "sections": {**places, **parts.changed}}).encode()
    return with_manifest(bytes(body), manifest)


def with_manifest(body: bytes, manifest: bytes) -> bytes:
    """Return a capsule with this manifest."""
    stored = zstandard.ZstdCompressor(level=1).compress(manifest)
    digest = hashlib.sha256(stored).digest()
    header = HEADER.pack(MAGIC, 1, len(body), len(stored), len(manifest), digest)
    return header + body[HEADER.size :] + stored
