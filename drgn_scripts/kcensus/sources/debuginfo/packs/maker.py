# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make a type pack from a vmlinux and its modules."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import drgn

from kcensus.arch import KNOWN
from kcensus.sources.debuginfo.lookups import Lookups
from kcensus.sources.debuginfo.packs.elf_symbols import ElfFile, read_elf
from kcensus.sources.debuginfo.packs.file import Head, encode
from kcensus.sources.debuginfo.packs.modules import module_name
from kcensus.sources.debuginfo.packs.scopes import KINDS
from kcensus.sources.debuginfo.packs.symbols import Columns, columns_of
from kcensus.sources.formats import elf
from kcensus.sources.model import TargetError
from kcensus.sources.reader import FileReader
from kcensus.sources.types.nodes import Interner, Ref
from kcensus.sources.types.table import Writer, complete
from kcensus.text import printable

_ANCHORS = ("_stext", "init_uts_ns", "swapper_pg_dir")
"""Symbols that VMCOREINFO has, too."""
_ARCHITECTURES = {each.name: each.platform for each in KNOWN}
_SECTION_SHIFT = 32
"""While a module is read, section N is at address N + 1 << 32."""


@dataclass(frozen=True)
class Made:
    """A type pack in memory."""

    head: Head
    data: bytes
    modules: list[str]
    skipped: list[str]
    """Why modules are left out, in one sentence each."""
    types: int
    """Number of named types that are in it because kcensus uses them."""


@dataclass
class _Found:
    """What one file has of the wanted names."""

    types: dict[str, Ref | None]
    objects: list[tuple[str, str | None, str, Ref, int | None, bytes | None]]
    """Name, file, kind, type, address, value."""


def make(vmlinux: Path, modules: Iterable[Path], names: Lookups) -> Made:
    """Return a pack of what the kernel and its modules have of ``names``.

    :param modules: files of modules; modules that no analysis needs are left out
    :raises TargetError: the vmlinux cannot be read, or has no debug info
    """
    head, kernel = _kernel(vmlinux)
    types = Interner()
    found = {"": _find(_program(vmlinux, head.arch), names, types)}
    symbols = {"": kernel}
    build_ids: dict[str, str | None] = {"": head.build_id}
    sections = dict[str, list[str]]({"": []})
    wanted = {module_name(path): path for path in modules if module_name(path) in names.modules}
    skipped = []
    for name, path in sorted(wanted.items()):
        try:
            file = read_elf(path)
            prog, build_id = _program(path, head.arch, file), _identity(path).build_id
        except TargetError as error:
            skipped.append(str(error))
            continue
        found[name] = _find(prog, names, types)
        symbols[name], sections[name], build_ids[name] = columns_of(file), file.names, build_id
    document = _document(found, names, build_ids, sections)
    data = encode(head, document, symbols)
    used = sum(ref is not None for ref in found[""].types.values())
    return Made(head, data, [name for name in found if name], skipped, used)


def _identity(path: Path) -> elf.Identity:
    with FileReader(path) as reader:
        return elf.identity(reader, elf.read_header(reader))


def _kernel(vmlinux: Path) -> tuple[Head, Columns]:
    file, identity = read_elf(vmlinux), _identity(vmlinux)
    with FileReader(vmlinux) as reader:
        machine = elf.read_header(reader).machine
    name = printable(str(vmlinux))
    if file.extent == (0, 0):
        raise TargetError(f"{name}: is not a vmlinux; pass the vmlinux first, then its modules")
    if not identity.contents:
        raise TargetError(
            f"{name}: has neither a build ID nor a linux_banner, so no dump can be compared with it"
        )
    release = printable(identity.release or "")
    columns = columns_of(file)
    anchors = [(anchor, columns.address_of(anchor)) for anchor in _ANCHORS]
    known = tuple((anchor, address) for anchor, address in anchors if address is not None)
    head = Head(machine, release, identity.build_id, identity.contents, file.extent, known)
    return head, columns


def _program(path: Path, arch: str, module: ElfFile | None = None) -> drgn.Program:
    """Return a program with the types of one file, at the addresses as linked."""
    prog = drgn.Program(_ARCHITECTURES[arch])
    if module is None:
        loaded = prog.extra_module("kernel", create=True)
    else:
        loaded = prog.relocatable_module(module_name(path), 0, create=True)
        for row, name in enumerate(module.names):
            loaded.section_addresses[name] = row + 1 << _SECTION_SHIFT
    try:
        loaded.try_file(path, force=True)
        if loaded.wants_debug_file():
            # Its debug info is in another file, or a file of dwz belongs to it; none is downloaded.
            prog.set_enabled_debug_info_finders(["standard"])
            with suppress(drgn.MissingDebugInfoError):
                prog.load_module_debug_info(loaded)
        if loaded.wants_debug_file():
            raise TargetError(
                f"{printable(str(path))}: has no debug info; pass the file from the debug info "
                "package"
            )
    except (TargetError, MemoryError):
        raise
    except Exception as error:
        # drgn's errors have no common base class.
        raise TargetError(
            f"{printable(str(path))}: cannot be read (drgn: {printable(str(error))})"
        ) from error
    return prog


def _find(prog: drgn.Program, names: Lookups, types: Interner) -> _Found:
    found = _Found({}, [])
    for label in sorted(names.types):
        found.types[label] = None
        with suppress(LookupError, SyntaxError):
            found.types[label] = types.ref(prog.type(label))
    queries = {*names.variables, *names.constants, *names.functions, *names.objects}
    for query in sorted(queries):
        name, _, file = query.partition(" ")
        for kind, flag in KINDS.items():
            with suppress(LookupError):
                data = prog.object(name, flag, file or None)
                value = None
                if not data.absent_ and data.address_ is None:
                    value = data.to_bytes_()
                ref = types.ref(data.type_)
                found.objects.append((name, file or None, kind, ref, data.address_, value))
    return found


def _document(
    found: dict[str, _Found],
    names: Lookups,
    build_ids: dict[str, str | None],
    sections: dict[str, list[str]],
) -> dict[str, Any]:
    kernel = found[""]
    for each in found.values():
        refs = [ref for ref in each.types.values() if ref is not None]
        refs += [data[3] for data in each.objects]
        complete([ref.node for ref in refs])
    table = Writer()
    scopes = []
    for module, each in found.items():
        types = [
            [label, ref and table.use(ref)]
            for label, ref in each.types.items()
            # The kernel's own types come first.
            if not module or (ref is not None and kernel.types[label] is None)
        ]
        objects = [
            [name, file, kind, table.use(ref), _place(address, module), value and value.hex()]
            for name, file, kind, ref, address, value in each.objects
        ]
        scopes.append(
            {
                "module": module,
                "build_id": build_ids[module],
                "sections": sections[module],
                "types": types,
                "objects": objects,
            }
        )
    asked = {*names.variables, *names.constants, *names.functions, *names.objects}
    return {"asked": sorted(asked), "scopes": scopes, "types": table.finish()}


def _place(address: int | None, module: str) -> int | list[int] | None:
    """Return the address of an object; in a module, its section and offset."""
    if address is None or not module:
        return address
    row, offset = divmod(address, 1 << _SECTION_SHIFT)
    return [row - 1, offset] if row else None
