# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slab caches by type or name."""

from __future__ import annotations

import itertools

from kcensus.engine.slub.kmem_caches import SlabCache
from kcensus.engine.slub.slabs import SlabMap

_OTHER_NAMES = {
    "cred": "cred_jar",
    "file": "filp",
    "fs_struct": "fs_cache",
    "sk_buff": "skbuff_head_cache",
}
"""Names of caches that differ from the type of their objects."""


def find_caches(slab_map: SlabMap, type_name: str, name: str | None = None) -> list[SlabCache]:
    """Return the slab cache of a type, and its child caches for memory cgroups (up to 5.8).

    :param type_name: such as ``struct dentry``; the cache has the name of the type, with or without
        ``_cache``, except for some well-known ones
    :param name: name of the cache, or of one merged into it, if it differs from the type
    :raises LookupError: no cache has that name
    """
    tag = type_name.split()[-1]
    other = [_OTHER_NAMES[tag]] if tag in _OTHER_NAMES else []
    names = [name] if name is not None else [tag, f"{tag}_cache", *other]
    roots, _ = slab_map.lineage
    # Lazy: listing the aliases takes half as long as reading a million objects.
    aliased = (slab_map.aliases[name] for name in names if name in slab_map.aliases)
    for candidate in itertools.chain(names, aliased):
        # Several caches can have the same name: since Linux kernel commit 4c39529663b9 ("slab: Warn
        # on duplicate cache names when DEBUG_VM=y") (in v6.12), the kernel warns of it, and only
        # with CONFIG_DEBUG_VM.
        ids = {cache.id for cache in slab_map.caches if cache.name == candidate}
        if ids:
            return [cache for cache in slab_map.caches if int(roots[cache.id]) in ids]
    raise LookupError(
        f"there is no slab cache {' or '.join(map(repr, names))}; pass its name as "
        "cache=… (`kcensus slab --top 0` lists all)"
    )
