# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types and answers to lookups, recorded from one program and rebuilt in another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import drgn
import pytest
from drgn import Object, Type, TypeKind, TypeMember

from kcensus.progress import SilentProgress
from kcensus.sources import Target, TargetError, open_target
from kcensus.sources.capsule import NotRecorded
from kcensus.sources.capsule.recorder import Recorder
from kcensus.sources.debuginfo.packages import by_remedy, missing_module
from kcensus.sources.debuginfo.packs.loaded import NotInPack
from tests.unit.capsules import Parts, put_together, take_apart, target_of
from tests.unit.fakekernel import DIRECT_MAP, PAGE, FakeKernel


class World:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.k = FakeKernel()
        self.types: dict[tuple[TypeKind, str], Type] = {}
        prog = self.k.prog
        prog.register_type_finder("world", self._find_type, enable_index=0)
        prog.register_symbol_finder("world", self._find_symbols, enable_index=0)
        self._make(prog)
        self.recorder = Recorder(target_of(self.k))
        self.prog = self.recorder.target.prog

    def _find_type(self, prog: Any, kinds: Any, name: str, filename: str | None) -> Type | None:
        matches = (self.types.get((kind, name)) for kind in TypeKind if kind in kinds)
        return next(filter(None, matches), None)

    @staticmethod
    def _find_symbols(
        prog: Any, name: str | None, address: int | None, one: bool
    ) -> list[drgn.Symbol]:
        found = drgn.Symbol(
            "start_kernel", 0x1000, 16, drgn.SymbolBinding.GLOBAL, drgn.SymbolKind.FUNC
        )
        return [found] if name == found.name or address in range(0x1000, 0x1010) else []

    def add(self, type_: Type) -> Type:
        name = type_.name if type_.kind in (TypeKind.TYPEDEF, TypeKind.INT) else type_.tag
        self.types[type_.kind, name] = type_
        return type_

    def _make(self, p: drgn.Program) -> None:
        self.int = p.int_type("int", 4, True)
        self.u64 = p.int_type("unsigned long", 8, False)
        char = p.int_type("char", 1, True)
        self.add(p.struct_type("never"))
        double = p.float_type("double", 8)
        members = [TypeMember(self.int, "first"), TypeMember(double, "second")]
        inner = p.union_type(None, 8, members)
        enumerators = [drgn.TypeEnumerator("RED", -1), drgn.TypeEnumerator("BLUE", 7)]
        colour = p.enum_type("colour", self.int, enumerators)
        size_t = p.typedef_type("size_t", self.u64)
        members = [TypeMember(self.int, "a"), TypeMember(self.int, "b", 32)]
        self.leaf = leaf = self.add(p.struct_type("leaf", 8, members))
        members = [TypeMember(leaf, "leaf"), TypeMember(inner, None, 64)]
        stranger = self.add(p.struct_type("stranger", 16, members))
        members = [
            TypeMember(lambda: p.pointer_type(self.types[TypeKind.STRUCT, "node"]), "next"),
            TypeMember(inner, None, 64),
            TypeMember(Object(p, self.int, bit_field_size=3), "low", 128),
            TypeMember(Object(p, self.u64, bit_field_size=13), "high", 131),
            TypeMember(p.array_type(p.array_type(char, 4), 3), "names", 192),
            TypeMember(colour, "colour", 288),
            TypeMember(
                size_t.qualified(drgn.Qualifiers.CONST | drgn.Qualifiers.VOLATILE), "n", 320
            ),
            TypeMember(p.pointer_type(p.struct_type("never")), "never", 384),
            TypeMember(p.pointer_type(stranger), "stranger", 448),
            TypeMember(p.pointer_type(p.function_type(p.void_type(), ())), "call", 512),
            TypeMember(p.pointer_type(p.void_type()), "data", 576),
            TypeMember(p.bool_type("_Bool", 1), "flag", 640),
            TypeMember(leaf, "leaf", 704),
            TypeMember(p.int_type("__int128", 16, True), "wide", 768),
            TypeMember(p.int_type("be", 4, False, "big"), "big", 896),
            TypeMember(p.array_type(char), "tail", 1024),
        ]
        node = self.add(p.struct_type("node", 128, members))
        self.add(p.union_type("either", 8, [TypeMember(self.int, "i"), TypeMember(size_t, "n")]))
        self.add(colour)
        self.add(size_t)
        self.k.symbols["where"] = Object(p, node, address=DIRECT_MAP + 300 * PAGE)
        self.k.symbols["RED"] = Object(p, colour, -1)
        self.k.symbols["pair"] = Object(p, leaf, {"a": 1, "b": -2})
        self.k.symbols["gone"] = Object(p, self.int)

    def replay(self) -> Target:
        self.recorder.write(
            self.path,
            {"kernel": "0", "format": "synthetic", "analyses": ["types"], "redacted": []},
            level=1,
            progress=SilentProgress(),
        )
        # Both functions implement the specification only.
        self.path.write_bytes(put_together(take_apart(self.path.read_bytes())))
        return open_target(str(self.path))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world.capsule")


def shape(type_: Type, depth: int = 4) -> Any:
    """Return all properties of a type, following ``depth`` levels of pointers."""
    names = ("name", "tag", "size", "length", "is_signed", "byteorder", "enumerators")
    found: list[Any] = [type_.kind, type_.qualifiers.value]
    found += [getattr(type_, name, "-") for name in names]
    if type_.kind in (TypeKind.POINTER, TypeKind.TYPEDEF, TypeKind.ARRAY):
        found.append(shape(type_.type, depth - 1) if depth else "…")
    if type_.kind in (TypeKind.STRUCT, TypeKind.UNION) and type_.is_complete() and depth:
        for member in type_.members:
            try:
                inside: Any = (shape(member.type, depth - 1), member.bit_field_size)
            except NotRecorded:
                inside = "not recorded"
            found.append((member.name, member.bit_offset, inside))
    return found


def test_a_used_struct_is_replayed_completely(world: World) -> None:
    """One member was used, so all are recorded, with the types nested in them."""
    world.prog.type("struct node").member("low")
    replayed = world.replay().prog.type("struct node")
    original = world.k.prog.type("struct node")
    assert replayed.type_name() == "struct node"
    members = {member.name: member for member in replayed.members}
    for member in original.members:
        again = members[member.name]
        assert again.bit_offset == member.bit_offset
        assert again.bit_field_size == member.bit_field_size
        if member.name not in ("next", "stranger"):
            assert shape(again.type) == shape(member.type), member.name
    assert [*members] == [member.name for member in original.members]
    assert replayed.member("next").type.type.type_name() == "struct node"
    assert drgn.sizeof(replayed) == 128
    assert replayed.member("first").bit_offset == 64
    assert not replayed.member("never").type.type.is_complete()


def test_a_struct_behind_a_pointer_has_its_member_names_only(world: World) -> None:
    world.prog.type("struct node").member("low")
    stranger = world.replay().prog.type("struct node").member("stranger").type.type
    assert [member.name for member in stranger.members] == ["leaf", None]
    assert drgn.sizeof(stranger) == 16
    with pytest.raises(NotRecorded, match=r"lacks the type of stranger\.leaf: it was recorded for"):
        stranger.members[0].type  # noqa: B018
    # The members of the anonymous union were never used.
    with pytest.raises(NotRecorded, match=r"stranger\.\(anonymous\)"):
        stranger.has_member("first")


def test_has_member_works_without_types_of_members(world: World) -> None:
    prog = world.k.prog
    world.k.symbols["leaves"] = Object(prog, prog.pointer_type(world.leaf), 0)
    world.prog.object("leaves")
    leaf = world.replay().prog["leaves"].type_.type
    with pytest.raises(NotRecorded):
        leaf.member("a").type  # noqa: B018
    assert [leaf.has_member(name) for name in "abc"] == [True, True, False]


@pytest.mark.parametrize("query", ["struct none", "size_t", "enum colour", "union either"])
def test_lookups_of_types(world: World, query: str) -> None:
    def look(prog: drgn.Program) -> Any:
        try:
            found = prog.type(query)
            return [member.name for member in getattr(found, "members", ())] or shape(found)
        except LookupError:
            return "none"

    expected = look(world.prog)
    assert look(world.k.prog) == expected
    assert look(world.replay().prog) == expected


def test_has_member_through_anonymous_members(world: World) -> None:
    assert world.prog.type("struct stranger").has_member("second")
    world.prog.type("struct never")
    prog = world.replay().prog
    assert prog.type("struct stranger").has_member("first")
    assert not prog.type("struct stranger").has_member("third")
    # An incomplete struct stays incomplete.
    assert not prog.type("struct never").is_complete()
    assert prog.type("struct never").tag == "never"


def test_a_lookup_that_was_not_recorded_fails(world: World) -> None:
    prog = world.replay().prog
    lookups: list[Callable[[], Any]] = [
        lambda: prog.type("struct node"),
        lambda: prog.type("size_t"),
        lambda: prog["where"],
        lambda: prog.constant("RED"),
        lambda: prog.symbol("start_kernel"),
    ]
    for look in lookups:
        with pytest.raises(NotRecorded, match=r"^the capsule lacks .*kcensus capsule create"):
            look()


def test_pointers_are_shown_without_their_symbols(world: World) -> None:
    """drgn looks for the symbol at each pointer that it shows."""
    prog = world.replay().prog
    assert str(drgn.Object(prog, prog.pointer_type(prog.void_type()), 0x1000)) == "(void *)0x1000"
    with pytest.raises(LookupError):
        prog.symbol(0x1000)


def test_objects(world: World) -> None:
    for name in ("where", "RED", "pair", "gone"):
        world.prog.object(name)
    assert "nothing" not in world.prog
    world.k.write_words(DIRECT_MAP + 300 * PAGE, 7, 8)
    world.prog["where"].first.read_()
    prog = world.replay().prog
    assert prog["where"].address_ == DIRECT_MAP + 300 * PAGE
    assert prog["where"].first == 8
    assert prog["RED"].value_() == -1
    assert prog["RED"].type_.type_name() == "enum colour"
    assert prog["pair"].value_() == {"a": 1, "b": -2}
    assert prog["gone"].absent_
    assert "nothing" not in prog
    with pytest.raises(NotRecorded):
        prog["something"]


def test_objects_are_found_by_the_flags_of_their_lookup(world: World) -> None:
    world.prog.constant("RED")
    prog = world.replay().prog
    assert prog.constant("RED").value_() == -1
    flags = drgn.FindObjectFlags
    for arguments in ((flags.VARIABLE,), (flags.CONSTANT, "some/file.c")):
        with pytest.raises(NotRecorded):
            prog.object("RED", *arguments)


def test_symbols(world: World) -> None:
    def symbols(prog: drgn.Program) -> list[drgn.Symbol]:
        for absent in ("end_kernel", 0x2000):
            with pytest.raises(LookupError):
                prog.symbol(absent)
        return [prog.symbol(known) for known in ("start_kernel", 0x1008)]

    expected = symbols(world.prog)
    assert symbols(world.replay().prog) == expected


def test_unreadable_pages_keep_their_reasons(world: World) -> None:
    world.k.drop(DIRECT_MAP + 301 * PAGE)
    with pytest.raises(drgn.FaultError):
        world.prog.read(DIRECT_MAP + 300 * PAGE, 3 * PAGE)
    prog = world.replay().prog
    assert prog.read(DIRECT_MAP + 300 * PAGE, 8) == bytes(8)
    assert prog.read(DIRECT_MAP + 302 * PAGE, 8) == bytes(8)
    for frame, why in ((301, "filtered out of the dump"), (303, "not in the capsule")):
        with pytest.raises(drgn.FaultError, match=why):
            prog.read(DIRECT_MAP + frame * PAGE, 8)


def test_missing_module_debug_info_is_recorded(world: World) -> None:
    target = target_of(world.k)
    lacking = ["no debug info for dm_mod", missing_module("dm_mod", "6.1.0-18-amd64", None)]
    target.modules = mock.Mock(need_modules=mock.Mock(return_value=lacking))
    world.recorder = Recorder(target)
    assert world.recorder.target.need_modules("dm_mod") == lacking
    first, last = world.replay().need_modules("dm_mod")
    assert first == lacking[0]
    (lack,) = by_remedy([last])
    assert lack.modules == ["dm_mod"]
    assert lack.remedy.startswith("record the capsule again")


def test_what_a_pack_lacks_is_not_recorded_as_absent(world: World) -> None:
    def unknown(*_: object) -> None:
        raise NotInPack

    world.k.prog.register_type_finder("pack", unknown, enable_index=-1)
    world.k.prog.register_object_finder("pack", unknown, enable_index=-1)
    with pytest.raises(NotRecorded):
        world.prog.type("struct nowhere")
    with pytest.raises(NotRecorded):
        world.prog["nowhere"]
    assert not any("nowhere" in key for key in world.recorder._lookups.objects)


Refuses = Callable[[Callable[[Parts], None], str], None]
"""Changes a capsule, opens it, and looks for a sentence in the error."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    world = World(tmp_path_factory.mktemp("whole") / "world.capsule")
    world.replay()
    return world.path.read_bytes()


@pytest.fixture
def refuses(whole: bytes, tmp_path: Path) -> Refuses:
    def refuses(change: Callable[[Parts], None], sentence: str) -> None:
        parts, path = take_apart(whole), tmp_path / "changed.capsule"
        change(parts)
        path.write_bytes(put_together(parts))
        with pytest.raises(TargetError, match=sentence):
            open_target(str(path))

    return refuses


def with_lookups(**lookups: Any) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        parts.lookups = {**parts.lookups, **lookups}

    return change


LEAF = ["int", "int", 4, None, True]


def nested(levels: int, row: Callable[[int], list[Any]]) -> list[Any]:
    """Return nested types, the outermost last; ``row`` makes one of the index of an inner type."""
    return [LEAF, *map(row, range(levels))]


def nested_structs(levels: int, members: int) -> list[Any]:
    return nested(levels, lambda at: ["struct", None, 4, [[None if at else "a", 0, at]] * members])


OUT_OF_RANGE = [
    *([["typedef", 0, "t"]], [["pointer", 1, 8, None], LEAF], [["pointer", -1, 8, None]]),
    *([LEAF, ["array", 0, 1 << 40]], [["struct", "s", 0, []], ["array", 0, 1 << 23]]),
    *([["struct", "s", 1 << 40, []]], [LEAF, ["enum", "e", 0, [["A", 1 << 31]]]]),
    *([LEAF, ["struct", "s", 4, [["a", bit, 0, *width]]]] for bit, width in ((64, ()), (0, (0,)))),
]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([["struct", "s", 8, [["a", 0, 0]]]], "contains itself"),
        ([["struct", "s", 8, [["a", 0, 1]]], ["union", "u", 8, [["b", 0, 0]]]], "contains itself"),
        ([["struct", "s", 8, [["a", 0, 1]]], ["array", 0, 2], LEAF], "contains itself"),
        *((rows, "out of range") for rows in OUT_OF_RANGE),
        (nested(70, lambda at: ["typedef", at, "t"]), "nested too deeply"),
        (nested(70, lambda at: ["pointer", at, 8, None]), "nested too deeply"),
        (nested_structs(70, 1), "nested too deeply"),
        (nested(30, lambda at: ["array", at, 2]), "invalid size"),
        (nested_structs(40, 2), "too many members"),
        ([["int", "int", 3, None, True]], "invalid size"),
        ([["int", "int", 0, None, True]], "invalid size"),
        ([["int", "int", 4, "middle", True]], "byte order"),
        ([LEAF, ["pointer", 0, 4, None]], "invalid size"),
        ([["void"], ["array", 0, 2]], "invalid size"),
        ([LEAF, ["struct", "s", 4, [["a", 8, 0]]]], "ends beyond"),
        ([LEAF, ["struct", "s", 8, [["a", 4, 0]]]], "not begin at a byte"),
        ([LEAF, ["struct", "s", 8, [["a", 0, 0, 33]]]], "exceeds its type"),
        ([LEAF, ["struct", "s", 4, [["a", 30, 0, 3]]]], "exceeds its type"),
        ([LEAF, ["struct", "s", 4, [[None, 0, 0]]]], "unnamed member"),
        ([["void"], ["struct", "s", 4, [["a", 0, 0]]]], "has no size"),
        ([["void"], ["enum", "e", 0, []]], "not an integer"),
        ([["int", "wide", 16, None, True], ["enum", "e", 0, []]], "invalid size"),
        ([["struct", "s\n", 4, []]], "unprintable"),
        ([["what"]], "unknown kind"),
        ([[]], "too short"),
        ({}, "too short"),
        (None, "too short"),
    ],
)
def test_invalid_types(refuses: Refuses, rows: Any, sentence: str) -> None:
    lookups = {"types": rows, "type_lookups": [], "object_lookups": []}
    refuses(with_lookups(**lookups), sentence)


@pytest.mark.parametrize(
    ("kind", "row", "sentence"),
    [
        ("type_lookups", ["struct", "s", None, 0], "another kind"),
        ("type_lookups", ["int", "int", None, [0, 1]], "another kind"),
        ("type_lookups", ["int", "int", None, 7], "out of range"),
        ("type_lookups", ["int", "int"], "number of fields"),
        ("object_lookups", ["a", 7, None, [0, None, "00"]], "differ in size"),
        ("object_lookups", ["a", 7, None, [0, None, "0x00000"]], "not hexadecimal"),
        ("object_lookups", ["a", 7, None, [0, 1 << 64, None]], "out of range"),
        ("object_lookups", ["a", 1 << 20, None, None], "out of range"),
        ("object_lookups", ["a", True, None, None], "out of range"),
        ("object_lookups", [None, 7, None, None], "unprintable"),
        ("symbol_lookups", ["a", None, True, [["a", 0, 0, "LOCAL", "NO"]]], "unknown binding"),
        ("symbol_lookups", ["a", -1, True, []], "out of range"),
        ("modules", [["dm_mod"]], "number of fields"),
        ("modules", [["dm_mod"], ["\x1b[2J"]], "unprintable"),
    ],
)
def test_invalid_answers(refuses: Refuses, kind: str, row: Any, sentence: str) -> None:
    names = ("type_lookups", "object_lookups", "symbol_lookups", "modules")
    lookups = dict.fromkeys(names, ()) | {"types": [LEAF], kind: [row]}
    refuses(with_lookups(**lookups), sentence)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("arch", "RISCV64", "architecture"),
        ("arch", None, "unprintable"),
        ("arch", "AARCH64", "VMCOREINFO does not describe"),
        ("page_size", 65536, "page size differs"),
        ("page_size", 1 << 20, "out of range"),
        *(("memory_bytes", value, "out of range") for value in (0, 1 << 60)),
        *(("direct_map", value, "out of range") for value in ((1 << 64) - 1, -1, 1.5)),
    ],
)
def test_invalid_machines(refuses: Refuses, key: str, value: Any, sentence: str) -> None:
    def change_machine(parts: Parts) -> None:
        parts.runs, parts.blocks = parts.runs[:0], []
        parts.manifest["machine"][key] = value

    refuses(change_machine, sentence)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"\xff" * 99, b"OSRELEASE=\nPAGESIZE=4096", b"OSRELEASE=" + b"a" * 5000),
        *(b"PAGESIZE=0", b"PAGESIZE=4095", b"PAGESIZE=%d" % 10**23, b"NUMBER(phys_base)=x"),
    ],
)
def test_invalid_vmcoreinfo(refuses: Refuses, text: bytes) -> None:
    def change(parts: Parts) -> None:
        names = [line.partition(b"=")[0] for line in text.split(b"\n")]
        lines = parts.sections["vmcoreinfo"].split(b"\n")
        kept = [line for line in lines if line.partition(b"=")[0] not in names and text]
        parts.sections["vmcoreinfo"] = b"\n".join([text, *kept]) if b"\xff" not in text else text

    refuses(change, "VMCOREINFO does not describe|page size differs")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("redacted", None), ("redacted", ["\x1b[2J"]), ("pages", {}), ("pages", {"stored": -1})),
        *(("analyses", value) for value in ("types", ["types"] * 257, [1])),
        *(("format", None), ("boot", None), ("boot", ["0"]), ("boot", "\n")),
    ],
)
def test_invalid_manifests(refuses: Refuses, key: str, value: Any) -> None:
    refuses(lambda parts: parts.manifest.update({key: value}), "is corrupt")


def test_lookups_are_json(whole: bytes) -> None:
    names = ["type_lookups", "object_lookups", "symbol_lookups", "modules", "types"]
    assert [*take_apart(whole).lookups] == names
