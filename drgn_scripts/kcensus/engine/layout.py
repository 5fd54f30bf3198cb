# SPDX-License-Identifier: LGPL-2.1-or-later
"""Layout: a struct type and member paths become a NumPy dtype."""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import drgn
import numpy as np
import numpy.typing as npt
from drgn import TypeKind

from kcensus.engine.tags import tag_of, untagged

Path: TypeAlias = str | Sequence[str]
"""A member path such as ``d_lockref.count`` or ``shared[0]``, or alternatives: the first existing
one is used."""

_PAGE_BYTES, _OBJECT_BYTES, _SMALLEST_BYTES = 4096, 32, 8
_COUNTS = (
    (r"nr_slabs|total_slabs|nr_\w*pages|lru_zone_size", _PAGE_BYTES),
    (r"nr_(items|jobs|mounts)", _OBJECT_BYTES),  # a dentry, an inode or a job has more
    (r"(total|free)_objects", _SMALLEST_BYTES),
)
"""Members that count objects in memory, and the size of the smallest of these objects."""
_STEP = re.compile(r"([A-Za-z_]\w*)|\[(\d+)\]|(\.)")


class LayoutError(LookupError):
    """A type has no such member, or the member does not fit in a column."""


@dataclass(frozen=True)
class Field:
    """One column of a :class:`Layout`, ``offset`` bytes from the start of the struct."""

    path: str
    offset: int
    dtype: np.dtype[Any]
    shift: int = 0
    """Bits to drop at the right, for a bit field."""
    bits: int = 0
    """Width of a bit field, 0 for a whole member."""
    signed: bool = False
    least_bytes: int = 0
    """Size of the smallest object that it counts, 0 where it counts none."""
    tag: int = 0
    """Bits of a pointer that may hold a tag."""


@dataclass(frozen=True)
class Layout:
    """Offsets of the members of a struct of ``size`` bytes."""

    type_name: str
    size: int
    fields: Mapping[str, Field]

    def dtype(self, itemsize: int | None = None) -> np.dtype[Any]:
        """Return a structured dtype of all fields, by default as large as the struct."""
        return np.dtype(
            {
                "names": list(self.fields),
                "formats": [field.dtype for field in self.fields.values()],
                "offsets": [field.offset for field in self.fields.values()],
                "itemsize": self.size if itemsize is None else itemsize,
            }
        )

    def decode(self, name: str, raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Turn the raw storage of field ``name`` into its value."""
        field = self.fields[name]
        if not field.bits:
            return untagged(raw, field.tag)
        word = field.dtype.newbyteorder("=").type
        value: npt.NDArray[Any] = (raw >> word(field.shift)) & word((1 << field.bits) - 1)
        if field.signed:
            sign = word(1 << (field.bits - 1))
            value = ((value ^ sign) - sign).view(f"i{field.dtype.itemsize}")
        return value

    def __contains__(self, name: str) -> bool:
        return name in self.fields


def layout(
    prog: drgn.Program,
    type_name: str | drgn.Type,
    members: Sequence[str] | Mapping[str, Path],
    optional: Mapping[str, Path] | None = None,
) -> Layout:
    """Find members of a struct.

    :param type_name: ``struct dentry``, or the type itself
    :param members: member paths, or names mapped to a path or to alternatives
    :param optional: the same for members that this kernel may not have; they are then not in the
        layout
    :raises LayoutError: a member does not exist, or is not a scalar, a pointer or an array of
        ``char``
    :raises LookupError: the type does not exist
    """
    type_ = prog.type(type_name) if isinstance(type_name, str) else type_name
    type_ = _unaliased(type_)
    little, tag = is_little_endian(prog), tag_of(prog)
    if not isinstance(members, Mapping):
        members = {path: path for path in members}
    fields: dict[str, Field] = {}
    for name, path in [*members.items(), *(optional or {}).items()]:
        alternatives = [path] if isinstance(path, str) else path
        for alternative in alternatives:
            member = _resolve(type_, alternative)
            if member is not None:
                field = _field(alternative, *member, little)
                if tag and _unaliased(member[0]).kind == TypeKind.POINTER:
                    field = replace(field, tag=tag)
                fields[name] = field
                break
        else:
            if name in members:
                raise LayoutError(f"{type_.type_name()} has no member {' or '.join(alternatives)}")
    return Layout(type_.type_name(), drgn.sizeof(type_), fields)


def member_hint(type_: drgn.Type, path: str) -> str:
    """Return advice about a path that does not exist: a similar one; empty without any."""
    above, dot, name = path.rpartition(".")
    found = _resolve(type_, above) if dot else (type_, 0, None)
    if found is None or _resolve(type_, path) is not None:
        return ""
    parent = _unaliased(found[0])
    if parent.kind == TypeKind.POINTER:
        return f"{above} is a pointer: kcensus.follow() reads members of its target"
    like = difflib.get_close_matches(name, _names(parent), 1)
    return f"did you mean {above}{dot}{like[0]}?" if like else ""


def _names(type_: drgn.Type) -> list[str]:
    """Return the members of a type, those of unnamed members included."""
    if type_.kind not in (TypeKind.STRUCT, TypeKind.UNION, TypeKind.CLASS):
        return []
    members = type_.members if type_.is_complete() else ()
    return [
        name
        for member in members
        for name in ([member.name] if member.name else _names(_unaliased(member.type)))
    ]


def element_paths(type_: drgn.Type, path: str) -> list[str]:
    """Return the paths of the elements of an array; ``path`` itself otherwise, and for ``char``.

    :raises LayoutError: ``path`` is not a member path
    """
    member = _resolve(type_, path)
    if member is None:
        return [path]
    array = _unaliased(member[0])
    if array.kind != TypeKind.ARRAY or not array.length:
        return [path]
    element = _unaliased(array.type)
    if element.kind == TypeKind.INT and element.size == 1:
        return [path]
    names = (f"{path}[{index}]" for index in range(array.length))
    return [name for each in names for name in element_paths(type_, each)]


def pointee_names(type_: drgn.Type, paths: Iterable[str]) -> dict[str, str]:
    """Return the types of pointers' targets, except ``void`` and functions, by member path."""
    names = {}
    for path in paths:
        member = _resolve(type_, path)
        pointer = _unaliased(member[0]) if member else None
        if pointer is not None and pointer.kind == TypeKind.POINTER:
            pointee = pointer.type
            if _unaliased(pointee).kind not in (TypeKind.VOID, TypeKind.FUNCTION):
                names[path] = pointee.unqualified().type_name()
    return names


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype in this machine's byte order, which pandas needs, and views of columns."""
    return dtype.newbyteorder("=")


def word_dtype(prog: drgn.Program) -> np.dtype[Any]:
    """Return the dtype of the program's ``unsigned long`` and pointers, which have 64 bits."""
    return number_dtype(prog, "u8")


def number_dtype(prog: drgn.Program, code: str) -> np.dtype[Any]:
    """Return the dtype of a number in the program's byte order; ``i4`` is an ``int``."""
    return _dtype(code, is_little_endian(prog))


def is_little_endian(prog: drgn.Program) -> bool:
    """Return the byte order of a program."""
    platform = prog.platform
    return platform is None or bool(platform.flags & drgn.PlatformFlags.IS_LITTLE_ENDIAN)


def _resolve(type_: drgn.Type, path: str) -> tuple[drgn.Type, int, int | None] | None:
    """Return type, bit offset and bit-field width of a member; None if it does not exist."""
    bit_offset = 0
    bit_size: int | None = None
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise LayoutError(f"{path!r} is not a member path")
        position = match.end()
        name, index, dot = match.groups()
        if dot:
            continue
        type_ = _unaliased(type_)
        if index is not None:
            # An array without a length ends where the allocation does.
            if type_.kind != TypeKind.ARRAY or int(index) >= (type_.length or math.inf):
                return None
            type_ = type_.type
            bit_offset += int(index) * drgn.sizeof(type_) * 8
            continue
        if type_.kind not in (TypeKind.STRUCT, TypeKind.UNION, TypeKind.CLASS):
            return None
        if not type_.is_complete() or not type_.has_member(name):
            return None
        member = type_.member(name)
        type_, bit_size = member.type, member.bit_field_size
        bit_offset += member.bit_offset
    return type_, bit_offset, bit_size


def _unaliased(type_: drgn.Type) -> drgn.Type:
    while type_.kind == TypeKind.TYPEDEF:
        type_ = type_.type
    return type_


def _field(path: str, type_: drgn.Type, bit_offset: int, bits: int | None, little: bool) -> Field:
    if bits is not None:
        # Like the compiler, take an aligned unit: it never reaches beyond the struct.
        for width in (1, 2, 4, 8):
            offset = bit_offset // (8 * width) * width
            within = bit_offset - 8 * offset
            if within + bits <= 8 * width:
                shift = within if little else 8 * width - within - bits
                signed = _is_signed(_unaliased(type_))
                return Field(path, offset, _dtype(f"u{width}", little), shift, bits, signed)
        raise LayoutError(f"{path}: a bit field across 64-bit words does not fit in a column")
    dtype = _scalar(path, _unaliased(type_), little)
    least = _least_bytes(path) if dtype.kind in "iu" else 0
    return Field(path, bit_offset // 8, dtype, least_bytes=least)


@functools.cache
def _least_bytes(path: str) -> int:
    """Return the size of the smallest object that a member counts, 0 if it counts none."""
    name = re.sub(r"\[\d+\]|\.counter$", "", path).rpartition(".")[2]
    return next((least for pattern, least in _COUNTS if re.fullmatch(pattern, name)), 0)


def _is_signed(type_: drgn.Type) -> bool:
    if type_.kind == TypeKind.ENUM:
        return type_.type is not None and _is_signed(_unaliased(type_.type))
    return type_.kind == TypeKind.INT and bool(type_.is_signed)


def _scalar(path: str, type_: drgn.Type, little: bool) -> np.dtype[Any]:
    kind = type_.kind
    codes = {TypeKind.POINTER: "u", TypeKind.BOOL: "u", TypeKind.FLOAT: "f"}
    codes[TypeKind.INT] = "i" if _is_signed(type_) else "u"
    if kind in codes:
        return _dtype(f"{codes[kind]}{drgn.sizeof(type_)}", little)
    if kind == TypeKind.ENUM and type_.type is not None:
        return _scalar(path, _unaliased(type_.type), little)
    if kind == TypeKind.ARRAY:
        element = _unaliased(type_.type)
        if element.kind == TypeKind.INT and element.size == 1 and type_.length:
            return np.dtype(f"S{type_.length}")
        raise LayoutError(f"{path} is an array: name one element, as in {path}[0]")
    if kind in (TypeKind.STRUCT, TypeKind.UNION, TypeKind.CLASS) and type_.members:
        names = [member.name for member in type_.members if member.name]
        inside = f": name a member of it, as in {path}.{names[0]}" if names else ""
        raise LayoutError(f"{path} is a {type_.type_name()}{inside}")
    raise LayoutError(f"{path} is a {type_.type_name()}, which does not fit in a column")


def _dtype(code: str, little: bool) -> np.dtype[Any]:
    return np.dtype(code).newbyteorder("<" if little else ">")
