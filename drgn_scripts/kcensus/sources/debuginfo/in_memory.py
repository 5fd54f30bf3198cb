# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel without debug info: types from its BTF, symbols from its kallsyms.

Like debug info, those of a module are loaded when an analysis needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import drgn
from drgn import FindObjectFlags, SymbolKind

from kcensus.sources.debuginfo import kallsyms, packages
from kcensus.sources.debuginfo.btf import finders, places
from kcensus.sources.debuginfo.btf.format import BadBtf
from kcensus.sources.debuginfo.btf.types import Btf
from kcensus.sources.debuginfo.btf.verify import verify
from kcensus.sources.debuginfo.given import Given
from kcensus.sources.debuginfo.globals import Undeclared, declared
from kcensus.sources.debuginfo.kallsyms import BadKallsyms, Symbols
from kcensus.sources.debuginfo.loading import is_out_of_tree, loaded_modules
from kcensus.sources.model import TargetError, kernel_release
from kcensus.text import printable

_FINDER = "kcensus globals"
_KEY = "kcensus: types and symbols in memory"
"""Key of :attr:`drgn.Program.cache`."""


# Since Linux kernel commit 341dfcf8d78e ("btf: expose BTF info through sysfs") (in v5.4), every
# kernel with BTF and sysfs has this function, which is among the symbols without variables, too.
_READS_BTF = "btf_vmlinux_init"
_WITHOUT_BTF = "it was built without types (BTF)"


class NotInMemory(Exception):
    """A kernel's memory lacks types or symbols; the text is a clause without a subject.

    :param is_final: whether the kernel was built without them, so that no other dump has them
    """

    def __init__(self, why: str, is_final: bool = False) -> None:
        super().__init__(why)
        self.is_final = is_final


class SymbolPlaces(Protocol):
    """The symbols of a kernel without its modules."""

    def address(self, name: str) -> int | None:
        """Return the address of a symbol; None if there is none or no single one."""
        ...

    def addresses(self, name: str) -> list[int]: ...


class InMemory:
    """The types and symbols in the memory of a kernel, unless the user passed files with them.

    :param symbols: the symbols of the program, if it has some; else, those in memory are registered
    :raises NotInMemory: it has none, or they are unusable
    :raises TargetError: the files are unusable
    """

    def __init__(
        self, prog: drgn.Program, given: Given, symbols: SymbolPlaces | None = None
    ) -> None:
        self._prog, self._given = prog, given
        self._symbols: SymbolPlaces
        self.doubts: dict[str, str] = {}
        """By name of a symbol in doubt, the reason as a clause; such symbols count as missing."""
        if symbols is None:
            found = self._find_symbols()
            self._symbols, self._btf, self.doubts = found, self._find_types(found), found.doubts
            found.register(prog)
        else:
            self._symbols, self._btf = symbols, self._find_types(symbols)
        self._has_own_symbols = symbols is None
        self.types = finders.Types(self._btf)
        finders.register(prog, self.types, self._address)
        prog.register_object_finder(_FINDER, self._find_variable, enable_index=-1)
        self._known: dict[str, str] = {}
        """By name of a loaded module, the sentence about its missing types, or nothing."""
        self._of_modules: tuple[dict[str, Btf], list[str]] | None = None
        prog.cache[_KEY] = self

    @staticmethod
    def of(prog: drgn.Program) -> InMemory | None:
        """Return what is registered in a program."""
        known = prog.cache.get(_KEY)
        return known if isinstance(known, InMemory) else None

    @property
    def files(self) -> list[Path]:
        """Files that serve in place of memory."""
        symbols = self._given.symbols if self._has_own_symbols else None
        return [path for path in (self._given.btf, symbols) if path]

    def _find_symbols(self) -> Symbols:
        platform = self._prog.platform
        if platform is not None and not platform.flags & drgn.PlatformFlags.IS_LITTLE_ENDIAN:
            raise NotInMemory(
                "types (BTF) and symbols (kallsyms) of a big-endian kernel are not read"
            )
        if self._given.symbols:
            found = self._given.read_symbols(self._prog)
        else:
            try:
                found = kallsyms.load(self._prog)
            except BadKallsyms as error:
                why = (
                    f"its symbols (kallsyms) are unusable: {error}; if it has types (BTF), pass "
                    "its System.map with -s"
                )
                raise NotInMemory(why) from error
        if found.address("init_uts_ns") is None:
            # A System.map has no types.
            if not self._given.btf and not found.addresses(_READS_BTF):
                raise NotInMemory(_WITHOUT_BTF, is_final=True)
            raise NotInMemory(
                "its symbols (kallsyms) have no variables (CONFIG_KALLSYMS_ALL); pass its "
                "System.map with -s"
            )
        return found

    def _find_types(self, symbols: SymbolPlaces) -> Btf:
        start, stop = map(symbols.address, ("__start_BTF", "__stop_BTF"))
        if start is None or stop is None:
            if not self._given.btf:
                raise NotInMemory(_WITHOUT_BTF, is_final=True)
            return self._given_types()
        try:
            own = places.from_memory(self._prog, start, stop)
            verify(self._prog, own)
        except BadBtf as error:
            if not self._given.btf:
                raise NotInMemory(f"its types (BTF) are unusable: {error}") from error
            return self._given_types()
        # Files that agree with VMCOREINFO can still be of another build.
        if self._given.btf and self._given_types().data != own.data:
            raise TargetError(
                f"{self._given.name(self._given.btf)}: differs from the types (BTF) in the dump, "
                "which serve without it; leave it out"
            )
        return own

    def _given_types(self) -> Btf:
        path = self._given.btf
        assert path is not None
        found = places.from_file(
            path, prefix=self._given.prefix(path), platform=self._prog.platform
        )
        try:
            verify(self._prog, found)
        except BadBtf as error:
            why = f"{self._given.name(path)}: has unusable types (BTF): {error}"
            raise TargetError(why) from error
        return found

    def _symbol(self, name: str) -> drgn.Symbol | None:
        """Return a symbol; None without any, or if several variables have the name.

        The source file of a variable is unknown, so that none of several can be the wanted one.
        """
        if self._symbols.address(name) is None and self._symbols.addresses(name):
            return None
        try:
            return self._prog.symbol(name)
        except LookupError:
            return None

    def _address(self, name: str) -> int | None:
        symbol = self._symbol(name)
        return None if symbol is None else int(symbol.address)

    def _find_variable(
        self, prog: drgn.Program, name: str, flags: FindObjectFlags, filename: str | None
    ) -> drgn.Object | None:
        if not flags & FindObjectFlags.VARIABLE:
            return None
        if name == "vmemmap":
            return self._vmemmap()
        if (symbol := self._symbol(name)) is None:
            return None
        try:
            type_ = declared(prog, name, lambda _: symbol.size or None)
        except Undeclared:
            # In some kernels (Debian's 7.3), variables have symbols of functions, too.
            if symbol.kind == SymbolKind.FUNC:
                return None
            raise
        if doubt := misfit(symbol.address, symbol.size, type_):
            self.doubts[name] = doubt
            return None
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
        loaded, sentences = loaded_modules(self._prog, new) if new else ([], [])
        for module in loaded:
            self._known[module.name] = self._load(module.name, module.object)
        return [*sentences, *(why for name in wanted if (why := self._known.get(name)))]

    def has(self, name: str) -> bool:
        return self._known.get(name) == ""

    def lacks(self, name: str) -> bool:
        return bool(self._known.get(name))

    def _load(self, name: str, module: drgn.Object) -> str:
        """Add the types and symbols of a loaded module; return the sentence about missing ones."""
        if self._of_modules is None:
            head = self._symbols.address("btf_modules")
            self._of_modules = places.of_modules(self._prog, self._btf, head) if head else ({}, [])
        types, sentences = self._of_modules
        if name not in types:
            # Of the module itself, else of the whole list.
            own = [each for each in sentences if each.startswith(f"module {name}:")]
            general = [each for each in sentences if not each.startswith("module ")]
            release, is_foreign = kernel_release(self._prog), is_out_of_tree(module)
            missing = packages.missing_module(name, release, None, is_out_of_tree=is_foreign)
            return (own or general or [missing])[0]
        try:
            symbols = kallsyms.module_symbols(module)
        except ValueError as error:
            return f"module {printable(name)}: its symbols are unreadable ({error})"
        self.types.add(name, types[name])
        self._prog.register_symbol_finder(f"{_FINDER}: {name}", symbols, enable_index=-1)
        return ""

    def places(self) -> list[tuple[str, str]]:
        types, symbols = (
            f"in {printable(str(path))}" if path else "in memory"
            for path in (self._given.btf, self._given.symbols)
        )
        modules = self._of_modules[0] if self._of_modules else {}
        also = f", symbols (kallsyms) {symbols}" * self._has_own_symbols
        return [
            ("vmlinux", f"types (BTF) {types}{also}"),
            *(
                (printable(name), "types (BTF) and symbols in memory")
                for name in sorted(modules)
                if self._known.get(name) == ""
            ),
        ]


def misfit(address: int, room: int, type_: drgn.Type) -> str:
    """Return why a variable cannot be at an address, as a clause; empty if it can.

    An address with a flipped bit is in order among others, but seldom aligned.

    :param room: bytes to the next symbol; 0 if unknown
    """
    try:
        size, alignment = drgn.sizeof(type_), drgn.alignof(type_)
    except TypeError:  # incomplete, like an array without a length
        return ""
    if address % alignment:
        return f"its address 0x{address:x} is not a multiple of {alignment}, which its type needs"
    if size > room > 0:
        return f"its type takes {size} bytes, and the next symbol is {room} bytes behind it"
    return ""
