# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types from BTF in a dump are those of DWARF, as far as analyses use them."""

from __future__ import annotations

from typing import NamedTuple

import drgn
import pytest
from drgn import TypeKind

from kcensus.analyses import AnalysisError, analyses
from kcensus.analyses.runner import Context
from kcensus.sources.debuginfo.btf import places
from kcensus.sources.debuginfo.btf.finders import Types, register
from kcensus.sources.debuginfo.btf.types import Btf
from tests.lab import Dump
from tests.vm.btf.equality import FLAT, NO_LENGTH, Comparison
from tests.vm.cases import opened

_TAGGED = (TypeKind.STRUCT, TypeKind.UNION, TypeKind.ENUM)


class Used(NamedTuple):
    """A dump read with DWARF by all analyses, and a program with the types of BTF in the dump."""

    prog: drgn.Program
    types: list[str]
    constants: list[str]
    btf: drgn.Program
    kernel: Btf
    modules: dict[str, Btf]


@pytest.fixture(scope="module")
def used(mixed_dump: Dump) -> Used:
    target = opened(mixed_dump)
    prog = target.prog
    types: dict[str, None] = {}
    objects: dict[str, None] = {}

    def note_type(
        prog: drgn.Program, kinds: drgn.TypeKindSet, name: str, filename: str | None
    ) -> None:
        for kind in kinds:
            types[f"{kind.name.lower()} {name}" if kind in _TAGGED else name] = None

    def note_object(
        prog: drgn.Program, name: str, flags: drgn.FindObjectFlags, filename: str | None
    ) -> None:
        if flags & drgn.FindObjectFlags.CONSTANT:
            objects[name] = None

    prog.register_type_finder("note", note_type, enable_index=0)
    prog.register_object_finder("note", note_object, enable_index=0)
    context = Context.of(target, jobs=1)
    for analysis in analyses().values():
        try:
            context.run(analysis)
        except AnalysisError:
            continue
    start, stop = (prog.symbol(name).address for name in ("__start_BTF", "__stop_BTF"))
    kernel = places.from_memory(prog, start, stop)
    modules: dict[str, Btf] = {}
    sentences: list[str] = []
    try:
        head = prog.symbol("btf_modules").address
    except LookupError:
        assert mixed_dump.kernel == "5.10"
    else:
        modules, sentences = places.of_modules(prog, kernel, head)
    assert sentences == []
    btf, all_types = drgn.Program(prog.platform), Types(kernel)
    for name, module in modules.items():
        all_types.add(name, module)
    register(btf, all_types, lambda name: 0)
    # drgn itself has others, such as PAGE_SHIFT.
    constants = [
        name
        for name in objects
        if (found := _constant(prog, name)) and found.type_.kind == TypeKind.ENUM
    ]
    return Used(prog, [*types], constants, btf, kernel, modules)


def _type(prog: drgn.Program, name: str) -> drgn.Type | None:
    try:
        return prog.type(name)
    except (LookupError, SyntaxError):
        return None


def _constant(prog: drgn.Program, name: str) -> drgn.Object | None:
    try:
        return prog.constant(name)
    except LookupError:
        return None


def test_used_types_are_those_of_dwarf(used: Used, mixed_dump: Dump) -> None:
    names = [name for name in used.types if _type(used.prog, name) is not None]
    pairs = [(_type(used.prog, name), _type(used.btf, name)) for name in names]
    missing = {name for name, (_, btf) in zip(names, pairs, strict=True) if btf is None}
    if not used.modules:
        # Those of modules, which have no BTF.
        alone = drgn.Program()
        alone.set_core_dump(str(mixed_dump.core))
        alone.load_debug_info([str(mixed_dump.debug[0])], main=True)
        missing = {name for name in missing if _type(alone, name) is not None}
    assert missing == set()
    assert {name for name in used.types if _type(used.btf, name)} <= {*names}
    comparison = Comparison()
    comparison.compare((dwarf, btf) for dwarf, btf in pairs if dwarf and btf)
    assert {*comparison.counts} <= {FLAT, NO_LENGTH}, comparison.examples
    assert len(comparison.compared) > 1000
    print(mixed_dump.kernel, len(names), len(comparison.compared), dict(comparison.counts))


def test_used_enumerators_are_those_of_dwarf(used: Used) -> None:
    assert len(used.constants) > 20
    for name in used.constants:
        dwarf, btf = used.prog.constant(name), used.btf.constant(name)
        assert (int(dwarf), dwarf.type_.type_name()) == (int(btf), btf.type_.type_name())


def test_variables_are_those_of_dwarf(used: Used) -> None:
    """DWARF has more, and picks one of those with equal names."""
    variables = used.kernel.variables()
    comparison = Comparison()
    pairs = []
    for name in variables:
        try:
            dwarf = used.prog.variable(name)
        except LookupError:
            continue
        pairs.append((dwarf.type_, used.btf.variable(name).type_))
    comparison.compare(pairs)
    print(len(variables), len(pairs), dict(comparison.counts))
    assert {*comparison.counts} <= {FLAT, NO_LENGTH}, comparison.examples
    assert len(pairs) == len(variables)


def test_functions_are_those_of_dwarf(used: Used) -> None:
    names = ("vfs_read", "schedule", "kmem_cache_alloc", "submit_bio", "printk")
    comparison = Comparison()
    for name in names:
        try:
            dwarf = used.prog.function(name)
        except LookupError:
            continue
        comparison.compare([(dwarf.type_, used.btf.function(name).type_)])
    assert {*comparison.counts} <= {FLAT, NO_LENGTH}, comparison.examples
