# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel that crash has open, read through the extension in ``crash_ext``.

``crash_ext/PROTOCOL.md`` describes the messages. This side asks; the extension answers each
request before the next.
"""

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

from kcensus.sources import faults
from kcensus.sources.custom import MAX_MEMORY_BYTES, add_direct_map, program_of
from kcensus.sources.debuginfo.finder import load_debug_info
from kcensus.sources.formats import elf
from kcensus.sources.formats.sniff import Sniffed, sniff
from kcensus.sources.model import (
    Request,
    Target,
    TargetError,
    kernel_release,
    unsupported_machine,
)
from kcensus.sources.reader import FileReader
from kcensus.text import printable

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
_BLOCK_BYTES = 64 << 10
_MAX_BLOCKS = 1024
"""Blocks that are kept of a dump: 64 MiB."""

_ARCHITECTURES = {"X86_64": drgn.Architecture.X86_64, "ARM64": drgn.Architecture.AARCH64}
_LIVE_NAME = "the running kernel"


@dataclass(frozen=True)
class Facts:
    """What crash says about its target."""

    machine: str
    live: bool
    dumpfile: str
    namelists: tuple[str, ...]
    """Files with the kernel's debug info, best first."""
    modules: tuple[str, ...]
    """Object files that crash loaded for modules."""
    numbers: dict[str, int]
    """Hexadecimal facts: ``kaslr_offset``, ``phys_base``."""


class Crash:
    """The connection to crash.

    :param fd: a connected stream socket; it belongs to this object from now on
    :param block_bytes: unit in which a dump is read where little of it is wanted
    """

    def __init__(self, fd: int, block_bytes: int = _BLOCK_BYTES) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._block_bytes = block_bytes
        self._block: Callable[[int], bytes] = functools.lru_cache(_MAX_BLOCKS)(self._read_block)
        self.facts = self._hello()

    def _ask(self, kind: int, payload: bytes = b"") -> tuple[int, bytearray]:
        """Return the status and the payload of the reply to a request.

        :raises TargetError: crash has closed the connection, or the reply is not in the protocol
        """
        try:
            self._socket.sendall(_HEADER.pack(len(payload), kind) + payload)
            length, status = _HEADER.unpack(self._receive(_HEADER.size))
            if length > _MAX_REPLY:
                # What follows has no meaning, so nothing else may be asked.
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
        numbers = {
            key: int(first[key], 16)
            for key in ("kaslr_offset", "phys_base")
            if re.fullmatch(r"[0-9a-f]{1,16}", first.get(key, ""))
        }
        return Facts(
            machine=first.get("machine", ""),
            live=first.get("live") == "1",
            dumpfile=first.get("dumpfile", ""),
            namelists=tuple(values.get("namelist", ())),
            modules=tuple(values.get("module", ())),
            numbers=numbers,
        )

    def vmcoreinfo(self) -> bytes:
        """Return VMCOREINFO as the kernel has it in memory; empty where it is unreadable."""
        status, payload = self._ask(_VMCOREINFO)
        return bytes(payload) if status == _COMPLETE else b""

    def _read_once(self, address: int, size: int) -> tuple[int, bytearray]:
        """Return why a read ended, and the bytes before the first unreadable page."""
        status, data = self._ask(_READ_MEMORY, _READ.pack(address, size, _PHYSICAL))
        if len(data) > size or (status == _COMPLETE and len(data) < size):
            raise TargetError(f"crash sent {len(data)} instead of {size} bytes")
        return status, data

    def _read_block(self, number: int) -> bytes:
        """Return a block of memory, up to its first unreadable page."""
        return bytes(self._read_once(number * self._block_bytes, self._block_bytes)[1])

    def read(self, address: int, size: int) -> bytes | bytearray:
        """Return physical memory.

        :raises drgn.FaultError: a page of it is unreadable
        :raises TargetError: crash does not answer
        """
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
                why = _REASONS.get(status, faults.UNREADABLE)
                raise drgn.FaultError(why, address + offset + len(data))
            parts.append(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def open_crash(crash: Crash, request: Request) -> Target:
    """Return the kernel that crash has open, with its debug info loaded.

    :raises TargetError: it is not one that kcensus can read, or its debug info is unusable
    """
    facts = crash.facts
    name = printable(facts.dumpfile) or _LIVE_NAME
    arch = _ARCHITECTURES.get(facts.machine)
    if arch is None:
        raise unsupported_machine(name, printable(facts.machine))
    vmcoreinfo = crash.vmcoreinfo() or _note(facts.dumpfile)
    if not vmcoreinfo:
        raise TargetError(
            f"{name}: has no VMCOREINFO, neither in a note nor in the memory of the kernel"
        )
    prog = program_of(arch, vmcoreinfo, crash.read, live=facts.live)
    sniffed = _sniffed(facts)
    target = Target(
        prog,
        name,
        kind="live" if facts.live else "vmcore",
        format=sniffed.format,
        live=facts.live,
        missing_end=sniffed.missing_end,
        kernel=kernel_release(prog),
        path=facts.dumpfile,
        # Not shareable: workers would write to the same connection.
    )
    own = (*facts.namelists, *facts.modules)
    symbols = tuple(Path(path).absolute() for path in own if os.path.isfile(path))
    load_debug_info(target, (*request.symbols, *symbols))
    with contextlib.suppress(LookupError, drgn.FaultError, ValueError):
        memory_bytes = int(prog["max_pfn"]) * int(prog["PAGE_SIZE"])
        if 0 < memory_bytes <= MAX_MEMORY_BYTES:
            add_direct_map(prog, int(pfn_to_virt(prog, 0)), memory_bytes, crash.read)
    return target


def _sniffed(facts: Facts) -> Sniffed:
    """Return what the headers of the dump say; crash opens more formats than kcensus knows."""
    if facts.live:
        return Sniffed("live")
    try:
        return sniff(facts.dumpfile)
    except TargetError:
        return Sniffed("read by crash")


def _note(path: str) -> bytes:
    """Return VMCOREINFO from the notes of an ELF dump; empty for any other file."""
    with contextlib.suppress(TargetError), FileReader(path) as reader:
        if reader.read(0, 4) == elf.MAGIC:
            notes = elf.core_notes(reader, elf.segments(reader, elf.read_header(reader)))
            return next((text for owner, _, text in notes if owner == b"VMCOREINFO"), b"")
    return b""
