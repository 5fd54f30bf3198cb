# SPDX-License-Identifier: LGPL-2.1-or-later
"""Record the names that kcensus looks up in debug info.

``python -m tests.lookups [KERNEL/SCENARIO | CORE:DEBUG…]`` adds to ``lookups.json`` of the package
what the named dumps show, by default all in the lab's cache: types, variables, constants, functions
and symbols, also those that a kernel lacks, and those that drgn's helpers ask for. Type packs hold
what the file names.
"""

from __future__ import annotations

import ast
import io
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import drgn
from drgn import FindObjectFlags, TypeKind

import kcensus
from kcensus import capsule, stacks
from kcensus.analyses import AnalysisError, analyses
from kcensus.analyses.runner import Context
from kcensus.catalogue import Prober, ask_everything, load
from kcensus.commands.doctor import _examine as examine_target
from kcensus.render.json import write_json
from kcensus.reports import examine
from kcensus.results import Result
from kcensus.sources import Target, TargetError, open_target
from kcensus.sources.debuginfo.loading import modules_from_memory
from kcensus.sources.debuginfo.lookups import Lookups, label_of, lookups, save
from kcensus.sources.types.nodes import COMPOUND, Interner, MemberType, Node, Ref, build
from tests.lab import build as lab_build
from tests.lab import kernels, scenarios
from tests.lab.dumps import cached

_OBJECTS = {
    "variables": FindObjectFlags.VARIABLE,
    "constants": FindObjectFlags.CONSTANT,
    "functions": FindObjectFlags.FUNCTION,
}


_LAB = re.compile(r"kcensus_\w+|percpu_\d")
"""Symbols of the lab's own modules, which readers of code look up."""


class Noting:
    """Notes what a target's program is asked for, and answers from a second program.

    The second program holds the debug info. Types are rebuilt from data, which shows whose members
    are used; the writer of a capsule uses all members of such a type.
    """

    def __init__(self, target: Target, source: Target) -> None:
        self._source, self._types = source, Interner()
        self.noted = Lookups()
        self.target = replace(target, shareable=False, modules=self)
        prog = target.prog
        prog.register_type_finder("noting", self._find_type, enable_index=-1)
        prog.register_object_finder("noting", self._find_object, enable_index=-1)
        prog.register_symbol_finder("noting", self._find_symbols, enable_index=-1)

    def need_modules(self, *names: str) -> list[str]:
        self.noted.modules.update(name.replace("-", "_") for name in names)
        with modules_from_memory():
            # drgn asks for what leads to the list of modules and to their sections.
            self.target.prog.create_loaded_modules()
        return self._source.need_modules(*names)

    def places(self) -> list[tuple[str, str]]:
        return self._source.modules.places() if self._source.modules else []

    def _find_type(
        self, prog: drgn.Program, kinds: drgn.TypeKindSet, name: str, filename: str | None
    ) -> drgn.Type | None:
        for kind in kinds:
            query = f"{kind.name.lower()} {name}" if kind in (*COMPOUND, TypeKind.ENUM) else name
            self.noted.types.setdefault(query, set())
            with suppress(LookupError, SyntaxError):
                ref = self._types.ref(self._source.prog.type(query, filename))
                if ref.node.kind == kind:
                    return build(prog, self._note(ref))
        return None

    def _find_object(
        self, prog: drgn.Program, name: str, flags: FindObjectFlags, filename: str | None
    ) -> drgn.Object | None:
        query = f"{name} {filename}" if filename else name
        for kind, flag in _OBJECTS.items():
            if flag & flags:
                with suppress(LookupError):
                    found = self._source.prog.object(name, flag, filename)
                    self.noted.names(kind).add(query)
                    type_ = build(prog, self._note(self._types.ref(found.type_)))
                    if found.absent_ or found.address_ is not None:
                        return drgn.Object(prog, type_, address=found.address_)
                    return drgn.Object.from_bytes_(prog, type_, found.to_bytes_())
        is_one = [kind for kind, flag in _OBJECTS.items() if flag == flags]
        self.noted.names(is_one[0] if is_one else "objects").add(query)
        return None

    def _find_symbols(
        self, prog: drgn.Program, name: str | None, address: int | None, one: bool
    ) -> list[drgn.Symbol]:
        if name is not None and not _LAB.fullmatch(name):
            self.noted.symbols.add(name)
        wanted = address if name is None else name
        if not one:
            return list(self._source.prog.symbols(wanted))
        with suppress(LookupError):
            return [self._source.prog.symbol(wanted)] if wanted is not None else []
        return []

    def _note(self, ref: Ref) -> Ref:
        """Note the members of a type and of all that it leads to, once they are used."""
        pending = [ref.node]
        while pending:
            node = pending.pop()
            if node.type is not None:
                pending.append(node.type.node)
            for member in node.members or ():
                if member.resolved is None and not getattr(member, "is_noted", False):
                    vars(member)["is_noted"] = True
                    member.resolve = self._noting(node, member.name, member.resolve)
        return ref

    def _noting(
        self, owner: Node, name: str | None, resolve: Callable[[], MemberType]
    ) -> Callable[[], MemberType]:
        def resolved() -> MemberType:
            type_ = resolve()
            self._note(type_.ref)
            if label := label_of(owner):
                self.noted.types.setdefault(label, set()).add(name or "")
            return type_

        return resolved


def record(core: str, debug: list[str]) -> Lookups:
    """Return what kcensus looks up in one dump with all that it does to a target."""
    source = open_target(core, debug)
    prog = drgn.Program()
    prog.set_core_dump(core)
    noting = Noting(replace(source, prog=prog), source)
    target, catalogue = noting.target, load()
    context = Context.of(target, jobs=1)
    write_json(examine(context, catalogue), io.StringIO())
    examine_target(target, Result("doctor", "", "", False, None))
    prober = Prober(prog)
    ask_everything(catalogue.patches, prober)
    for patch in catalogue.patches.values():
        if patch.validation is not None and patch.validation.switch:
            prober.number(patch.validation.switch)
    with suppress(LookupError, ValueError):
        stacks(target, [1, 2])
    with tempfile.TemporaryDirectory() as folder, suppress(TargetError):
        path = Path(folder, "capsule")
        capsule.create(target, path, list(analyses().values()), redact=["names"], level=1)
    # What drgn's unwinder asks for, which needs the debug info itself.
    asked = _ask_only(source.prog, noting.noted)
    for name in ("waits", "iosched"):
        with suppress(AnalysisError):
            Context.of(replace(source, shareable=False), jobs=1).run(analyses()[name])
    assert asked
    return noting.noted


def _ask_only(prog: drgn.Program, noted: Lookups) -> bool:
    """Note what a program with debug info is asked for, without an answer."""

    def find_type(
        prog: drgn.Program, kinds: drgn.TypeKindSet, name: str, filename: str | None
    ) -> None:
        for kind in kinds:
            tag = f"{kind.name.lower()} " if kind in (*COMPOUND, TypeKind.ENUM) else ""
            noted.types.setdefault(tag + name, set())

    def find_object(
        prog: drgn.Program, name: str, flags: FindObjectFlags, filename: str | None
    ) -> None:
        noted.objects.add(f"{name} {filename}" if filename else name)

    def find_symbols(
        prog: drgn.Program, name: str | None, address: int | None, one: bool
    ) -> list[drgn.Symbol]:
        if name is not None and not _LAB.fullmatch(name):
            noted.symbols.add(name)
        return []

    prog.register_type_finder("asked", find_type, enable_index=0)
    # Behind drgn's own objects, such as PAGE_SIZE.
    prog.register_object_finder("asked", find_object, enable_index=1)
    prog.register_symbol_finder("asked", find_symbols, enable_index=0)
    return True


_TYPE = re.compile(r"((?:struct|union|enum) \w+)(?: \*)*")
_LOOKUPS = {
    "constant": "constants",
    "variable": "variables",
    "function": "functions",
    "symbol": "symbols",
    "symbols": "symbols",
}


def in_source() -> Lookups:
    """Return the names that stand literally in the package, which no recorded kernel may need."""
    found = Lookups()
    for path in Path(kcensus.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Constant(value=str(text)) if type_ := _TYPE.fullmatch(text):
                    found.types.setdefault(type_[1], set())
                case ast.Call(
                    func=ast.Attribute(attr=kind), args=[ast.Constant(value=str(name)), *rest]
                ) if kind in _LOOKUPS:
                    files = [each.value for each in rest if isinstance(each, ast.Constant)]
                    found.names(_LOOKUPS[kind]).add(" ".join((name, *map(str, files))))
                case ast.Subscript(
                    value=ast.Name(id="prog") | ast.Attribute(attr="prog"),
                    slice=ast.Constant(value=str(name)),
                ):
                    found.objects.add(name)
    return found


def dumps(words: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield name, core and debug info of dumps."""
    lab = [word for word in words if ":" not in word]
    if not words:
        pairs = ((kernel, each) for kernel in kernels() for each in scenarios())
        lab = [f"{kernel}/{each}" for kernel, each in pairs if cached(kernel, each)]
    for word in lab:
        dump = lab_build(*word.split("/"))
        yield word, str(dump.core), [*map(str, dump.debug)]
    for word in words:
        if word not in lab:
            core, *debug = word.split(":")
            yield core, core, debug


def main(words: list[str]) -> None:
    logging.disable(logging.WARNING)
    known = lookups()
    known.add(in_source())
    for name, core, debug in dumps(words):
        before = known.count()
        known.add(record(core, debug))
        save(known)
        print(f"{name}: {known.count() - before} new of {known.count()} names", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
