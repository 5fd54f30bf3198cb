# SPDX-License-Identifier: LGPL-2.1-or-later
"""All that a capsule has, as plain bytes: to look for a name before it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator

from kcensus.sources.capsule.container import BLOCK_PAGES, Reader

_PARTS = ("lookups", "vmcoreinfo")


def contents(reader: Reader, page_size: int) -> Iterator[tuple[str, bytes]]:
    """Yield parts of a capsule by name: the manifest, types and symbols, and pages in order.

    A block begins with the end of the block before, so that no name is cut in two.

    :raises BadCapsule: the capsule is corrupt
    """
    yield "manifest", json.dumps(reader.manifest, ensure_ascii=False).encode(errors="replace")
    for name in _PARTS:
        yield name, reader.section(name)
    index = reader.index(page_size)
    blocks = -(-int(index.positions[-1]) // BLOCK_PAGES)
    before = b""
    for number in range(blocks):
        data = reader.block(index, number, page_size)
        yield "memory", before + data
        before = data[-page_size:]
