# SPDX-License-Identifier: LGPL-2.1-or-later
"""The work on one target, in a process of its own: its identity, and its report."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import pkgutil
import re
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import drgn
import msgspec
import pyarrow as pa

import kcensus.analyses
import kcensus.kernel
import kcensus.sources
from kcensus import saved
from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.catalogue import load
from kcensus.fleets.apart import Job
from kcensus.fleets.tables import report_rows
from kcensus.limits import memory
from kcensus.progress import SilentProgress
from kcensus.reports import Report, examine, report
from kcensus.results import Machine
from kcensus.samples import capsule
from kcensus.sources import Target, TargetError, open_target
from kcensus.sources.debuginfo import debuginfod
from kcensus.sources.formats.coverage import coverage
from kcensus.sources.formats.sniff import sniff
from kcensus.sources.model import SYMBOLS, MissingDebugInfo, kernel_release
from kcensus.sources.reader import FileReader, os_error
from kcensus.sources.vmcoreinfo.opening import open_dump
from kcensus.store.layout import UNNAMED, bounded_host
from kcensus.store.records import exact, record
from kcensus.text import printable

_WHOLE = 4 << 30
"""Most bytes of a file of which all are read for its digest."""
_BLOCK, _BLOCKS = 1 << 20, 1024
"""Size and number of the parts of a larger file that are, evenly distributed."""
_LADDER = ("DWARF", "type pack", "BTF")
"""Sources of types, in the order in which they are tried."""
_TOTALS = "totals only"
_NAMELESS = (*UNNAMED, "localhost.localdomain")
"""Names of hosts that many machines share."""
_PACKAGES: tuple[ModuleType, ...] = (kcensus.analyses, kcensus.kernel, kcensus.sources)
_MODULES = ("networkx", *(f"drgn.commands.{name}" for name in ("linux", "_builtin", "_crash")))
"""What readers, and drgn with its first program, import when they need it."""
_CRASH_TIME = re.compile(r"^CRASHTIME=(\d{9,10})$", re.MULTILINE)
_ERRORS = (drgn.FaultError, LookupError, OSError, ValueError, TypeError, saved.BadDocument)


class Content(msgspec.Struct):
    """Identity of a file's content."""

    sha256: str = ""
    digest: str = ""
    """``whole`` or ``sampled``."""
    size_bytes: int = 0
    modified_ns: int = 0
    error: str = ""


class Looked(msgspec.Struct):
    """A report as rows."""

    facts: dict[str, Any] = {}
    """Columns of the table ``targets``."""
    tables: dict[str, bytes] = {}
    """By table, rows as Arrow streams; ``figures`` has those of a store of ``kcensus record``."""


def import_all() -> None:
    """Import what reports need; a child that has to takes half a second more."""
    for package in _PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for name in _MODULES:
        with contextlib.suppress(ImportError):  # drgn's own ones have other names in each version
            importlib.import_module(name)
    load()


def content(job: Job) -> bytes:
    """Return the :class:`Content` of a target.

    A file with the size and time of change of :attr:`Job.known` is not read again.
    """
    path = capsule(job.path) or job.path
    try:
        with FileReader(path) as file:
            status = os.stat(path)
            found = Content("", "", file.size, status.st_mtime_ns)
            *same, sha256, kind = job.known
            if sha256 and same == [found.size_bytes, found.modified_ns]:
                found.sha256, found.digest = sha256, kind
                return msgspec.msgpack.encode(found)
            digest, found.digest = hashlib.sha256(), "whole"
            starts = range(0, file.size, _BLOCK)
            if file.size > _WHOLE:
                found.digest = "sampled"
                digest.update(file.size.to_bytes(8, "little"))
                starts = range(0, file.size, file.size // _BLOCKS)
            for start in starts:
                digest.update(file.read(start, min(_BLOCK, file.size - start)))
            found.sha256 = digest.hexdigest()
    except TargetError as error:
        found = Content(error=str(error))
    except OSError as error:
        found = Content(error=str(os_error(job.path, error)))
    return msgspec.msgpack.encode(found)


def look(job: Job) -> bytes:
    """Return the :class:`Looked` of a target."""
    facts: dict[str, Any] = {"step": "open"}
    tables: dict[str, bytes] = {}
    try:
        with memory.limited(job.memory):
            made = _report(job, facts)
            facts["step"] = "analyse"
            _fill(made, job, facts, tables)
    except MemoryError:
        memory.lift()
        why = memory.exceeded("reading the target")
        facts |= {"state": "failed", "step": "killed", "error": why}
    except MissingDebugInfo as error:
        facts |= {"state": "failed", "step": "types", "error": str(error)} | _totals(
            job.path, error
        )
    except TargetError as error:
        facts |= {"state": "failed", "error": str(error)}
    except Exception as error:  # of a damaged or hostile target: its row says so
        what = str(error) if isinstance(error, _ERRORS) else f"{type(error).__name__}: {error}"
        facts |= {"state": "failed", "error": what}
    memory.lift()
    for path in job.symbols:
        for key in facts.keys() & {"tried", "error"}:
            facts[key] = facts[key].replace(f"{SYMBOLS} {printable(path)}", f"-s {printable(path)}")
    return msgspec.msgpack.encode(Looked(facts, tables))


def _report(job: Job, facts: dict[str, Any]) -> Report:
    if saved.is_document(job.path):
        return saved.load(job.path)
    # Not as -s, with which a file of another kernel is an error.
    os.environ[SYMBOLS] = os.pathsep.join((*job.symbols, os.environ.get(SYMBOLS, "")))
    with debuginfod.allowed(SilentProgress()) if job.debuginfod else nullcontext():
        target = open_target(job.path)
    facts |= {"release": target.kernel, "format": target.format, "step": "analyse"}
    facts |= {"types": target.types, "tried": _tried(target)}
    context = Context.of(target, jobs=1)
    if not job.analyses:
        return examine(context, load())
    known = analyses()
    return report(context, [known[name] for name in job.analyses])


def _tried(target: Target) -> str:
    """Return the sources of types that a dump lacks, and sentences about unusable files."""
    lacking = _LADDER[: _LADDER.index(target.types)] if target.types in _LADDER else ()
    return "; ".join(filter(None, (", ".join(lacking * (target.kind != "capsule")), *target.notes)))


def _totals(path: str, error: MissingDebugInfo) -> dict[str, Any]:
    """Return what the headers of a dump without types tell."""
    facts: dict[str, Any] = {"types": _TOTALS, "tried": ", ".join(_LADDER)}
    facts["build_id"] = error.build_id or ""
    with contextlib.suppress(TargetError, LookupError, OSError, ValueError):
        prog, header = open_dump(path, sniff(path, searched=True), None)
        facts |= {"format": header.format, "release": kernel_release(prog)}
        known = coverage(path)
        facts |= {"ram_bytes": exact(known.memory_bytes)} if known else {}
        found = _CRASH_TIME.search(prog["VMCOREINFO"].string_().decode("ascii", "replace"))
        facts |= {"time": float(found[1])} if found else {}
    return facts


def _fill(made: Report, job: Job, facts: dict[str, Any], tables: dict[str, bytes]) -> None:
    wanted = [each for each in analyses().values() if each.name in {*made.results, *made.errors}]
    entry = record(made, wanted, time.time(), is_saved=saved.is_document(job.path))
    machine = made.head.machine or Machine()
    host, numbers = entry.host, entry.rows
    if host in _NAMELESS:
        host = bounded_host(f"{host} {machine.boot or 'unknown'}")
        column = pa.array([host] * len(numbers), pa.string())
        numbers = numbers.set_column(numbers.schema.get_field_index("host"), "host", column)
    common = {"day": f"{entry.time:%Y-%m-%d}", "attempt": job.attempt, "host": host}
    facts |= common | {
        "time": entry.time.timestamp(),
        "boot": machine.boot,
        "release": machine.kernel or made.head.kernel,
        "build_id": machine.build_id,
        "types": machine.types or facts.get("types", ""),
        "ram_bytes": exact(machine.ram_bytes),
        "panic": machine.taken_by * machine.is_panic,
        "record": entry.id,
        "analyses": ",".join(each.name for each in wanted),
        "state": "incomplete" if made.errors else "done",
        "error": "; ".join(f"{name}: {why}" for name, why in made.errors.items()),
    }
    if made.results and {*made.results} != {"patches"}:
        facts["step"] = ""
        rows = report_rows(made, common) | {"figures": numbers}
        tables |= {name: _stream(each) for name, each in rows.items()}
    else:
        facts["state"] = "failed"


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def rows_of(stream: bytes) -> pa.Table:
    """Return the rows of a stream."""
    options = pa.ipc.IpcReadOptions(use_threads=False)  # threads take longer than so few rows
    return pa.ipc.open_stream(stream, options=options).read_all()


WORK: Mapping[str, Callable[[Job], bytes]] = {"content": content, "report": look}
"""The work of a job, by name."""
