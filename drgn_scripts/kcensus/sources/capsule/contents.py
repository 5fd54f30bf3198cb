# SPDX-License-Identifier: LGPL-2.1-or-later
"""All that a capsule has, as plain bytes: to look for a name before it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator

from kcensus.arch import MAX_MEMORY_BYTES
from kcensus.sources.capsule.container import BLOCK_PAGES, Reader
from kcensus.sources.types.table import as_integer, as_object


def contents(reader: Reader) -> Iterator[tuple[str, bytes]]:
    """Yield the parts of a capsule, each under one of three names; pages in order.

    :raises BadCapsule: the capsule is corrupt
    """
    yield "manifest", json.dumps(reader.manifest, ensure_ascii=False).encode(errors="replace")
    for name in ("lookups", "vmcoreinfo"):
        yield "types and symbols", reader.section(name)
    page_size = as_integer(
        as_object(reader.manifest.get("machine")).get("page_size"), MAX_MEMORY_BYTES
    )
    index = reader.index(page_size)
    for number in range(-(-int(index.positions[-1]) // BLOCK_PAGES)):
        # A word in two blocks is in two pages: names of the kernel are not.
        yield "memory", reader.block(index, number, page_size)
