# SPDX-License-Identifier: LGPL-2.1-or-later
"""BTF sections made by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from kcensus.sources.debuginfo.btf.format import HEADER, Kind

MAGIC = 0xEB9F
_MASK = (1 << 32) - 1


class Section:
    """Types of a section; each method adds a type and returns its ID.

    :param base: the section of the kernel, if this is one of a module
    """

    def __init__(self, base: Section | None = None) -> None:
        self.first: int = base.first + len(base.records) if base else 1
        self.first_text: int = base.first_text + len(base.strings) if base else 0
        self.strings: bytearray = bytearray(b"" if base else b"\0")
        self.records: list[bytes] = []
        self._places: dict[str, int] = {}
        self._base = base

    def data(self, **changes: int) -> bytes:
        """Return the section; ``changes`` are wrong fields of the header."""
        types = b"".join(self.records)
        fields = {
            "magic": MAGIC, "version": 1, "flags": 0, "header": HEADER.size, "types": 0,
            "types_size": len(types), "strings": len(types), "strings_size": len(self.strings),
        }  # fmt: skip
        return HEADER.pack(*(fields | changes).values()) + types + bytes(self.strings)

    def name(self, text: str) -> int:
        """Return the offset of a string, which is added if it is new."""
        if not text:
            return 0
        if self._base and text in self._base._places:
            return self._base.name(text)
        place = self._places.setdefault(text, len(self.strings))
        if place == len(self.strings):
            self.strings += text.encode() + b"\0"
        return self.first_text + place

    def add(
        self, kind: int, name: str, value: int, *words: int, count: int = 0, flag: bool = False
    ) -> int:
        info = count | kind << 24 | flag << 31
        parts = (self.name(name), info, value, *(word & _MASK for word in words))
        self.records.append(struct.pack(f"<{len(parts)}I", *parts))
        return self.first + len(self.records) - 1

    def integer(self, name: str, size: int = 4, coding: int = 0, bits: int = 0, at: int = 0) -> int:
        return self.add(Kind.INT, name, size, coding << 24 | at << 16 | (bits or size * 8))

    def pointer(self, target: int) -> int:
        return self.add(Kind.PTR, "", target)

    def array(self, element: int, length: int) -> int:
        return self.add(Kind.ARRAY, "", 0, element, 0, length)

    def struct(
        self,
        name: str,
        size: int,
        *members: tuple[str, int, int] | tuple[str, int, int, int],
        kind: Kind = Kind.STRUCT,
    ) -> int:
        """Add a struct of members: name, type, offset in bits, and width of a bit field."""
        flag = any(len(member) == 4 for member in members)
        words = [
            word
            for label, type_, offset, *bits in members
            for word in (self.name(label), type_, offset | (bits[0] if bits else 0) << 24)
        ]
        return self.add(kind, name, size, *words, count=len(members), flag=flag)

    def enum(
        self, name: str, values: Iterable[tuple[str, int]], size: int = 4, signed: bool = False
    ) -> int:
        words = [word for label, value in values for word in (self.name(label), value)]
        return self.add(Kind.ENUM, name, size, *words, count=len(words) // 2, flag=signed)

    def enum64(self, name: str, values: Iterable[tuple[str, int]], signed: bool = False) -> int:
        words = [
            word
            for label, value in values
            for word in (self.name(label), value & _MASK, value >> 32 & _MASK)
        ]
        return self.add(Kind.ENUM64, name, 8, *words, count=len(words) // 3, flag=signed)

    def function(self, name: str, returned: int, *parameters: tuple[str, int]) -> int:
        words = [word for label, type_ in parameters for word in (self.name(label), type_)]
        prototype = self.add(Kind.FUNC_PROTO, "", returned, *words, count=len(parameters))
        return self.add(Kind.FUNC, name, prototype) if name else prototype

    def variable(self, name: str, type_: int) -> int:
        return self.add(Kind.VAR, name, type_, 1)


def every_kind() -> Section:
    """Return a section with a type of each kind, and several of some."""
    made = Section()
    unsigned, signed = made.integer("unsigned int"), made.integer("int", coding=1)
    char, bool_ = made.integer("char", 1), made.integer("_Bool", 1, coding=4)
    long_ = made.integer("long unsigned int", 8)
    made.add(Kind.FLOAT, "double", 8)
    declared = made.add(Kind.FWD, "hidden", 0)
    made.add(Kind.FWD, "choice", 0, flag=True)
    node = made.first + len(made.records)
    pointer = node + 1
    made.struct("node", 16, ("next", pointer, 0), ("count", unsigned, 64))
    made.pointer(node)
    qualified = made.add(Kind.CONST, "", made.add(Kind.VOLATILE, "", char))
    text = made.pointer(qualified)
    alias = made.add(Kind.TYPEDEF, "u32", unsigned)
    choice = made.struct(
        "choice", 8, ("pointer", pointer, 0), ("number", alias, 0), kind=Kind.UNION
    )
    inner = made.struct("", 8, ("a", choice, 0))
    state = made.enum("state", [("IDLE", 0), ("BUSY", 5)])
    wide = made.enum64("wide", [("HIGH", 1 << 40)])
    made.enum("sign", [("MINUS", -1)], signed=True)
    made.enum("undefined", [])
    made.struct(
        "all",
        64,
        ("first", signed, 0, 3),
        ("second", unsigned, 3, 29),
        ("state", state, 32, 8),
        ("is_set", bool_, 40, 0),
        ("name", text, 64, 0),
        ("", inner, 128, 0),
        ("words", made.array(long_, 2), 192, 0),
        ("hidden", made.pointer(declared), 320, 0),
        ("wide", wide, 384, 0),
        ("rest", made.array(char, 0), 512, 0),
    )
    tag = made.add(Kind.TYPE_TAG, "rcu", node)
    restricted = made.add(Kind.RESTRICT, "", made.pointer(tag))
    call = made.function("run", signed, ("next", restricted), ("count", alias), ("", 0))
    made.add(Kind.DECL_TAG, "kfunc", call, -1)
    rows = made.variable("rows", choice)
    made.add(Kind.DATASEC, ".data..percpu", 8, rows, 0, 8, count=1)
    return made
