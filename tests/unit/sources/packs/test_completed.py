# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a type pack lacks comes from BTF, which is not read before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import drgn
import pytest

from kcensus.sources.capsule import NotRecorded
from kcensus.sources.debuginfo.btf.finders import Types, register
from kcensus.sources.debuginfo.btf.types import Btf
from kcensus.sources.debuginfo.packs.file import Pack, encode
from kcensus.sources.debuginfo.packs.loaded import PackDebugInfo
from kcensus.sources.debuginfo.packs.symbols import kernel_table
from tests.unit.sources.btf.making import Section
from tests.unit.sources.btf.test_types import PLATFORM
from tests.unit.sources.packs.synthetic import GLOBAL, LOCAL, LOW, OBJECT, head, symbols, table

# Of struct node, kcensus knows the names of members, and of struct list it uses the type of one.
_ROWS = [
    ["struct", "hidden", None],
    ["pointer", 0, 8, "little"],
    ["struct", "node", 16, [["next", 0], ["count", 64]]],
    ["pointer", 2, 8, "little"],
    ["struct", "list", 16, [["first", 0, 3], ["to", 64, 1]]],
]


class Completed:
    """A program with a pack and BTF."""

    def __init__(self, path: Path, btf: Section | None) -> None:
        scope: dict[str, Any] = {"module": "", "build_id": None, "sections": [], "objects": []}
        scope |= {"types": [["struct list", 4], ["struct absent", None]]}
        document: dict[str, Any] = {"asked": ["unused"], "scopes": [scope], "types": _ROWS}
        path.write_bytes(encode(head(), document, {"": symbols()}))
        self.prog, self.asked = drgn.Program(PLATFORM), 0
        self.pack = PackDebugInfo(self.prog, Pack(path), 0)
        self.pack.register()
        self.pack.rest = self._rest
        self.types = Types(Btf(btf.data())) if btf else None

    def _rest(self) -> Types | str:
        self.asked += 1
        if self.types is None:
            return "it was built without types (BTF)"
        register(self.prog, self.types, {"run": 0x1000}.get)
        return self.types


def _btf() -> Section:
    made = Section()
    number, node = made.integer("unsigned int"), made.first + 1
    made.struct("node", 16, ("next", node + 1, 0), ("count", number, 64))
    made.pointer(node)
    made.struct("list", 16, ("wrong", number, 0))
    made.struct("other", 24, ("node", node, 0), ("size", number, 128))
    made.struct("hidden", 4, ("value", number, 0))
    made.enum("state", [("IDLE", 0), ("BUSY", 5)])
    made.function("run", number)
    return made


@pytest.fixture
def completed(tmp_path: Path) -> Completed:
    return Completed(tmp_path / "pack", _btf())


def test_the_pack_is_asked_first_and_btf_for_the_rest(completed: Completed) -> None:
    prog = completed.prog
    assert [each.name for each in prog.type("struct list").members] == ["first", "to"]
    for look_up, name in (
        (prog.type, "struct absent"),
        (prog.symbol, "nowhere"),
        (prog.object, "unused"),
    ):
        with pytest.raises(LookupError):
            look_up(name)
    assert completed.asked == 0
    assert prog.type("struct other").size == 24
    assert (int(prog["BUSY"]), prog["run"].address_) == (5, 0x1000)
    assert [each.name for each in prog.type("struct list").members] == ["first", "to"]
    with pytest.raises(LookupError, match="struct nowhere"):
        prog.type("struct nowhere")
    assert completed.types is not None
    assert completed.types.is_used


def test_types_of_members_that_the_pack_has_by_name_only(completed: Completed) -> None:
    node = completed.prog.type("struct list").member("first").type.type
    assert completed.asked == 0
    assert node.member("count").type.type_name() == "unsigned int"
    assert node.member("next").type.type_name() == "struct node *"


def test_pointers_to_types_of_both_sources_go_together(completed: Completed) -> None:
    prog = completed.prog
    first = drgn.Object(prog, prog.type("struct list").member("first").type, 64)
    second = drgn.Object(prog, prog.type("struct other *"), 32).node.address_of_()
    assert first.type_ != second.type_
    assert first.type_.type_name() == second.type_.type_name()
    assert int(first - second) == 2
    assert second < first
    assert drgn.container_of(first, prog.type("struct other"), "node").type_.type.size == 24


def test_declarations_are_completed(completed: Completed) -> None:
    assert not completed.prog.type("struct list").member("to").type.type.is_complete()
    assert completed.types is not None
    completed.pack.complete(completed.types)
    fresh = completed.prog.type("struct list *").type.member("to")
    assert fresh.name == "to"
    assert completed.pack._contents.incomplete == {}


def test_without_btf_the_error_says_why(tmp_path: Path) -> None:
    prog = Completed(tmp_path / "pack", None).prog
    why = r"lacks the type struct other: .* it was built without types \(BTF\)"
    with pytest.raises(NotRecorded, match=why):
        prog.type("struct other")
    with pytest.raises(NotRecorded, match=r"lacks the type of node\.count"):
        prog.type("struct list").member("first").type.type.member("count").type  # noqa: B018


def test_addresses_of_symbols() -> None:
    rows = [("one", 0, GLOBAL), ("two", 1, LOCAL), ("two", 2, GLOBAL), ("three", 3, LOCAL)]
    rows += [("three", 4, LOCAL)]
    columns = table(*((name, LOW + 8 * at, 8, 1, kind | OBJECT) for name, at, kind in rows))
    known = kernel_table(columns, (LOW, LOW + 0x1000), 0x10)
    assert [known.address(name) for name in ("one", "two", "three", "four")] == [
        *(LOW + 0x10, LOW + 0x20, None, None)
    ]
    assert known.addresses("three") == [LOW + 0x28, LOW + 0x30]
