# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answer a program's lookups from a type pack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, cached_property

import drgn
from drgn import FindObjectFlags, TypeKind

from kcensus.sources.debuginfo import lookups
from kcensus.sources.debuginfo.btf.finders import Types
from kcensus.sources.debuginfo.loading import loaded_modules
from kcensus.sources.debuginfo.packs.file import Pack
from kcensus.sources.debuginfo.packs.scopes import Found, Scope, read_contents
from kcensus.sources.debuginfo.packs.symbols import Columns, SymbolTable, kernel_table, module_table
from kcensus.sources.model import kernel_release
from kcensus.sources.types.nodes import (
    COMPOUND,
    Member,
    MemberType,
    Node,
    NotRecorded,
    build,
    forget,
)
from kcensus.sources.types.table import BadTypes
from kcensus.text import printable

_TAGGED = (*COMPOUND, TypeKind.ENUM)
_PRIMITIVE = (TypeKind.VOID, TypeKind.INT, TypeKind.BOOL, TypeKind.FLOAT)
"""drgn has its own."""
_WITH_SYMBOL = FindObjectFlags.VARIABLE | FindObjectFlags.FUNCTION
_MASK = (1 << 64) - 1
_KEY = "kcensus: type pack"
"""Key of :attr:`drgn.Program.cache`."""


class NotInPack(NotRecorded, LookupError):
    """A pack lacks what kcensus itself does not use.

    Those who ask for it, such as drgn's helpers, can go on with another name.
    """


@cache
def _own_names() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of all types and objects that this version of kcensus looks up."""
    own = lookups.lookups()
    objects = own.variables | own.constants | own.functions | own.objects
    return frozenset(own.types), frozenset(name.partition(" ")[0] for name in objects)


class PackDebugInfo:
    """The types, objects and symbols of a pack, as debug info of one program.

    :param offset: bytes between the addresses as linked and in memory (``KERNELOFFSET``)
    :raises TargetError: the pack is corrupt
    """

    def __init__(self, prog: drgn.Program, pack: Pack, offset: int) -> None:
        self._prog, self._pack, self._offset = prog, pack, offset
        self._low, self._high = pack.head.extent
        self.rest: Callable[[], Types | str] = lambda: ""
        """Registers finders of another source, and returns its types; or why there is none."""
        try:
            self._contents = read_contents(pack.document(), self._lacking, self._member_of_rest)
            self._columns = pack.symbols()
        except BadTypes as error:
            raise pack.corrupt(error) from error
        self._modules: dict[str, tuple[Scope, drgn.RelocatableModule]] = {}
        """Used modules, with drgn's objects."""
        self._tables: dict[str, SymbolTable] = {}
        self._lacked: set[str] = set()
        self._complete(self._contents.kernel)

    @staticmethod
    def of(prog: drgn.Program) -> PackDebugInfo | None:
        """Return the pack that is registered in a program."""
        known = prog.cache.get(_KEY)
        return known if isinstance(known, PackDebugInfo) else None

    def register(self, name: str = "kcensus-pack") -> None:
        """Register the finders, behind those of drgn; once for a program."""
        self._prog.cache[_KEY] = self
        self._prog.register_type_finder(name, self._find_type, enable_index=-1)
        self._prog.register_object_finder(name, self._find_object, enable_index=-1)
        self._prog.register_symbol_finder(name, self._find_symbols, enable_index=-1)

    @cached_property
    def table(self) -> SymbolTable:
        """The symbols of the kernel."""
        return kernel_table(self._columns, self._pack.head.extent, self._offset)

    def _lacking(self, what: str, is_own: bool = True) -> NotRecorded:
        rest = self.rest() if self._is_only() else ""
        why = f", and the dump cannot complete it: {rest}" if rest and isinstance(rest, str) else ""
        lacks = f"the type pack {self._pack.name} lacks {printable(what)}"
        has = f"{lacks}: it has what kcensus itself uses{why}; pass the vmlinux with -s"
        if not is_own:
            return NotInPack(has)
        return NotRecorded(f"{has}, or write the pack again with `kcensus types save`")

    def _go_on(self, what: str, is_own: bool) -> None:
        """Let drgn ask the finders of the other source; raise an error if there is none."""
        if self._is_only() and isinstance(self.rest(), str):
            raise self._lacking(what, is_own)

    def _member_of_rest(self, owner: Node, member: Member) -> MemberType | None:
        """Return the type of a member, of a struct whose members kcensus does not use."""
        types = self.rest() if owner.tag and self._is_only() else ""
        ref = None if isinstance(types, str) else types.find(owner.kind, owner.tag or "")
        if ref is None or ref.node.size != owner.size:
            return None
        place = member.name, member.bit_offset
        same = (each for each in ref.node.members or () if (each.name, each.bit_offset) == place)
        found = next(same, None)
        return None if found is None else found.type()

    def complete(self, types: Types) -> None:
        """Give types that are only declared the members that they have in another source."""
        for label, nodes in [*self._contents.incomplete.items()]:
            ref = types.only(nodes[0].kind, nodes[0].tag or "")
            if ref is not None:
                self._fill(label, ref.node)

    def _is_only(self) -> bool:
        """Return whether no other source of types follows, so that an unknown name is an error."""
        with suppress(LookupError):
            # The vmlinux may have been loaded since.
            if self._prog.main_module().debug_file_path:
                return False
        return True

    def _complete(self, scope: Scope) -> None:
        """Give types that are only declared elsewhere the members that they have in a scope."""
        for label, ref in scope.types.items():
            if ref is not None and ref.node.size is not None:
                self._fill(label, ref.node)

    def _fill(self, label: str, definition: Node) -> None:
        for node in self._contents.incomplete.pop(label, ()):
            node.size, node.members = definition.size, definition.members
            forget(self._prog, node)

    def _scopes(self) -> Iterator[tuple[Scope, drgn.RelocatableModule | None]]:
        yield self._contents.kernel, None
        yield from self._modules.values()

    def _find_type(
        self, prog: drgn.Program, kinds: drgn.TypeKindSet, name: str, filename: str | None
    ) -> drgn.Type | None:
        is_known, label = False, name
        for kind in TypeKind:
            if kind not in kinds:
                continue
            label = f"{kind.name.lower()} {name}" if kind in _TAGGED else name
            for scope, _ in self._scopes():
                is_known |= label in scope.types
                ref = scope.types.get(label)
                if ref is not None and ref.node.kind == kind:
                    return build(prog, ref)
            is_known |= kind in _PRIMITIVE
        if not is_known:
            self._go_on(f"the type {label}", label in _own_names()[0])
        return None

    def _find_object(
        self, prog: drgn.Program, name: str, flags: FindObjectFlags, filename: str | None
    ) -> drgn.Object | None:
        key = name, filename
        for scope, module in self._scopes():
            for found in scope.objects.get(key, ()):
                if not found.kind & flags:
                    continue
                is_there, address = self._place(found, scope, module)
                if is_there and found.value is None:
                    return drgn.Object(prog, build(prog, found.ref), address=address)
                if is_there:
                    return drgn.Object.from_bytes_(prog, build(prog, found.ref), found.value)
        if key not in self._contents.asked:
            # A pack of an older kcensus lacks names that this one uses. Of other names, one without
            # a symbol is not found, as in debug info, so that drgn's helpers try the next one.
            is_own = name in _own_names()[1]
            if is_own or (flags & _WITH_SYMBOL and self._find_symbols(prog, name, None, True)):
                self._go_on(f"the variable or constant {name}", is_own)
        return None

    def _place(
        self, found: Found, scope: Scope, module: drgn.RelocatableModule | None
    ) -> tuple[bool, int | None]:
        """Return whether an object exists in memory, and its address."""
        if found.address is None:
            return True, None
        if module is None:
            is_moved = self._low <= found.address < self._high
            return True, found.address + self._offset * is_moved & _MASK
        assert found.section is not None
        start = module.section_addresses.get(scope.sections[found.section])
        return start is not None, None if start is None else start + found.address & _MASK

    def _find_symbols(
        self, prog: drgn.Program, name: str | None, address: int | None, one: bool
    ) -> list[drgn.Symbol]:
        tables = [self.table, *self._tables.values()]
        if address is not None:
            found = self._at(address)
            matches = [symbol for symbol in found if name is None or symbol.name == name]
        elif name is not None:
            matches = [symbol for table in tables for symbol in table.named(name)]
        else:
            matches = [symbol for table in tables for symbol in table.all()]
        return matches[:1] if one else matches

    def _at(self, address: int) -> list[drgn.Symbol]:
        if self._low <= address - self._offset < self._high:
            return self.table.at(address)
        for name, (_, module) in self._modules.items():
            if any(low <= address < high for low, high in module.address_ranges or ()):
                return self._tables[name].at(address)
        return []

    # The methods of ModuleDebugInfo

    def need_modules(self, *names: str) -> list[str]:
        wanted = {name.replace("-", "_") for name in names} - set(self._modules)
        if not wanted:
            return []
        loaded, sentences = loaded_modules(self._prog, wanted)
        return sentences + list(filter(None, map(self._use, loaded)))

    def _use(self, module: drgn.RelocatableModule) -> str:
        """Use what the pack has of a module; return a sentence if it has nothing."""
        name = module.name
        scope = self._contents.modules.get(name)
        if scope is None:
            return self._missing(name, "has no such module")
        build_id = module.build_id.hex() if module.build_id else None
        if build_id and scope.build_id and build_id != scope.build_id:
            return self._missing(name, f"has it with another build ID than {build_id}")
        try:
            table = self._module_table(self._pack.symbols(name), scope, module)
        except BadTypes as error:
            return str(self._pack.corrupt(error))
        self._modules[name], self._tables[name] = (scope, module), table
        self._complete(scope)
        return ""

    def has(self, name: str) -> bool:
        return name in self._modules

    def lacks(self, name: str) -> bool:
        return name in self._lacked

    def _missing(self, name: str, why: str) -> str:
        """Return a sentence about a module as :func:`packages.missing_module` does."""
        self._lacked.add(name)
        where = f"module {printable(name)} of kernel {kernel_release(self._prog)}"
        return (
            f"debug info of {where} is missing: the type pack {self._pack.name} {why}; pass the "
            "files of modules to `kcensus types save`, too, or with -s"
        )

    def _module_table(
        self, columns: Columns, scope: Scope, module: drgn.RelocatableModule
    ) -> SymbolTable:
        if len(columns.starts) != len(scope.sections):
            raise BadTypes(f"the symbols of {scope.module} have other sections")
        return module_table(columns, [module.section_addresses.get(n) for n in scope.sections])

    def places(self) -> list[tuple[str, str]]:
        pack = f"{self._pack.name} (type pack)"
        return [("vmlinux", pack), *((printable(name), pack) for name in self._modules)]
