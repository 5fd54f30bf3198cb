# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types of a *synthetic* program, from a table or from a bundled capsule."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import cache

import drgn
from drgn import Object, Program, Type, TypeKind, TypeMember

from kcensus.sources import open_target
from kcensus.sources.capsule import NotRecorded
from kcensus.sources.types.nodes import Interner, Ref, build

Table = Mapping[str, tuple[int, str]]
"""``struct tag``, ``union tag`` → size and members, one a line: offset, type, name.

The offset is in bytes, ``4.3`` is bit 3 from byte 4 on; ``name:5`` is a bit field; ``-`` instead of
a name is an anonymous member. ``typedef name`` → 0 and the type. ``@NAME`` instead of members is
the real type that the bundled capsule NAME recorded."""

_COMPOUND = (TypeKind.STRUCT, TypeKind.UNION)
_ROOTS = (
    *("kmem_cache", "page", "slab", "slabobj_ext", "pglist_data", "per_cpu_nodestat"),
    *("mem_cgroup", "obj_cgroup", "list_lru", "list_lru_node", "list_lru_memcg", "xa_node"),
    *("super_block", "mount", "task_struct", "kset"),
)
_KINDS = {"struct": TypeKind.STRUCT, "union": TypeKind.UNION, "typedef": TypeKind.TYPEDEF}
_KEYWORDS = {kind: keyword for keyword, kind in _KINDS.items()}


def declared(text: str, has: Callable[[str], bool] = bool) -> dict[str, tuple[int, str]]:
    """Return the types that a text declares; a later declaration replaces an earlier one.

    A line is ``struct TAG SIZE``, with its members after a colon or in the indented lines below, or
    ``typedef NAME TYPE``. Members are as in :data:`Table`, with semicolons between them. After
    ``?`` follow features: without all of them, the line does not count.
    """
    types: dict[str, tuple[int, str]] = {}
    full = ""
    for line in text.splitlines():
        text, _, features = line.partition("?")
        has_all = all(has(feature) for feature in features.split())
        if text and not text.startswith(" "):
            head, _, text = text.partition(" : ")
            keyword, tag, rest = head.split(None, 2)
            full = f"{keyword} {tag}" if has_all else ""
            if full:
                types[full] = (0, rest) if keyword == "typedef" else (int(rest), "")
        if full and has_all and text.strip():
            size, members = types[full]
            types[full] = size, members + text.replace(";", "\n") + "\n"
    return types


def add_types(prog: Program, types: Table | str, name: str = "synthetic") -> None:
    """Add types to a program; they take precedence over those that were added earlier."""
    table = declared(types) if isinstance(types, str) else types
    made: dict[tuple[TypeKind, str], Type] = {}
    known: dict[str, list[TypeKind]] = {}
    for full in table:
        keyword, tag = full.split()
        known.setdefault(tag, []).append(_KINDS[keyword])

    def find(prog: Program, kinds: drgn.TypeKindSet, tag: str, file: str | None) -> Type | None:
        for kind in known.get(tag, ()):
            if kind in kinds:
                if (kind, tag) not in made:
                    full = f"{_KEYWORDS[kind]} {tag}"
                    size, text = table[full]
                    made[kind, tag] = (
                        build(prog, _recorded(text[1:], full))
                        if text.startswith("@")
                        else _make(prog, kind, tag, size, text)
                    )
                return made[kind, tag]
        return None

    prog.register_type_finder(name, find, enable_index=0)


def _make(prog: Program, kind: TypeKind, tag: str, size: int, text: str) -> Type:
    if kind == TypeKind.TYPEDEF:
        return prog.typedef_type(tag, prog.type(text))
    lines = [line for line in text.splitlines() if line.strip()]
    members = [_member(prog, line) for line in lines]
    make = prog.struct_type if kind == TypeKind.STRUCT else prog.union_type
    return make(tag, size, members)


def _member(prog: Program, line: str) -> TypeMember:
    offset, rest = line.split(None, 1)
    byte, _, bit = offset.partition(".")
    type_name, _, name = rest.strip().rpartition(" ")
    name, _, bits = name.partition(":")

    def member() -> Object | Type:
        type_ = prog.type(type_name)
        return Object(prog, type_, bit_field_size=int(bits)) if bits else type_

    return TypeMember(member, None if name == "-" else name, int(byte) * 8 + int(bit or 0))


@cache
def _recorded(sample: str, full: str) -> Ref:
    return _interner(sample).ref(real_types(sample)[full])


@cache
def _interner(sample: str) -> Interner:
    return Interner()


@cache
def real_types(sample: str) -> dict[str, Type]:
    """Return the types that a capsule recorded and that the roots lead to, by ``struct tag``."""
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
