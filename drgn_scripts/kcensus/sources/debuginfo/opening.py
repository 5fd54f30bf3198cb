# SPDX-License-Identifier: LGPL-2.1-or-later
"""Choose the sources of a program's types and symbols, in their order of preference.

Debug info comes first, then a type pack, then the kernel's own memory. A later source gives what an
earlier one lacks.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import drgn

from kcensus.limits.memory import mapping_files
from kcensus.sources.debuginfo.btf.finders import Types
from kcensus.sources.debuginfo.finder import DebugInfo
from kcensus.sources.debuginfo.given import Given, in_directories, split_given
from kcensus.sources.debuginfo.in_memory import InMemory, NotInMemory
from kcensus.sources.debuginfo.loading import held_warning
from kcensus.sources.debuginfo.packs.choice import split_packs, use_pack
from kcensus.sources.debuginfo.packs.loaded import PackDebugInfo
from kcensus.sources.debuginfo.unused import foreign_modules, unused
from kcensus.sources.model import (
    SYMBOLS,
    MissingDebugInfo,
    ModuleTypes,
    Target,
    TargetError,
    check_platform,
)

_Second = Callable[[], ModuleTypes | None]
"""Makes a source of types; returns None if there is none."""


def has_types(prog: drgn.Program) -> bool:
    """Return whether :func:`load_debug_info` gave a program types from elsewhere than DWARF."""
    return (PackDebugInfo.of(prog) or InMemory.of(prog)) is not None


@held_warning()
def load_debug_info(
    target: Target, symbols: tuple[Path, ...], shared: tuple[Path, ...] = ()
) -> Target:
    """Give the program of ``target`` types and symbols, once; return the target.

    :param symbols: files and directories that the user passed for this target
    :param shared: others, for many kernels
    :raises TargetError: the machine is not supported, or the debug info is missing or unusable
    """
    prog = target.prog
    check_platform(prog, target.name)
    packs, files = split_packs(symbols)
    shared_packs, shared = split_packs([path for path in shared if path not in symbols])
    given, files = split_given(files)
    others, shared, unusable = _split_many(shared, SYMBOLS)
    debug_info = DebugInfo(prog, files, shared)
    unusable |= debug_info.unusable
    found, _, more = _split_many(in_directories(files, debug_info.release), "-s")
    others = [*found, *others]
    found, _, more_shared = _split_many(in_directories(shared, debug_info.release), SYMBOLS)
    others += found
    unusable |= more | more_shared
    memory = functools.cache(lambda: _in_memory(prog, given, others, unusable))

    def second() -> InMemory | None:
        with contextlib.suppress(TargetError):
            made = memory()
            return made if isinstance(made, InMemory) else None
        return None

    try:
        with mapping_files():
            debug_info.load_kernel()
        modules = _Modules(debug_info, [second], debug_info)
    except MissingDebugInfo as error:
        if pack := use_pack(prog, packs, files, (*shared_packs, *shared), unusable):
            target.types = "type pack"
            pack.rest = functools.partial(_types_of, memory)
            if given.btf:
                memory()  # or an unusable file would go unnoticed
            modules = _Modules(pack, [lambda: debug_info, second], debug_info)
        elif debug_info.names_no_kernel:
            own = memory()
            why = "" if isinstance(own, InMemory) else str(error)
            kernel = debug_info.release, debug_info.build
            passed = (("-s", (*packs, *files)), (SYMBOLS, (*shared_packs, *shared)))
            named = [*unusable, *(own.files if isinstance(own, InMemory) else ())]
            named += [folder for path in named for folder in path.parents]
            notes = [unused(*each, *kernel, why, named) for each in passed]
            if not isinstance(own, InMemory):
                if target.missing_end and not own.is_final:
                    raise TargetError(
                        f"{target.name}: {target.missing_end}, and the rest does not have both "
                        "the types (BTF) and the symbols of the kernel; copy the dump again"
                    ) from error
                text = (
                    f"{why}; or pass a type pack of it with -s, which `kcensus types save` writes "
                    f"where its debug info is; the dump itself cannot replace it: {own}"
                )
                notes = [*unusable.values(), text, *filter(None, notes)]
                raise MissingDebugInfo("; ".join(notes), error.build_id) from error
            target.types, target.notes, target.doubts = (
                "BTF",
                tuple(filter(None, notes)),
                own.doubts,
            )
            modules = _Modules(own, [lambda: debug_info], debug_info)
        else:
            raise
    if given.symbols and InMemory.of(prog) is None:
        Given(symbols=given.symbols).read_symbols(prog)
    foreign = foreign_modules(prog, debug_info.module_files, shared)
    for path, sentence in foreign.items():
        if path in files:
            raise TargetError(sentence)
        unusable[path] = sentence
    target.modules, target.completed = modules, modules.is_completed
    target.notes = (*debug_info.kernel_troubles, *unusable.values(), *target.notes)
    return target


def _split_many(
    paths: Iterable[Path], origin: str
) -> tuple[list[Given], tuple[Path, ...], dict[Path, str]]:
    """Return files of types and symbols for many kernels, other paths, and a sentence about each
    unusable one.

    :param origin: how they were passed
    """
    given, others, unusable = [], list[Path](), dict[Path, str]()
    for path in paths:
        try:
            each, rest = split_given([path], origin)
        except TargetError as error:
            unusable[path] = str(error)
            continue
        others += rest
        if not rest:
            given.append(replace(each, shared=frozenset([path] if origin == SYMBOLS else [])))
    return given, tuple(others), unusable


def _in_memory(
    prog: drgn.Program,
    given: Given,
    shared: Sequence[Given],
    unusable: dict[Path, str] | None = None,
) -> InMemory | NotInMemory:
    """Return the kernel's own types, registered behind others; or why there are none.

    :param shared: files for many kernels, and of directories; those of other kernels count as not
        given
    :param unusable: is filled with these files, with a sentence each
    :raises TargetError: the files that the user passed are unusable
    """
    if (known := InMemory.of(prog)) is not None:
        return known
    pack = PackDebugInfo.of(prog)
    # A pack has all symbols of the kernel.
    table = None if pack is None else pack.table
    why: NotInMemory | TargetError | None = None
    types = [given.btf] if given.btf else [*filter(None, (each.btf for each in shared)), None]
    symbols = (
        [given.symbols]
        if given.symbols
        else [*filter(None, (each.symbols for each in shared)), None]
    )
    of_many = {path for each in shared for path in (each.btf, each.symbols)}
    in_variable = frozenset[Path]().union(*(each.shared for each in shared))
    for pair in product(types, symbols):
        files = Given(*pair, in_variable)
        try:
            return InMemory(prog, files, table)
        except (NotInMemory, TargetError) as error:
            why = error
            for path in filter(None, of_many.intersection(pair)):
                if unusable is not None and str(error).startswith(files.name(path)):
                    unusable[path] = str(error)
    if isinstance(why, TargetError):
        raise why
    assert why is not None
    return why


def _types_of(memory: Callable[[], InMemory | NotInMemory]) -> Types | str:
    try:
        made = memory()
    except TargetError as error:
        return str(error)
    return made.types if isinstance(made, InMemory) else str(made)


class _Modules:
    """Modules from a first source of types, and its missing modules from the next ones."""

    def __init__(self, first: ModuleTypes, others: list[_Second], debug_info: DebugInfo) -> None:
        self._first, self._others, self._debug_info = first, others, debug_info
        self._has_modules_of_memory = False

    def need_modules(self, *names: str) -> list[str]:
        wanted = [name.replace("-", "_") for name in names]
        sentences = self._first.need_modules(*wanted)
        for make in self._others:
            lacking = [name for name in wanted if self._first.lacks(name)]
            if not lacking or (source := make()) is None:
                continue
            source.need_modules(*lacking)
            if isinstance(source, InMemory):
                self._has_modules_of_memory |= any(map(source.has, lacking))
                if isinstance(self._first, PackDebugInfo):
                    self._first.complete(source.types)
            left = [name for name in wanted if name not in lacking or not source.has(name)]
            if len(left) < len(wanted):
                wanted, sentences = left, self._first.need_modules(*left)
        return [*sentences, *self._debug_info.troubles]

    def is_completed(self) -> bool:
        """Return whether types in memory have completed a first source that is not memory."""
        memory = InMemory.of(self._debug_info.prog)
        looked_up = isinstance(self._first, PackDebugInfo) and memory and memory.types.is_used
        return self._has_modules_of_memory or bool(looked_up)

    def places(self) -> list[tuple[str, str]]:
        first, memory = self._first.places(), InMemory.of(self._debug_info.prog)
        others = [each for each in (self._debug_info, memory) if each not in (self._first, None)]
        known = {name for name, _ in first}
        more = [place for each in others if each for place in each.places()]
        return [*first, *(place for place in more if place[0] not in known)]
