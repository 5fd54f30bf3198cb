# SPDX-License-Identifier: LGPL-2.1-or-later
"""Check all types of a BTF section together, so that each can be used later without a check.

drgn recurses through aliases and structs, so cycles of these are as fatal as a wrong size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcensus.sources.debuginfo.btf.format import Array, BadBtf, Columns, Kind, among

_MAX_NESTED = 64
"""Levels of aliases, pointers and arrays, and of structs in structs; real types have few."""
_MAX_MEMBERS = 1 << 16
"""Most members of a struct including nested ones, over which drgn loops."""
_MAX_VALUES = 1 << 24
"""Most bytes of a type, and most numbers in a value of it."""

QUALIFIERS = (Kind.VOLATILE, Kind.CONST, Kind.RESTRICT, Kind.TYPE_TAG)
_ALIASES = (Kind.TYPEDEF, *QUALIFIERS)
_REFERRING = (*_ALIASES, Kind.PTR, Kind.FUNC, Kind.FUNC_PROTO, Kind.VAR, Kind.DECL_TAG)
COMPOUNDS = (Kind.STRUCT, Kind.UNION)
ENUMS = (Kind.ENUM, Kind.ENUM64)
_SIZED = (Kind.INT, Kind.FLOAT, *COMPOUNDS, *ENUMS)
_SCALAR_SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Extents:
    """Kinds, sizes and contents of all types by ID, void and those of the base included."""

    kind: Array
    alias: Array
    """ID of the type behind typedefs and qualifiers."""
    core: Array
    """ID of the type behind typedefs, qualifiers and arrays."""
    size: Array
    """Bytes as float64; NaN if a type has no size."""
    values: Array
    """Numbers and structs in a value, float64."""
    members: Array
    """Members including nested ones, float64."""


VOID = Extents(
    kind=np.zeros(1, np.uint8),
    alias=np.zeros(1, np.uint32),
    core=np.zeros(1, np.uint32),
    size=np.full(1, np.nan),
    values=np.ones(1),
    members=np.zeros(1),
)
"""The types without any BTF."""


def check(columns: Columns, base: Extents, text_size: int) -> Extents:
    """Return the extents of all types; ``text_size`` is the bytes of all strings.

    :raises BadBtf: a name, type or size is impossible
    """
    words, first = columns.words, len(base.kind)
    kind = np.concatenate([base.kind, columns.kind])
    own = np.arange(first, len(kind))
    target = np.zeros(len(columns.kind), np.int64)
    refers = among(columns.kind, _REFERRING)
    target[refers] = columns.value[refers]
    arrays = np.flatnonzero(columns.kind == Kind.ARRAY)
    target[arrays] = words[columns.start[arrays] + 3]
    if len(target) and int(target.max()) >= len(kind):
        raise BadBtf("a type refers to a type that does not exist")
    if bool((columns.name >= max(text_size, 1)).any()):
        raise BadBtf("the name of a type lies outside the strings")
    _check_depth(target, first)
    _check_references(columns.kind, kind[target])
    alias = _behind(base.alias, np.where(among(columns.kind, _ALIASES), target, own))
    through = among(columns.kind, (*_ALIASES, Kind.ARRAY))
    core = _behind(base.core, np.where(through, target, own))
    size, values = _sizes(columns, base, alias, arrays, target[arrays])
    members = np.concatenate([base.members, np.zeros(len(own))])
    extents = Extents(kind, alias, core, size, values, members)
    _check_elements(columns, len(kind), text_size)
    _check_members(columns, extents, first, text_size)
    return extents


def _check_depth(target: Array, first: int) -> None:
    """Follow all references at once, doubling the distance; those of the base are short."""
    hop = np.where(target >= first, target - first + 1, 0)
    hop = np.concatenate([[0], hop])
    for _ in range(_MAX_NESTED.bit_length() - 1):
        hop = hop[hop]
    if hop.any():
        raise BadBtf("types refer to each other in a circle, or are nested too deeply")


def _check_references(kind: Array, target: Array) -> None:
    """Only functions have prototypes as types, and nothing has a function or variable as type."""
    is_declaration = among(target, (Kind.FUNC, Kind.VAR, Kind.DATASEC, Kind.DECL_TAG))
    if bool((is_declaration & (kind != Kind.DECL_TAG)).any()):
        raise BadBtf("a type refers to a function or variable")
    if bool(((kind == Kind.FUNC) & (target != Kind.FUNC_PROTO)).any()):
        raise BadBtf("a function has no prototype")


def _behind(base: Array, own: Array) -> Array:
    """Return the ends of all chains of IDs."""
    chain = np.concatenate([base, own.astype(np.uint32)])
    for _ in range(_MAX_NESTED.bit_length()):
        chain = chain[chain]
    return chain


def _sizes(
    columns: Columns, base: Extents, alias: Array, arrays: Array, elements: Array
) -> tuple[Array, Array]:
    """Return bytes of, and numbers in, each type; structs count as one number for now."""
    own = np.full(len(columns.kind), np.nan)
    sized = among(columns.kind, _SIZED)
    own[sized] = columns.value[sized]
    scalar = among(columns.kind, (Kind.INT, Kind.FLOAT, *ENUMS))
    if not np.isin(columns.value[scalar], _SCALAR_SIZES).all():
        raise BadBtf("a number has an impossible size")
    if bool((columns.value[among(columns.kind, ENUMS)] > 8).any()):
        raise BadBtf("an enum has an impossible size")
    if bool((own > _MAX_VALUES).any()):
        raise BadBtf("a type is too large")
    own[columns.kind == Kind.PTR] = 8
    size = np.concatenate([base.size, own])
    values = np.concatenate([base.values, np.ones(len(own))])
    length = columns.words[columns.start[arrays] + 5].astype(np.float64)
    rows, element = arrays + len(base.kind), alias[elements]
    for _ in range(_MAX_NESTED):
        before = size[rows]
        size[rows], values[rows] = length * size[element], length * values[element]
        if np.array_equal(before, size[rows], equal_nan=True):
            break
    if bool((np.fmax(size, values) > _MAX_VALUES).any()):
        raise BadBtf("an array is too large")
    return size[alias], values[alias]


def _check_elements(columns: Columns, types: int, text_size: int) -> None:
    """Check names and types of parameters, enumerators and variables in sections."""
    for kinds, typed in (((Kind.FUNC_PROTO,), 1), (ENUMS, None), ((Kind.DATASEC,), 0)):
        _, word = columns.elements(kinds)
        if typed != 0 and bool((columns.words[word] >= max(text_size, 1)).any()):
            raise BadBtf("the name of a parameter or enumerator lies outside the strings")
        if typed is not None and bool((columns.words[word + typed] >= types).any()):
            raise BadBtf("a parameter or variable has a type that does not exist")


def _check_members(columns: Columns, extents: Extents, first: int, text_size: int) -> None:
    """Check all members; fills in ``members`` and ``values`` of structs."""
    row, word = columns.elements(COMPOUNDS)
    if not len(row):
        return
    name, type_, offset = (columns.words[word + nth] for nth in range(3))
    if bool((name >= max(text_size, 1)).any()):
        raise BadBtf("the name of a member lies outside the strings")
    if bool((type_ >= len(extents.kind)).any()):
        raise BadBtf("a member has a type that does not exist")
    flag = columns.flag[row]
    bits = np.where(flag, offset >> 24, 0)
    offset = np.where(flag, offset & 0xFFFFFF, offset).astype(np.int64)
    end = columns.value[row].astype(np.int64) * 8
    kind, size = extents.kind[extents.alias[type_]], extents.size[type_] * 8
    if bool(((name == 0) & (~among(kind, COMPOUNDS) | (bits > 0))).any()):
        raise BadBtf("an unnamed member is not a struct or union")
    if bool(np.isnan(size).any()):
        raise BadBtf("a member has no size")
    if bool(((bits > 0) & (~among(kind, (Kind.INT, *ENUMS)) | (bits > size))).any()):
        raise BadBtf("a bit field exceeds its type")
    # Before kind_flag, an INT of fewer bits than its bytes was a bit field.
    may_be_bits = (bits > 0) | (~flag & (kind == Kind.INT))
    if bool(((offset % 8 > 0) & ~may_be_bits).any()):
        raise BadBtf("a member does not begin at a byte")
    if bool((offset + np.where(may_be_bits, bits, size) > end).any()):
        raise BadBtf("a member ends beyond its type")
    _check_nesting(columns, extents, first, row, type_)


def _check_nesting(
    columns: Columns, extents: Extents, first: int, row: Array, type_: Array
) -> None:
    """Add up the members of structs in structs, from the innermost on."""
    nests = among(extents.kind[extents.core[type_]], COMPOUNDS)
    row, type_ = row[nests], type_[nests]
    compound = among(columns.kind, COMPOUNDS)
    own = np.where(compound, columns.count, 0).astype(np.float64)
    extents.members[first:] = own
    extents.values[first:][compound] = own[compound] + 1
    core = extents.core[type_]
    # Elements of an array, if the member is one: so far each struct counts as one.
    length = np.where(extents.kind[extents.alias[type_]] == Kind.ARRAY, extents.values[type_], 1)
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    for _ in range(_MAX_NESTED):
        if not len(row):
            return
        inner = np.add.reduceat(extents.members[core], starts)
        members = own[row[starts]] + inner
        values = own[row[starts]] + 1 + np.add.reduceat(length * extents.values[core], starts)
        if bool((members > _MAX_MEMBERS).any() or (values > _MAX_VALUES).any()):
            raise BadBtf("a type has too many members")
        if np.array_equal(members, extents.members[first + row[starts]]) and np.array_equal(
            values, extents.values[first + row[starts]]
        ):
            return
        extents.members[first + row[starts]] = members
        extents.values[first + row[starts]] = values
    raise BadBtf("a type contains itself, or types are nested too deeply")
