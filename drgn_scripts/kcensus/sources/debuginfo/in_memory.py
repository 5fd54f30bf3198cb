# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel without debug info: types from its BTF, symbols from its kallsyms.

Like debug info, those of a module are loaded when an analysis needs it.
"""

from __future__ import annotations

from itertools import islice

import drgn
from drgn import FindObjectFlags, SymbolIndex, SymbolKind
from drgn.helpers.linux.kallsyms import module_kallsyms
from drgn.helpers.linux.module import for_each_module

from kcensus.sources.debuginfo import kallsyms, packages
from kcensus.sources.debuginfo.btf import finders, places
from kcensus.sources.debuginfo.btf.format import BadBtf
from kcensus.sources.debuginfo.btf.types import Btf
from kcensus.sources.debuginfo.btf.verify import verify
from kcensus.sources.debuginfo.given import Given
from kcensus.sources.debuginfo.globals import Undeclared, declared
from kcensus.sources.debuginfo.kallsyms import BadKallsyms, Symbols
from kcensus.sources.debuginfo.kallsyms.files import from_file
from kcensus.sources.debuginfo.loading import unreadable_modules
from kcensus.sources.model import TargetError, kernel_release
from kcensus.text import printable

_FINDER = "kcensus globals"
_MAX_MODULES = 1 << 13
_DAMAGED = (
    *(LookupError, AttributeError, TypeError, ValueError, OverflowError),
    *(drgn.FaultError, drgn.OutOfBoundsError),
)


class NotInMemory(Exception):
    """A kernel's memory lacks types or symbols; the text is a clause without a subject."""


class InMemory:
    """The types and symbols in the memory of a kernel, unless the user passed files with them.

    :raises NotInMemory: it has none, or they are unusable
    :raises TargetError: the files are unusable
    """

    def __init__(self, prog: drgn.Program, given: Given) -> None:
        self._prog, self._given = prog, given
        self._symbols = self._find_symbols()
        self._btf = self._find_types()
        self._types = finders.Types(self._btf)
        self._symbols.register(prog)
        finders.register(prog, self._types)
        prog.register_object_finder(_FINDER, self._find_variable, enable_index=-1)
        self._known: dict[str, str] = {}
        """By name of a module, the sentence about what it lacks; empty for none."""
        self._of_modules: tuple[dict[str, Btf], list[str]] | None = None

    def _find_symbols(self) -> Symbols:
        if path := self._given.symbols:
            try:
                return from_file(path, self._prog)
            except BadKallsyms as error:
                raise TargetError(f"-s {printable(str(path))}: {error}") from error
        try:
            return kallsyms.load(self._prog)
        except BadKallsyms as error:
            why = f"its symbols (kallsyms) are unusable: {error}; pass its System.map with -s"
            raise NotInMemory(why) from error

    def _find_types(self) -> Btf:
        if path := self._given.btf:
            try:
                given = places.from_file(path, prefix="-s ")
                verify(self._prog, given)
            except BadBtf as error:
                why = f"-s {printable(str(path))}: the types (BTF) are unusable: {error}"
                raise TargetError(why) from error
            return given
        start, stop = map(self._symbols.address, ("__start_BTF", "__stop_BTF"))
        if start is None or stop is None:
            raise NotInMemory("it was built without types (CONFIG_DEBUG_INFO_BTF)")
        try:
            found = places.from_memory(self._prog, start, stop)
            verify(self._prog, found)
        except BadBtf as error:
            raise NotInMemory(f"its types (BTF) are unusable: {error}") from error
        return found

    def _find_variable(
        self, prog: drgn.Program, name: str, flags: FindObjectFlags, filename: str | None
    ) -> drgn.Object | None:
        # The file of a variable is unknown. Of several variables of a name, none is meant.
        if not flags & FindObjectFlags.VARIABLE:
            return None
        if name == "vmemmap":
            return self._vmemmap()
        if self._symbols.address(name) is None and self._symbols.addresses(name):
            return None
        try:
            symbol = prog.symbol(name)
        except LookupError:
            return None
        try:
            type_ = declared(prog, name, lambda _: symbol.size or None)
        except Undeclared:
            # In some kernels (Debian's 7.3), variables have symbols of functions, too.
            if symbol.kind == SymbolKind.FUNC:
                return None
            raise
        return drgn.Object(prog, type_, address=symbol.address)

    def _vmemmap(self) -> drgn.Object | None:
        """Return what drgn has as ``vmemmap`` if the function vmemmap_populate() is known.

        BTF of older kernels (5.10) lacks functions of init sections.
        """
        base = self._symbols.address("vmemmap_base")
        if base is None:
            return None
        value = self._prog.read_u64(base)
        return drgn.Object(self._prog, self._prog.type("struct page *"), value)

    def need_modules(self, *names: str) -> list[str]:
        wanted = dict.fromkeys(name.replace("-", "_") for name in names)
        new = {name for name in wanted if name not in self._known}
        try:
            loaded = (
                {
                    module.name.string_().decode(errors="surrogateescape"): module
                    for module in islice(for_each_module(self._prog), _MAX_MODULES)
                }
                if new
                else {}
            )
        except _DAMAGED as error:
            return [unreadable_modules(new, str(error))]
        for name in new:
            self._known[name] = self._load(name, loaded[name]) if name in loaded else ""
        return [sentence for name in wanted if (sentence := self._known[name])]

    def _load(self, name: str, module: drgn.Object) -> str:
        """Add the types and symbols of a loaded module; return what it lacks."""
        if self._of_modules is None:
            head = self._symbols.address("btf_modules")
            self._of_modules = places.of_modules(self._prog, self._btf, head) if head else ({}, [])
        types, sentences = self._of_modules
        if name not in types:
            own = [each for each in sentences if each.startswith(f"module {name}:")]
            return own[0] if own else packages.missing_module(name, self._release, None)
        try:
            symbols = module_kallsyms(module)
        except _DAMAGED as error:
            return f"module {name}: its symbols are unreadable ({printable(str(error))})"
        self._types.add(name, types[name])
        self._prog.register_symbol_finder(
            f"{_FINDER}: {name}", SymbolIndex(symbols), enable_index=-1
        )
        return ""

    @property
    def _release(self) -> str:
        return kernel_release(self._prog)

    def places(self) -> list[tuple[str, str]]:
        types, symbols = (
            f"in {printable(str(path))}" if path else "in memory"
            for path in (self._given.btf, self._given.symbols)
        )
        modules = self._of_modules[0] if self._of_modules else {}
        return [
            ("vmlinux", f"types (BTF) {types}, symbols (kallsyms) {symbols}"),
            *(
                (printable(name), "types (BTF) and symbols in memory")
                for name in sorted(modules)
                if self._known.get(name) == ""
            ),
        ]
