# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types of a kernel as plain data, small enough to keep, and a program that has them.

A table maps names such as ``struct page`` to a *shape*: ``[kind, size, members]``. A member is
``[name, bit offset, type]``, and its width for a bit field; a member without a name has ``""``. A
type is ``u4``, ``i8``, ``b1``, ``e4`` (an enum), ``f`` (a function), ``void``, a name, ``*`` and
the target of a pointer, ``[length, type]``, or the shape of a type without a name.
"""

from __future__ import annotations

import ast
import json
import lzma
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import drgn
from drgn import TypeKind

import kcensus
from kcensus.sources.debuginfo.btf.finders import Types, register
from kcensus.sources.debuginfo.btf.types import Btf
from kcensus.sources.debuginfo.lookups import lookups

DATA = Path(__file__).parents[1] / "unit" / "inventory" / "data"
NEEDS, TYPES = DATA / "needs.json", DATA / "types.json.xz"
Shape: TypeAlias = list[Any]
Table: TypeAlias = dict[str, Shape]
_FLAGS = drgn.PlatformFlags.IS_64_BIT | drgn.PlatformFlags.IS_LITTLE_ENDIAN
_COMPOUND = {TypeKind.STRUCT: "struct", TypeKind.UNION: "union"}
_CODES = {TypeKind.BOOL: "b", TypeKind.FLOAT: "f"}
_SCALAR = re.compile(r"([uibef])(\d+)")
_PATH = re.compile(r"[\w.\[\]]{1,80}( \w+)?")


def wanted_types() -> set[str]:
    """Return the structs and unions that kcensus looks up."""
    return {name for name in lookups().types if name.startswith(("struct ", "union "))}


@cache
def wanted_members() -> frozenset[str]:
    """Return the names of members that kcensus looks up, or could: all in its sources."""
    names = {name for members in lookups().types.values() for name in members}
    if NEEDS.exists():
        names.update(re.findall(r"[A-Za-z_]\w*", NEEDS.read_text()))
    for path in Path(kcensus.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Constant(value=str(text)) if _PATH.fullmatch(text):
                    names.update(re.findall(r"[A-Za-z_]\w*", text))
                case ast.Attribute(attr=name):
                    names.add(name)
    return frozenset(names - {""})


def table_of(find: Callable[[str], drgn.Type], names: Iterable[str]) -> Table:
    """Return the shapes of types, and of types inside them that kcensus may look into.

    :param find: returns a type, or raises LookupError
    """
    table: Table = {}
    pending = set(names)
    while pending:
        name = pending.pop()
        try:
            type_ = find(name)
        except (LookupError, SyntaxError):
            continue
        inside: set[str] = set()
        table[name] = _shape(type_, inside)
        pending |= {each for each in inside if each not in table}
    return table


def _shape(type_: drgn.Type, inside: set[str]) -> Shape:
    members = []
    for member in type_.members or ():
        is_wanted = not member.name or member.name in wanted_members()
        encoded = _encode(member.type, inside if is_wanted else set())
        if isinstance(encoded, list) and len(encoded) == 3 and not is_wanted:
            encoded = [*encoded[:2], []]
        if member.name or (isinstance(encoded, list) and len(encoded) == 3 and encoded[2]):
            width = [] if member.bit_field_size is None else [member.bit_field_size]
            members.append([member.name or "", member.bit_offset, encoded, *width])
    return [_COMPOUND[type_.kind], type_.size or 0, members]


def _encode(type_: drgn.Type, inside: set[str]) -> Any:
    while type_.kind == TypeKind.TYPEDEF:
        type_ = type_.type
    kind = type_.kind
    if kind == TypeKind.INT:
        return f"{'i' if type_.is_signed else 'u'}{type_.size}"
    if kind in _CODES:
        return f"{_CODES[kind]}{type_.size}"
    if kind == TypeKind.ENUM:
        return f"e{drgn.sizeof(type_) if type_.is_complete() else 4}"
    if kind == TypeKind.POINTER:
        target = type_.type
        while target.kind == TypeKind.TYPEDEF:
            target = target.type
        if target.kind in _COMPOUND:
            return f"*{_COMPOUND[target.kind]} {target.tag}" if target.tag else "*void"
        return "*" + _encode(target, set()) if target.kind != TypeKind.ARRAY else "*void"
    if kind == TypeKind.ARRAY:
        return [type_.length or 0, _encode(type_.type, inside)]
    if kind in _COMPOUND:
        if type_.tag:
            inside.add(name := f"{_COMPOUND[kind]} {type_.tag}")
            return name
        return _shape(type_, inside)
    return "f" if kind == TypeKind.FUNCTION else "void"


def program(table: Table) -> drgn.Program:
    """Return a program with the types of a table, for 64-bit little endian."""
    prog = drgn.Program(drgn.Platform(drgn.Architecture.UNKNOWN, _FLAGS))
    made: dict[str, drgn.Type] = {}

    def decode(encoded: Any) -> drgn.Type:
        if isinstance(encoded, list):
            if len(encoded) == 2:
                element = decode(encoded[1])
                return prog.array_type(element, encoded[0] or None)
            return compound(encoded, None)
        if encoded.startswith("*"):
            return prog.pointer_type(decode(encoded[1:]))
        if encoded.startswith(("struct ", "union ")):
            return named(encoded)
        if scalar := _SCALAR.fullmatch(encoded):
            code, size = scalar[1], int(scalar[2])
            if code == "b":
                return prog.bool_type("bool", size, "little")
            if code == "f":
                return prog.float_type(f"f{size}", size, "little")
            return prog.int_type(encoded, size, code == "i", "little")
        return prog.function_type(prog.void_type(), ()) if encoded == "f" else prog.void_type()

    def compound(shape: Shape, tag: str | None) -> drgn.Type:
        kind, size, members = shape
        make = prog.struct_type if kind == "struct" else prog.union_type
        return make(tag, size, [_member(each) for each in members])

    def _member(row: list[Any]) -> drgn.TypeMember:
        name, offset, encoded, *width = row

        def resolve() -> drgn.Object:
            return drgn.Object(prog, decode(encoded), bit_field_size=width[0] if width else None)

        return drgn.TypeMember(resolve, name or None, offset)

    def named(name: str) -> drgn.Type:
        if name not in made:
            kind, tag = name.split(" ", 1)
            if name in table:
                made[name] = compound(table[name], tag)
            else:
                make = prog.struct_type if kind == "struct" else prog.union_type
                made[name] = make(tag, None, None)
        return made[name]

    def find(
        _: drgn.Program, kinds: drgn.TypeKindSet, name: str, filename: str | None
    ) -> drgn.Type | None:
        for kind, word in _COMPOUND.items():
            if kind in kinds and f"{word} {name}" in table:
                return named(f"{word} {name}")
        return None

    prog.register_type_finder("inventory", find, enable_index=0)
    return prog


def pack(tables: dict[str, Table]) -> str:
    """Return all tables as JSON; equal shapes of several kernels are written once."""
    shapes: dict[str, int] = {}
    kernels = {
        kernel: {
            name: shapes.setdefault(json.dumps(shape, separators=(",", ":")), len(shapes))
            for name, shape in sorted(table.items())
        }
        for kernel, table in tables.items()
    }
    text = ",\n".join(shapes)
    return f'{{"kernels":{json.dumps(kernels, separators=(",", ":"))},\n"shapes":[\n{text}\n]}}\n'


def unpack(text: str) -> dict[str, Table]:
    """Return the tables by kernel."""
    document = json.loads(text)
    shapes = document["shapes"]
    return {
        kernel: {name: shapes[number] for name, number in names.items()}
        for kernel, names in document["kernels"].items()
    }


def read_tables() -> dict[str, Table]:
    """Return the tables of all kernels in the repository."""
    return unpack(lzma.decompress(TYPES.read_bytes()).decode()) if TYPES.exists() else {}


def save(tables: dict[str, Table]) -> None:
    """Write the tables of all kernels."""
    text = pack(dict(sorted(tables.items()))).encode()
    TYPES.write_bytes(lzma.compress(text, preset=lzma.PRESET_EXTREME | 9))


def add(name: str, path: str) -> None:
    """Add a kernel to the repository's tables: BTF, debug info, or a table as JSON."""
    if path.endswith(".json"):
        table = json.loads(Path(path).read_text())
    else:
        prog = drgn.Program(drgn.Platform(drgn.Architecture.X86_64, _FLAGS))
        if path.endswith(".btf"):
            register(prog, Types(Btf(Path(path).read_bytes())))
        else:
            prog.extra_module(path, create=True).try_file(path, force=True)
        table = table_of(prog.type, wanted_types())
    save({**read_tables(), name: table})
    print(f"{name}: {len(table)} types")
