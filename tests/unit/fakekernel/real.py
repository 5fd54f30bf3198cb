# SPDX-License-Identifier: LGPL-2.1-or-later
"""The types of the kernels whose memory the bundled capsules hold."""

from __future__ import annotations

import contextlib
from functools import cache

from drgn import Type, TypeKind

from kcensus.sources import open_target
from kcensus.sources.capsule import NotRecorded

_COMPOUND = (TypeKind.STRUCT, TypeKind.UNION)
_ROOTS = (
    *("kmem_cache", "page", "slab", "slabobj_ext", "pglist_data", "per_cpu_nodestat"),
    *("mem_cgroup", "obj_cgroup", "list_lru", "list_lru_node", "list_lru_memcg", "xa_node"),
    *("super_block", "mount", "task_struct", "kset"),
)


@cache
def real_types(sample: str) -> dict[str, Type]:
    """Return the types that a bundled capsule recorded, by ``struct tag`` or ``typedef name``.

    They are those that members and pointers lead to from the structs that analyses start with.
    """
    prog = open_target(sample).prog
    types: dict[str, Type] = {}
    queue: list[Type] = []
    for tag in _ROOTS:
        with contextlib.suppress(LookupError, NotRecorded):
            queue.append(prog.type(f"struct {tag}"))
    while queue:
        type_ = queue.pop()
        if type_.kind in _COMPOUND:
            full = f"{type_.kind.name.lower()} {type_.tag}"
            if full in types or not type_.is_complete():
                continue
            if type_.tag is not None:
                types[full] = type_
            for member in type_.members:
                with contextlib.suppress(NotRecorded):
                    queue.append(member.type)
        elif type_.kind in (TypeKind.POINTER, TypeKind.ARRAY, TypeKind.TYPEDEF):
            if type_.kind == TypeKind.TYPEDEF:
                types[f"typedef {type_.name}"] = type_
            queue.append(type_.type)
    return types
