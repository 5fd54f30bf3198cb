# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a pack has of the kernel and of each module, from untrusted data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import drgn

from kcensus.sources.debuginfo.lookups import label_of
from kcensus.sources.debuginfo.packs.file import bytes_of
from kcensus.sources.types.nodes import COMPOUND, Member, MemberType, Node, Ref
from kcensus.sources.types.table import (
    BadTypes,
    Reader,
    as_integer,
    as_list,
    as_object,
    as_optional_text,
    as_text,
)

KINDS = {
    "variable": drgn.FindObjectFlags.VARIABLE,
    "constant": drgn.FindObjectFlags.CONSTANT,
    "function": drgn.FindObjectFlags.FUNCTION,
}
"""Kinds of objects."""
_MAX_ADDRESS = (1 << 64) - 1
_MAX_SCOPES = 1 << 10
_MAX_SECTIONS = 1 << 16


class Found(NamedTuple):
    """A variable, enumerator or function."""

    kind: drgn.FindObjectFlags
    ref: Ref
    address: int | None
    """As linked; in a module, the offset in its section."""
    section: int | None
    value: bytes | None


@dataclass
class Scope:
    """The kernel, or a module."""

    module: str
    build_id: str | None
    sections: list[str]
    """Names of a module's sections."""
    types: dict[str, Ref | None] = field(default_factory=dict)
    """By label, such as ``struct page``; None for a type that is known to be absent."""
    objects: dict[tuple[str, str | None], list[Found]] = field(default_factory=dict)
    """By name and file."""


@dataclass
class Contents:
    """The types and objects of a pack."""

    kernel: Scope
    modules: dict[str, Scope]
    asked: set[tuple[str, str | None]]
    """Names and files of all objects that the pack's maker looked for."""
    incomplete: dict[str, list[Node]]
    """Types that are only declared, by label."""


def read_contents(
    document: Mapping[str, Any],
    lacking: Callable[[str], Exception],
    elsewhere: Callable[[Node, Member], MemberType | None] | None = None,
) -> Contents:
    """Return the contents of a pack.

    :param lacking: returns the error for the type of a member that the pack lacks
    :param elsewhere: returns the type of such a member from another source, or None
    :raises BadTypes: they are invalid
    """
    table = Reader(document.get("types"), lacking, elsewhere)
    scopes = [_scope(as_object(each), table) for each in as_list(document.get("scopes"), 1)]
    if len(scopes) > _MAX_SCOPES or scopes[0].module:
        raise BadTypes("the kernel's types are missing")
    asked = set[tuple[str, str | None]]()
    for query in as_list(document.get("asked")):
        name, _, file = as_text(query).partition(" ")
        asked.add((name, file or None))
    incomplete = dict[str, list[Node]]()
    for node in table.nodes:
        if node.kind in COMPOUND and node.size is None and node.tag:
            incomplete.setdefault(label_of(node), []).append(node)
    return Contents(scopes[0], {each.module: each for each in scopes[1:]}, asked, incomplete)


def _scope(document: dict[str, Any], table: Reader) -> Scope:
    sections = [as_text(name) for name in as_list(document.get("sections"))[:_MAX_SECTIONS]]
    build_id = as_optional_text(document.get("build_id"))
    scope = Scope(as_text(document.get("module")), build_id, sections)
    for row in as_list(document.get("types")):
        label, use = as_list(row, 2)[:2]
        ref = None if use is None else table.ref(use)
        if ref is not None and (label_of(ref.node) != label or ref.qualifiers):
            raise BadTypes("a type has another name than its lookup")
        scope.types[as_text(label)] = ref
    for row in as_list(document.get("objects")):
        name, file, kind, use, place, value = as_list(row, 6)[:6]
        if as_text(kind) not in KINDS:
            raise BadTypes("an object has an unknown kind")
        ref, section, address, data = table.ref(use), None, None, None
        if value is not None:
            data = bytes_of(value)
            if table.size_of(ref) != len(data):
                raise BadTypes("a value and its type differ in size")
        elif isinstance(place, list):
            section = as_integer(as_list(place, 2)[0], len(sections) - 1)
            address = as_integer(place[1], _MAX_ADDRESS)
        elif place is not None:
            address = as_integer(place, _MAX_ADDRESS)
        if scope.module and address is not None and section is None:
            raise BadTypes("an object of a module has no section")
        key = as_text(name), as_optional_text(file)
        scope.objects.setdefault(key, []).append(Found(KINDS[kind], ref, address, section, data))
    return scope
