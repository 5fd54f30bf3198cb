# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules: the part of a vmcore that the analyses need, small enough to attach to a ticket.

A capsule contains the pages and the types that analyses used, so it needs no debug info. FORMAT.md
specifies the file.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import drgn

from kcensus.arch import KNOWN, MAX_MEMORY_BYTES
from kcensus.samples import capsule as bundled_capsule
from kcensus.sources.capsule.container import BadCapsule, PageStore, Reader, corrupt, is_capsule
from kcensus.sources.capsule.lookups import (
    Lookups,
    Machine,
    ObjectData,
    assemble,
    is_assembled,
    recorded_types,
)
from kcensus.sources.custom import read_page_tables
from kcensus.sources.debuginfo.packages import at_recording
from kcensus.sources.model import (
    Request,
    Source,
    Target,
    TargetError,
    check_platform,
    kernel_release,
)
from kcensus.sources.reader import os_error
from kcensus.sources.types.nodes import NotRecorded, Ref
from kcensus.sources.types.table import BadTypes, as_integer, as_list, as_object, as_text
from kcensus.text import printable

__all__ = ["BadCapsule", "NotRecorded", "is_assembled", "open_capsule", "recorded_types"]

_PAGE_SIZES = (4096, 16384, 65536)
_MAX_ANALYSES = 256


class _Replay:
    """Reads a capsule's memory; raises :class:`NotRecorded` for lookups that it lacks."""

    def __init__(self, reader: Reader, page_size: int, recorded_for: tuple[str, ...]) -> None:
        self._for = recorded_for
        self.lookups = Lookups.from_json(reader.json_section("lookups"), self.lacking)
        self.read = PageStore(reader, page_size).read

    def lacking(self, what: str) -> NotRecorded:
        return NotRecorded(
            f"the capsule lacks {printable(what)}: it was recorded for {', '.join(self._for)}; "
            "read the vmcore instead, or record the capsule again with `kcensus capsule create "
            "VMCORE OUT`"
        )

    def find_type(self, kind: str, name: str, filename: str | None) -> Ref | None:
        if kind in ("int", "bool", "float"):
            return None  # drgn has its own
        raise self.lacking(f"the type {kind} {name}")

    def find_object(self, name: str, flags: int, filename: str | None) -> ObjectData | None:
        raise self.lacking(f"the variable or constant {name}")

    def find_symbols(self, name: str | None, address: int | None, one: bool) -> list[drgn.Symbol]:
        if name is None:
            # drgn looks for the symbol at each pointer that it prints.
            return []
        raise self.lacking(f"the symbol {name}")

    def need_modules(self, *names: str) -> list[str]:
        return [*map(at_recording, self.lookups.modules.get(names, []))]

    def places(self) -> list[tuple[str, str]]:
        return [("all types", "in the capsule")]


def open_capsule(path: str, name: str) -> Target:
    """Open the capsule at ``path``.

    :param name: the capsule as the user passed it, printable
    :raises TargetError: it is not a capsule, or is corrupt
    """
    try:
        return _target(Reader(path), name)
    except OSError as error:
        raise os_error(name, error) from error
    except BadCapsule as error:
        raise TargetError(f"{name}: {error}") from error
    except BadTypes as error:
        raise TargetError(f"{name}: {corrupt(error)}") from error
    except NotRecorded as error:
        raise TargetError(f"{name}: is corrupt: {error}") from error


def _target(reader: Reader, name: str) -> Target:
    manifest = reader.manifest
    machine = _machine(reader)
    analyses = _texts(manifest.get("analyses"))
    failed = as_object(manifest.get("failed", {}))
    if max(len(analyses), len(failed)) > _MAX_ANALYSES:
        raise BadTypes("the list of analyses is too long")
    stored = as_integer(as_object(manifest.get("pages")).get("stored"), MAX_MEMORY_BYTES)
    share = stored * machine.page_size / machine.memory_bytes
    redacted = _texts(manifest.get("redacted"))

    def facts() -> list[tuple[str, str, str]]:
        return [
            ("recorded_for", "recorded for", ", ".join(analyses)),
            ("pages", "memory", f"{stored:,} pages, {share:.1%} of the machine's memory"),
            ("redacted", "redacted", ", ".join(redacted) or "nothing"),
        ]

    format = as_text(manifest.get("format"))
    replay = _Replay(reader, machine.page_size, analyses)
    try:
        prog = assemble(machine, replay.lookups, replay)
        check_platform(prog, name)
        kernel = kernel_release(prog)
        if int(prog["PAGE_SIZE"]) != machine.page_size:
            raise BadTypes("the page size differs from VMCOREINFO")
        read_page_tables(prog)
    except (TargetError, BadCapsule, BadTypes, NotRecorded, MemoryError):
        raise
    except Exception as error:
        # drgn's errors have no common base class.
        raise corrupt("VMCOREINFO does not describe a Linux kernel") from error
    return Target(
        prog=prog,
        name=name,
        kind="capsule",
        format=f"capsule of {format}",
        live=False,
        kernel=kernel,
        shareable=True,
        compressed=True,
        modules=replay,
        facts=facts,
        recorded_for=analyses,
        missing_end="the recorded dump lacks its end" if format.endswith(", truncated") else "",
        types=as_text(manifest.get("types", "DWARF")),
        has_pseudonyms="names" in redacted,
        boot=as_text(manifest.get("boot", "")),
        failed={as_text(name): as_text(reason) for name, reason in failed.items()},
        verify=reader.verify,
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(as_text, as_list(value)))


def _machine(reader: Reader) -> Machine:
    facts = as_object(reader.manifest.get("machine"))
    arch = as_text(facts.get("arch"))
    page_size = as_integer(facts.get("page_size"), max(_PAGE_SIZES))
    if arch not in {each.drgn.name for each in KNOWN} or page_size not in _PAGE_SIZES:
        raise BadTypes("the architecture or page size is unknown")
    memory = as_integer(facts.get("memory_bytes"), MAX_MEMORY_BYTES, 1)
    direct_map = as_integer(facts.get("direct_map"), (1 << 64) - memory)
    return Machine(arch, reader.section("vmcoreinfo", 1 << 16), page_size, memory, direct_map)


def _path(spec: str) -> str:
    """Return the path of a bundled capsule by its name, unless a file has the same name."""
    # Not Path.exists(), which raises if the name is too long.
    bundled = None if os.path.lexists(spec) else bundled_capsule(spec)
    return spec if bundled is None else str(bundled)


def _open(request: Request) -> Target:
    spec = request.spec or ""
    target = open_capsule(_path(spec), printable(spec))
    unused = ("-s is not used: a capsule has all its types",) if request.symbols else ()
    return replace(target, notes=unused)


SOURCE = Source(lambda spec: spec is not None and is_capsule(_path(spec)), _open)
