# SPDX-License-Identifier: LGPL-2.1-or-later
"""A capsule: the part of a dump that analyses touched, and the types they used.

It needs no debug info, holds no memory that no analysis read, and is small enough to be mailed.
FORMAT.md specifies the file.
"""

from __future__ import annotations

import contextlib
from typing import Any

import drgn

from kcensus.sources.capsule.container import BadCapsule, Reader, is_capsule
from kcensus.sources.capsule.lookups import Lookups
from kcensus.sources.capsule.pages import PageStore
from kcensus.sources.capsule.program import (
    Machine,
    ObjectData,
    ObjectKey,
    SymbolKey,
    TypeKey,
    assemble,
)
from kcensus.sources.capsule.types import NotRecorded, Ref
from kcensus.sources.capsule.typetable import BadTypes, as_integer, as_list, as_text
from kcensus.sources.model import (
    Request,
    Source,
    Target,
    TargetError,
    check_platform,
    kernel_release,
)
from kcensus.sources.reader import os_error
from kcensus.text import printable

__all__ = ["BadCapsule", "NotRecorded", "open_capsule"]

_PAGE_SIZES = (4096, 16384, 65536)
_ARCHITECTURES = ("X86_64", "AARCH64")
_MOST_MEMORY = 1 << 52
_MOST_ANALYSES = 256


class _Replay:
    """Answers from a capsule, and tells what it lacks."""

    def __init__(self, reader: Reader, page_size: int, recorded_for: tuple[str, ...]) -> None:
        self._for = recorded_for
        self._lookups = Lookups.from_json(reader.json_section("lookups"), self.lacking)
        self._pages = PageStore(reader, page_size)
        self.read = self._pages.read

    def lacking(self, what: str) -> NotRecorded:
        return NotRecorded(
            f"the capsule lacks {printable(what)}: it was recorded for {', '.join(self._for)}; "
            "record it anew with `kcensus capsule create VMCORE OUT --analyses …`"
        )

    def find_type(self, key: TypeKey) -> Ref | None:
        if key in self._lookups.types:
            return self._lookups.types[key]
        if key.kind in ("int", "bool", "float"):
            return None  # drgn knows them by itself
        raise self.lacking(f"the type {key.kind} {key.name}")

    def find_object(self, key: ObjectKey) -> ObjectData | None:
        if key not in self._lookups.objects:
            raise self.lacking(f"the variable or constant {key.name}")
        return self._lookups.objects[key]

    def find_symbols(self, key: SymbolKey) -> list[drgn.Symbol]:
        if key not in self._lookups.symbols:
            what = key.name if key.address is None else f"at {key.address:#x}"
            raise self.lacking(f"the symbol {what}")
        return self._lookups.symbols[key]

    def need_modules(self, *names: str) -> list[str]:
        """See :meth:`kcensus.sources.model.Target.need_modules`."""
        return self._lookups.modules.get(names, [])

    def places(self) -> list[tuple[str, str]]:
        """See :meth:`kcensus.sources.model.ModuleDebugInfo.places`."""
        return [("all types that were used", "in the capsule")]


def open_capsule(path: str, name: str) -> Target:
    """Open the capsule at ``path``.

    :param name: how its user calls it, printable
    :raises TargetError: it is none, or damaged
    """
    try:
        reader = Reader(path)
        return _target(reader, name)
    except OSError as error:
        raise os_error(name, error) from error
    except BadCapsule as error:
        raise TargetError(f"{name}: {error}") from error
    except BadTypes as error:
        raise TargetError(f"{name}: is damaged: {error}") from error
    except NotRecorded as error:
        raise TargetError(f"{name}: is damaged: {error}") from error


def _target(reader: Reader, name: str) -> Target:
    machine, page_size = _machine(reader)
    analyses = tuple(as_text(name) for name in as_list(reader.manifest.get("analyses")))
    if len(analyses) > _MOST_ANALYSES:
        raise BadTypes("it was recorded for too many analyses")
    facts = _facts(reader, machine, page_size)
    replay = _Replay(reader, page_size, analyses)
    try:
        prog = assemble(machine, replay)
        check_platform(prog, name)
        kernel = printable(kernel_release(prog))
        if int(prog["PAGE_SIZE"]) != page_size:
            raise BadTypes("its pages are not as large as the kernel's")
        _translate(prog)
    except (TargetError, BadCapsule, BadTypes, NotRecorded):
        raise
    except Exception as error:
        # drgn's errors have no common base class.
        raise BadCapsule("is damaged: its VMCOREINFO is not of a Linux kernel") from error
    return Target(
        prog=prog,
        name=name,
        kind="capsule",
        format=f"capsule of {as_text(reader.manifest.get('format'))}",
        live=False,
        kernel=kernel,
        shareable=True,
        compressed=True,
        modules=replay,
        facts=lambda: [*facts, _digests(reader)],
        recorded_for=analyses,
    )


def _facts(reader: Reader, machine: Machine, page_size: int) -> list[tuple[str, str, str]]:
    """What the manifest says."""
    pages, redacted = reader.manifest.get("pages"), reader.manifest.get("redacted")
    stored = as_integer(pages.get("stored") if isinstance(pages, dict) else None, _MOST_MEMORY)
    names = ", ".join(as_text(name) for name in as_list(redacted))
    share = stored * page_size / machine.memory_bytes
    return [
        ("recorded_for", "recorded for", ", ".join(map(as_text, reader.manifest["analyses"]))),
        ("pages", "memory", f"{stored:,} pages, {share:.1%} of the machine's"),
        ("redacted", "redacted", names or "nothing"),
    ]


def _digests(reader: Reader) -> tuple[str, str, str]:
    """Whether the file is whole, which takes to read all of it."""
    damaged = reader.verify()
    return "digests", "digests", f"wrong: {', '.join(damaged)}" if damaged else "all right"


def _translate(prog: drgn.Program) -> None:
    """Let drgn look into VMCOREINFO for what it needs to walk page tables, which it does late."""
    with contextlib.suppress(drgn.FaultError):
        prog.read((1 << 64) - 8, 8)


def _machine(reader: Reader) -> tuple[Machine, int]:
    """The machine and its page size."""
    found: Any = reader.manifest.get("machine")
    if not isinstance(found, dict):
        raise BadTypes("no machine is described")
    arch = as_text(found.get("arch"))
    page_size = as_integer(found.get("page_size"), max(_PAGE_SIZES))
    if arch not in _ARCHITECTURES or page_size not in _PAGE_SIZES:
        raise BadTypes("the machine is of an unknown kind")
    memory = as_integer(found.get("memory_bytes"), _MOST_MEMORY, 1)
    direct_map = as_integer(found.get("direct_map"), (1 << 64) - memory)
    return Machine(arch, reader.section("vmcoreinfo", 1 << 16), memory, direct_map), page_size


def _open(request: Request) -> Target:
    path = request.spec or ""
    return open_capsule(path, printable(path))


SOURCE = Source(lambda spec: spec is not None and is_capsule(spec), _open)
