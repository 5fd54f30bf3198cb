# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel that crash has open, read through ``crash_ext``; its PROTOCOL.md has the messages."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import drgn
from drgn.helpers.linux.mm import pfn_to_virt

from kcensus.arch import KNOWN, MAX_MEMORY_BYTES
from kcensus.sources import faults
from kcensus.sources.custom import add_direct_map, program_of, read_page_tables
from kcensus.sources.debuginfo.opening import load_debug_info
from kcensus.sources.formats import elf
from kcensus.sources.formats.sniff import Sniffed, sniff
from kcensus.sources.model import ModuleDebugInfo, Request, Target, TargetError, unsupported_machine
from kcensus.sources.reader import FileReader
from kcensus.sources.vmcoreinfo.text import Vmcoreinfo
from kcensus.text import bounded, printable

PROTOCOL = 1
"""Version of the protocol that this module speaks."""

_HEADER = struct.Struct("=II")
_READ = struct.Struct("=QII")
_HELLO, _VMCOREINFO, _READ_MEMORY = 1, 2, 3
_COMPLETE = 0
_REASONS = {
    1: faults.FILTERED,
    2: faults.ABSENT,
    3: faults.TRUNCATED,
    4: faults.UNREADABLE,
    5: faults.UNMAPPED,
}
_PHYSICAL = 0
_MAX_REPLY = 4 << 20
_MAX_NAMED, _MAX_NAME = 8, 1024
"""Most files of a dump in a sentence, and most characters of each."""
_BLOCK_BYTES = 64 << 10
_MAX_BLOCKS = 1024
"""Most blocks of a dump to keep: 64 MiB."""

_ARCHITECTURES = {each.crash: each.drgn for each in KNOWN}


@dataclass(frozen=True)
class Facts:
    machine: str
    live: bool
    local: bool
    dumpfiles: tuple[str, ...]
    """The dump, which can be split into several files; empty if the kernel is live."""
    namelists: tuple[str, ...]
    """Files with the kernel's debug info, best first."""
    modules: tuple[str, ...]
    """Object files that crash loaded for modules."""
    release: str
    kaslr_offset: int | None
    """Offset of the kernel from its linked address; None if unknown to crash."""

    @property
    def name(self) -> str:
        """The files of the dump, or a phrase for a live kernel."""
        live = "the running kernel" if self.local else "the live kernel of another machine"
        more = len(self.dumpfiles) - _MAX_NAMED
        named = [bounded(printable(each), _MAX_NAME) for each in self.dumpfiles[:_MAX_NAMED]]
        return ", ".join(named) + (f" and {more:,} more" if more > 0 else "") or live

    @property
    def dumpfile(self) -> str:
        """The file with the headers of the dump; empty if the kernel is live."""
        return self.dumpfiles[0] if self.dumpfiles else ""


class Crash:
    """The connection to crash.

    :param fd: a connected stream socket; it belongs to this object from now on
    :param block_bytes: unit in which a dump is read where little of it is wanted
    """

    def __init__(self, fd: int, block_bytes: int = _BLOCK_BYTES) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._block_bytes = block_bytes
        self._block: Callable[[int], bytes] = functools.lru_cache(_MAX_BLOCKS)(
            lambda number: bytes(self._read_once(number * block_bytes, block_bytes)[1])
        )
        self.facts = self._hello()

    @functools.cached_property
    def sniffed(self) -> Sniffed:
        """The headers of the dump; crash opens more formats than kcensus knows."""
        if self.facts.live:
            return Sniffed("live")
        try:
            return sniff(self.facts.dumpfile, is_open=True)
        except TargetError:
            return Sniffed("read by crash")

    @functools.cached_property
    def _spans(self) -> list[range]:
        """Physical memory that an ELF dump should have; empty for another format."""
        with contextlib.suppress(TargetError), FileReader(self.facts.dumpfile) as reader:
            loaded = [each for each in _elf_segments(reader) if each.type == elf.PT_LOAD]
            return [range(each.paddr, each.paddr + each.filesz) for each in loaded]
        return []

    def _reason(self, status: int, address: int) -> str:
        """Return why an address is unreadable; crash rarely knows that a dump is truncated."""
        why = _REASONS.get(status, faults.UNREADABLE)
        if not self.sniffed.missing_end or why not in (faults.ABSENT, faults.UNREADABLE):
            return why
        is_lost = any(address in span for span in self._spans)
        if not self._spans:
            is_lost = why == faults.UNREADABLE
        return faults.TRUNCATED if is_lost else why

    def _ask(self, kind: int, payload: bytes = b"") -> tuple[int, bytearray]:
        """Return the status and the payload of the reply to a request."""
        try:
            self._socket.sendall(_HEADER.pack(len(payload), kind) + payload)
            length, status = _HEADER.unpack(self._receive(_HEADER.size))
            if length > _MAX_REPLY:
                # The rest of the stream is meaningless, so the connection ends.
                self._socket.close()
                raise TargetError(
                    f"crash sent a reply of {length} bytes, at most {_MAX_REPLY} are valid"
                )
            return status, self._receive(length)
        except OSError as error:
            raise TargetError("crash closed the connection; run the command again") from error

    def _receive(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            received = self._socket.recv_into(view)
            if not received:
                raise ConnectionResetError
            view = view[received:]
        return data

    def _hello(self) -> Facts:
        _, payload = self._ask(_HELLO)
        values: dict[str, list[str]] = {}
        for fact in bytes(payload).split(b"\0"):
            key, equals, value = fact.partition(b"=")
            if equals:
                values.setdefault(os.fsdecode(key), []).append(os.fsdecode(value))
        first = {key: found[0] for key, found in values.items()}
        offset = first.get("kaslr_offset", "")
        return Facts(
            machine=first.get("machine", ""),
            live=first.get("live") == "1",
            local=first.get("local") == "1",
            dumpfiles=tuple(values.get("dumpfile", ())),
            namelists=tuple(values.get("namelist", ())),
            modules=tuple(values.get("module", ())),
            release=first.get("release", ""),
            kaslr_offset=int(offset, 16) if re.fullmatch(r"[0-9a-f]{1,16}", offset) else None,
        )

    def vmcoreinfo(self) -> bytes:
        """Return VMCOREINFO as in the kernel's memory; empty if unreadable."""
        status, payload = self._ask(_VMCOREINFO)
        return bytes(payload) if status == _COMPLETE else b""

    def _read_once(self, address: int, size: int) -> tuple[int, bytearray]:
        """Return the reason why a read ended, and the bytes before the first unreadable page."""
        status, data = self._ask(_READ_MEMORY, _READ.pack(address, size, _PHYSICAL))
        if len(data) > size or (status == _COMPLETE and len(data) < size):
            raise TargetError(f"crash sent {len(data)} instead of {size} bytes")
        return status, data

    def read(self, address: int, size: int) -> bytes | bytearray:
        """Return physical memory; raises :class:`drgn.FaultError` at an unreadable page."""
        unit = self._block_bytes
        if size <= unit and not self.facts.live:
            first, last = address // unit, (address + size - 1) // unit
            start = address - first * unit
            block = self._block(first)
            if first != last and len(block) == unit:
                block += self._block(last)
            if len(block) >= start + size:
                return block[start : start + size]
        parts = []
        for offset in range(0, size, _MAX_REPLY):
            wanted = min(size - offset, _MAX_REPLY)
            status, data = self._read_once(address + offset, wanted)
            if status != _COMPLETE:
                end = address + offset + len(data)
                raise drgn.FaultError(self._reason(status, end), end)
            parts.append(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def open_crash(crash: Crash, request: Request) -> Target:
    """Return the kernel of crash, with debug info, or raise :class:`TargetError`."""
    facts = crash.facts
    name = facts.name
    arch = _ARCHITECTURES.get(facts.machine)
    if arch is None:
        raise unsupported_machine(name, printable(facts.machine))
    vmcoreinfo = crash.vmcoreinfo() or _note(facts.dumpfile)
    if not vmcoreinfo:
        raise TargetError(
            f"{name}: VMCOREINFO is missing from the notes and the memory of the dump; pass the "
            "file to kcensus outside of crash, or dump it again"
        )
    _check_kernel(name, facts, vmcoreinfo)
    try:
        prog = program_of(arch, vmcoreinfo, crash.read, live=facts.live)
        read_page_tables(prog)
    except TargetError:
        raise
    except Exception as error:
        # drgn's errors have no common base class.
        raise TargetError(
            f"{name}: VMCOREINFO does not describe a Linux kernel of {printable(facts.machine)} "
            f"({printable(str(error))}); pass the file to kcensus outside of crash, or dump it "
            "again"
        ) from error
    # Not shareable: workers would write to the same connection.
    target = crash.sniffed.target(prog, name, facts.live, shareable=False)
    target.kind, target.paths = "live" if facts.live else "vmcore", facts.dumpfiles
    own = (*facts.namelists, *facts.modules)
    symbols = tuple(Path(path).absolute() for path in own if os.path.isfile(path))
    try:
        load_debug_info(target, (*request.symbols, *symbols), request.shared)
    except TargetError as error:
        if any(os.path.isfile(path) for path in facts.namelists) or not facts.namelists:
            raise
        raise TargetError(
            f"{error}; crash has deleted its unpacked copy of the namelist: start crash with an "
            "uncompressed vmlinux, or add -s PATH"
        ) from error
    if target.modules is not None:
        target.modules = _Modules(target.modules)
    with contextlib.suppress(LookupError, drgn.FaultError, ValueError):
        memory_bytes = int(prog["max_pfn"]) * int(prog["PAGE_SIZE"])
        if 0 < memory_bytes <= MAX_MEMORY_BYTES:
            add_direct_map(prog, int(pfn_to_virt(prog, 0)), memory_bytes, crash.read)
    return target


class _Modules:
    def __init__(self, debug_info: ModuleDebugInfo) -> None:
        self._debug_info = debug_info
        self.places = debug_info.places

    def need_modules(self, *names: str) -> list[str]:
        sentences = self._debug_info.need_modules(*names)
        return [f"{why}, or load it with `mod -S DIRECTORY`" for why in sentences]


def _check_kernel(name: str, facts: Facts, vmcoreinfo: bytes) -> None:
    """Compare the kernel of crash with that of VMCOREINFO, by which drgn finds its memory."""

    info = Vmcoreinfo(vmcoreinfo)
    release, offset = info.word("OSRELEASE"), info.kernel_offset
    if facts.release and release and facts.release != release:
        raise TargetError(
            f"{name}: VMCOREINFO names Linux {printable(release)}, but crash has Linux "
            f"{printable(facts.release)} open; start crash with the vmlinux of the dump"
        )
    is_known = facts.kaslr_offset is not None and info.word("KERNELOFFSET") is not None
    if is_known and facts.kaslr_offset != offset:
        raise TargetError(
            f"{name}: the KASLR offset is {offset:#x} by VMCOREINFO, but {facts.kaslr_offset:#x} "
            "by crash; start crash with the vmlinux of the dump and without --kaslr"
        )


def _elf_segments(reader: FileReader) -> list[elf.Segment]:
    is_elf = reader.read(0, len(elf.MAGIC)) == elf.MAGIC
    return elf.segments(reader, elf.read_header(reader)) if is_elf else []


def _note(path: str) -> bytes:
    """Return VMCOREINFO from the notes of an ELF dump; empty for any other file."""
    with contextlib.suppress(TargetError), FileReader(path) as reader:
        segments = _elf_segments(reader)
        notes = elf.core_notes(reader, elf.read_header(reader), segments) if segments else []
        return next((text for owner, _, text in notes if owner == b"VMCOREINFO"), b"")
    return b""
