# SPDX-License-Identifier: LGPL-2.1-or-later
"""Check all types of a BTF section together, so that each can be used later without a check.

drgn recurses through aliases and structs: a cycle is as fatal as a wrong size.
"""

from __future__ import annotations

import numpy as np

from kcensus.sources.debuginfo.btf.format import KINDS, Array, BadBtf, Columns, Kind, among

_MAX_NESTED = 64
"""Levels of aliases, pointers and arrays, and of structs in structs; real types have few."""
_MAX_MEMBERS = 1 << 16
"""Most members of a struct including nested ones, over which drgn loops."""
_MAX_VALUES = 1 << 24
"""Most bytes of a type, and most numbers in a value of it."""

QUALIFIERS = (Kind.VOLATILE, Kind.CONST, Kind.RESTRICT, Kind.TYPE_TAG)
_ALIASES = (Kind.TYPEDEF, *QUALIFIERS)
_CHAINED = (*_ALIASES, Kind.PTR, Kind.ARRAY, Kind.FUNC_PROTO)
_REFERRING = (*_ALIASES, Kind.PTR, Kind.FUNC, Kind.FUNC_PROTO, Kind.VAR, Kind.DECL_TAG)
_DECLARATIONS = (Kind.FUNC, Kind.VAR, Kind.DATASEC, Kind.DECL_TAG, *range(Kind.LOC_PARAM, KINDS))
"""Kinds of records other than types, unknown kinds included."""
COMPOUNDS = (Kind.STRUCT, Kind.UNION)
ENUMS = (Kind.ENUM, Kind.ENUM64)
_SCALARS = (Kind.INT, Kind.FLOAT, *ENUMS)
_SIZED = (*_SCALARS, *COMPOUNDS)
_SCALAR_SIZES = (1, 2, 4, 8, 16)
Elements = tuple[Array, Array]
"""Row and first word of each element, as of :meth:`Columns.elements`."""


class Extents:
    """Kinds, sizes and contents of types; row 0 has the ID ``first``.

    Columns have rows for these types only, and :meth:`at` also knows those of the base, so that the
    types of a small module cost little.
    """

    def __init__(self, base: Extents | None, kind: Array) -> None:
        self.base = base
        self.first: int = base.end if base else 0
        self.end: int = self.first + len(kind)
        own = np.arange(self.first, self.end, dtype=np.int32)
        self.kind = kind
        self.alias = own
        """ID of the type behind typedefs and qualifiers."""
        self.core = own
        """ID of the type behind typedefs, qualifiers and arrays."""
        self.size = np.full(len(kind), np.nan)
        """Bytes as float64; NaN if a type has no size."""
        self.values = np.ones(len(kind))
        """Numbers and structs in a value, float64."""
        self.old_bits = np.zeros(len(kind), np.int64)
        """Of an INT that is a bit field: its width, plus 256 times its offset; else 0.

        Since Linux kernel commit 9d5f9f701b18 ("bpf: btf: fix struct/union/fwd types with
        kind_flag") (in v5.0), members have the width.
        """
        self.members = np.zeros(len(kind))
        """Members including nested ones, float64."""

    def at(self, column: str, ids: Array) -> Array:
        """Return the values of a column for types of any ID below :attr:`end`."""
        own: Array = getattr(self, column)
        if self.base is None or self.first <= len(own):
            return self._all(column).take(ids)
        result = np.empty(len(ids), own.dtype)
        is_own = ids >= self.first
        result[is_own] = own[ids[is_own] - self.first]
        result[~is_own] = self.base.at(column, ids[~is_own])
        return result

    def _all(self, column: str) -> Array:
        """Return the values of a column for all types, also those of the base."""
        own: Array = getattr(self, column)
        return np.concatenate([self.base._all(column), own]) if self.base else own

    def behind(self, column: str, target: Array) -> Array:
        """Return the ends of the chains of ``target``, IDs of one type for each own one."""
        own = np.arange(len(target))
        hop = np.where(target >= self.first, target - self.first, own)
        for _ in range(_MAX_NESTED.bit_length()):
            hop = hop[hop]
        end = target[hop]
        outside = end < self.first
        if self.base is not None and outside.any():
            end = end.copy()
            end[outside] = self.base.at(column, end[outside])
        return end


VOID = Extents(None, np.zeros(1, np.uint8))
"""The types without any BTF."""


def check(columns: Columns, base: Extents, text_size: int) -> Extents:
    """Return the extents of the types; ``text_size`` is the bytes of all strings.

    :raises BadBtf: a name, type or size is impossible
    """
    extents = Extents(base, columns.kind)
    own = extents.alias
    target = np.zeros(len(own), np.int32)
    refers = among(columns.kind, _REFERRING)
    target[refers] = np.minimum(columns.value[refers], extents.end)
    arrays = np.flatnonzero(columns.kind == Kind.ARRAY)
    target[arrays] = np.minimum(columns.words[columns.start[arrays] + 3], extents.end)
    if len(target) and int(target.max()) >= extents.end:
        raise BadBtf("a type refers to a type that does not exist")
    if bool((columns.name >= max(text_size, 1)).any()):
        raise BadBtf("the name of a type lies outside the strings")
    parameters = columns.elements((Kind.FUNC_PROTO,))
    _check_elements(columns, parameters, extents.end, text_size)
    _check_references(columns.kind, extents.at("kind", target))
    _check_depth(columns, parameters, extents.first, target)
    is_alias = among(columns.kind, _ALIASES)
    extents.alias = extents.behind("alias", np.where(is_alias, target, own))
    is_alias[arrays] = True
    extents.core = extents.behind("core", np.where(is_alias, target, own))
    _check_functions(columns, parameters, extents)
    _measure(columns, extents, arrays, target[arrays])
    _check_members(columns, extents, text_size)
    return extents


def _check_depth(columns: Columns, parameters: Elements, first: int, target: Array) -> None:
    """Remove the types without references, again and again, until no type is left.

    Members do not count, because they may refer to any type.
    """
    row, word = parameters
    chained = np.flatnonzero(among(columns.kind, _CHAINED))
    source = np.concatenate([chained, row])
    ids = np.concatenate([target[chained], columns.words[word + 1]])
    for _ in range(_MAX_NESTED):
        is_left = np.zeros(first + len(columns.kind), np.bool_)
        is_left[first + source] = True
        kept = np.flatnonzero(is_left[ids])
        if not len(kept):
            return
        source, ids = source[kept], ids[kept]
    raise BadBtf("types refer to each other in a circle, or are nested too deeply")


def _check_references(kind: Array, target: Array) -> None:
    """Only functions have prototypes as types, and nothing has a function or variable as type."""
    is_declaration = among(target, _DECLARATIONS)
    if bool((is_declaration & (kind != Kind.DECL_TAG)).any()):
        raise BadBtf("a type refers to a function or variable")
    if bool(((kind == Kind.FUNC) & (target != Kind.FUNC_PROTO)).any()):
        raise BadBtf("a function has no prototype")


def _check_functions(columns: Columns, parameters: Elements, extents: Extents) -> None:
    """Check that functions neither take nor return a function, but only pointers to some."""
    _, word = parameters
    returned = columns.value[columns.kind == Kind.FUNC_PROTO]
    used = extents.at("alias", np.concatenate([columns.words[word + 1], returned]))
    if bool(among(extents.at("kind", used), (Kind.FUNC_PROTO, *_DECLARATIONS)).any()):
        raise BadBtf("a function takes or returns a function")


def _measure(columns: Columns, extents: Extents, arrays: Array, elements: Array) -> None:
    """Fill in sizes and numbers in values; structs count as one number for now."""
    kind, size, values = columns.kind, extents.size, extents.values
    sized = among(kind, _SIZED)
    size[sized] = columns.value[sized]
    if not np.isin(columns.value[among(kind, _SCALARS)], _SCALAR_SIZES).all():
        raise BadBtf("a number has an impossible size")
    if bool((columns.value[among(kind, ENUMS)] > 8).any()):
        raise BadBtf("an enum has an impossible size")
    if bool((size > _MAX_VALUES).any()):
        raise BadBtf("a type is too large")
    size[among(kind, ENUMS) & (columns.count == 0)] = np.nan  # only declared
    size[kind == Kind.PTR] = 8
    integers = np.flatnonzero(kind == Kind.INT)
    coded = columns.words[columns.start[integers] + 3].astype(np.int64)
    shift, bits, most = coded >> 16 & 0xFF, coded & 0xFF, size[integers] * 8
    is_field = (bits > 0) & (bits < most) & (shift + bits <= most)
    extents.old_bits[integers] = np.where(is_field, bits | shift << 8, 0)
    length = columns.words[columns.start[arrays] + 5].astype(np.float64)
    element = extents.at("alias", elements)
    for _ in range(_MAX_NESTED):
        before = size[arrays]
        size[arrays] = length * extents.at("size", element)
        values[arrays] = length * extents.at("values", element)
        if np.array_equal(before, size[arrays], equal_nan=True):
            break
    if bool(np.isnan(size[arrays]).any()):
        raise BadBtf("an array has elements without a size")
    if bool((np.fmax(size, values) > _MAX_VALUES).any()):
        raise BadBtf("an array is too large")
    extents.size = extents.at("size", extents.alias)
    extents.values = extents.at("values", extents.alias)


def _check_elements(columns: Columns, parameters: Elements, types: int, text_size: int) -> None:
    """Check names and types of parameters, enumerators and variables in sections."""
    enumerators, variables = columns.elements(ENUMS), columns.elements((Kind.DATASEC,))
    for (_, word), typed in ((parameters, 1), (enumerators, None), (variables, 0)):
        if typed != 0 and bool((columns.words[word] >= max(text_size, 1)).any()):
            raise BadBtf("the name of a parameter or enumerator lies outside the strings")
        if typed is not None and bool((columns.words[word + typed] >= types).any()):
            raise BadBtf("a parameter or variable has a type that does not exist")


def _check_members(columns: Columns, extents: Extents, text_size: int) -> None:
    """Check all members; fills in ``members`` and ``values`` of structs."""
    row, word = columns.elements(COMPOUNDS)
    if not len(row):
        return
    name, type_, offset = (columns.words.take(word + nth) for nth in range(3))
    if bool((name >= max(text_size, 1)).any()):
        raise BadBtf("the name of a member lies outside the strings")
    if bool((type_ >= extents.end).any()):
        raise BadBtf("a member has a type that does not exist")
    flag = columns.flag[row]
    bits = np.where(flag, offset >> 24, 0)
    offset = np.where(flag, offset & 0xFFFFFF, offset).astype(np.int64)
    end = columns.value[row].astype(np.int64) * 8
    alias = extents.at("alias", type_)
    kind = extents.at("kind", alias)
    size = extents.at("size", type_) * 8
    if bool(((name == 0) & (~among(kind, COMPOUNDS) | (bits > 0))).any()):
        raise BadBtf("an unnamed member is not a struct or union")
    if bool(np.isnan(size).any()):
        raise BadBtf("a member has no size")
    if bool(((bits > 0) & (~among(kind, (Kind.INT, *ENUMS)) | (bits > size))).any()):
        raise BadBtf("a bit field exceeds its type")
    old_bits = np.where(flag, 0, extents.at("old_bits", alias))
    bits, offset = bits + (old_bits & 0xFF), offset + (old_bits >> 8)
    if bool(((offset % 8 > 0) & (bits == 0)).any()):
        raise BadBtf("a member does not begin at a byte")
    beyond = row[offset + np.where(bits, bits, size) > end]
    if len(beyond):
        _drop_members(columns, beyond)
        _check_members(columns, extents, text_size)
        return
    _check_nesting(columns, extents, row, type_, kind == Kind.ARRAY)


def _drop_members(columns: Columns, rows: Array) -> None:
    """Take the members from structs of variable length, whose size pahole gives as 0.

    In Linux 4.14, xen_flush_tlb_others() declares one, with a bitmap of num_processors; in 4.18,
    the bitmap has NR_CPUS (commit not verified).
    """
    if bool((columns.value[rows] | columns.name[rows]).any()):
        raise BadBtf("a member ends beyond its type")
    columns.count[rows] = 0


def _check_nesting(
    columns: Columns, extents: Extents, row: Array, type_: Array, is_array: Array
) -> None:
    """Add up the members of structs in structs, from the innermost on."""
    compound = among(columns.kind, COMPOUNDS)
    extents.members[compound] = columns.count[compound]
    extents.values[compound] = columns.count[compound] + 1.0
    core = extents.at("core", type_)
    # An array has its number of elements as ``values``; so far, each struct counts as one.
    length = np.where(is_array, extents.at("values", type_), 1)
    nests = np.flatnonzero(among(extents.at("kind", core), COMPOUNDS))
    row, core, length = row[nests], core[nests], length[nests]
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    if not len(row):
        return
    owner = row[starts]
    own = columns.count[owner]
    for _ in range(_MAX_NESTED):
        members = own + np.add.reduceat(extents.at("members", core), starts)
        values = own + 1 + np.add.reduceat(length * extents.at("values", core), starts)
        if bool((members > _MAX_MEMBERS).any() or (values > _MAX_VALUES).any()):
            raise BadBtf("a type has too many members")
        is_done = np.array_equal(members, extents.members[owner])
        if is_done and np.array_equal(values, extents.values[owner]):
            return
        extents.members[owner], extents.values[owner] = members, values
    raise BadBtf("a type contains itself, or types are nested too deeply")
