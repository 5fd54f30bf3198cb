# SPDX-License-Identifier: LGPL-2.1-or-later
"""drgn finds types and objects in BTF."""

from __future__ import annotations

import drgn
import pytest
from drgn import TypeKind

from kcensus.sources.debuginfo.btf.finders import Types, register
from kcensus.sources.debuginfo.btf.format import Kind
from kcensus.sources.debuginfo.btf.types import Btf
from tests.unit.sources.btf.making import Section, every_kind
from tests.unit.sources.btf.test_types import PLATFORM, built, value

ADDRESSES = {"run": 0x1000, "rows": 0x2000, "node": 0x3000}


@pytest.fixture
def prog() -> drgn.Program:
    program = drgn.Program(PLATFORM)
    register(program, Types(Btf(every_kind().data())), ADDRESSES.get)
    return program


@pytest.mark.parametrize(
    "name",
    [
        *("struct node", "union choice", "enum state", "u32", "_Bool", "double", "struct node *"),
        *("unsigned long", "long unsigned int", "unsigned long int", "struct all"),
    ],
)
def test_types(prog: drgn.Program, name: str) -> None:
    assert prog.type(name).type_name() == name.replace(
        "long unsigned int", "unsigned long"
    ).replace("unsigned long int", "unsigned long")


def test_the_only_type_is_that_of_a_file(prog: drgn.Program) -> None:
    assert prog.type("struct node", "fs/node.c").type_name() == "struct node"
    kernel = every_kind()
    kernel.struct("node", 8)
    twice = drgn.Program(PLATFORM)
    register(twice, Types(Btf(kernel.data())), ADDRESSES.get)
    with pytest.raises(LookupError):
        twice.type("struct node", "fs/node.c")


def test_objects(prog: drgn.Program) -> None:
    assert int(prog["BUSY"]) == 5
    assert prog["BUSY"].type_.type_name() == "enum state"
    assert prog["run"].address_ == 0x1000
    assert (prog["rows"].address_, prog["rows"].type_.type_name()) == (0x2000, "union choice")
    for name in ("node", "missing"):
        with pytest.raises(LookupError):
            prog.object(name)
    with pytest.raises(LookupError):
        prog.constant("rows")
    with pytest.raises(LookupError):
        prog.object("run", drgn.FindObjectFlags.VARIABLE)


def test_objects_need_a_symbol() -> None:
    program = drgn.Program(PLATFORM)
    register(program, Types(Btf(every_kind().data())))
    with pytest.raises(LookupError):
        program.variable("rows")


def test_finders_of_these_names_are_kept() -> None:
    program = drgn.Program(PLATFORM)
    program.register_type_finder("btf", lambda *_: None, enable_index=-1)
    program.register_object_finder("btf_symbol", lambda *_: None, enable_index=-1)
    register(program, Types(Btf(every_kind().data())), ADDRESSES.get)
    with pytest.raises(LookupError):
        program.type("struct node")


def test_modules_complete_each_other() -> None:
    kernel = every_kind()
    pointer = kernel.pointer(kernel.add(Kind.FWD, "private", 0))
    kernel.struct("device", 8, ("private", pointer, 0))
    types = Types(base := Btf(kernel.data()))
    module = Section(kernel)
    module.struct("private", 32)
    module.enum("more", [("MORE", 3)])
    module.variable("counter", 1)
    types.add("dm_mod", Btf(module.data(), base))
    device = built(types.find(TypeKind.STRUCT, "device"))
    assert device.member("private").type.type.size == 32
    assert built(types.find(TypeKind.STRUCT, "private")).size == 32
    assert value(types, "MORE") == 3
    assert types.variable("counter") is not None
    assert types.function("run") is not None
