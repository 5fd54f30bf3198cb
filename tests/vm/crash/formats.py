# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory of a dump of the lab in formats that crash opens and drgn does not.

Layouts of headers are those that crash itself reads: ``netdump.c``, ``vmware_vmss.h``, ``sadump.h``
and ``ramdump.c`` of crash 8.0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.lab import host
from tests.vm.elf_edit import EHDR, PHDR, PT_LOAD, copy, headers

_PAGE = 4096
_CHUNK = 1 << 20
_NOTE = struct.Struct("<III")
_PT_NOTE = 4
_NUMBERED = tuple(f"r{number}" for number in range(8, 16))
_REGISTERS = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rsp", "rbp", *_NUMBERED, "rip", "rflags")
"""In the order of QEMU's notes; then follow 10 segments of 24 bytes, the IDT's last, and CR0 to
CR4."""
_GPREGS = ("rax", "rcx", "rdx", "rbx", "rbp", "rsp", "rsi", "rdi", *_NUMBERED)
"""In VMware's order."""


@dataclass(frozen=True)
class _Segment:
    offset: int
    start: int
    """Physical address."""
    size: int


@dataclass(frozen=True)
class _CPU:
    """The registers from which crash finds a kernel at a random place (KASLR)."""

    general: dict[str, int]
    control: tuple[int, ...]
    """CR0 to CR4."""
    idt: int
    """Virtual address of the interrupt descriptor table."""


class _Dump:
    """An ELF dump that QEMU wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self.header, phdrs = headers(file)
            (note,) = (phdr for phdr in phdrs if phdr[0] == _PT_NOTE)
            self.notes_offset = note[2]
            file.seek(note[2])
            self.notes = file.read(note[5])
        self.segments = [
            _Segment(phdr[2], phdr[4], phdr[5]) for phdr in phdrs if phdr[0] == PT_LOAD
        ]

    def cpus(self) -> list[_CPU]:
        """Return the registers of all CPUs, from QEMU's own notes (``QEMUCPUState``)."""
        states = [data for name, _, data in _notes(self.notes) if name == b"QEMU"]
        assert states
        segments = 8 + len(_REGISTERS) * 8
        control = segments + 10 * 24
        return [
            _CPU(
                dict(zip(_REGISTERS, struct.unpack_from("<18Q", state, 8), strict=True)),
                struct.unpack_from("<5Q", state, control),
                *struct.unpack_from("<Q", state, control - 8),
            )
            for state in states
        ]

    def head(self) -> bytes:
        """Return the ELF header for two program headers right behind it, and no sections."""
        header = [*self.header]
        header[5], header[6], header[10], header[12] = EHDR.size, 0, 2, 0
        return EHDR.pack(*header)

    def ram(self) -> _Segment:
        """Return the segment at physical address 0: all RAM of a small guest."""
        (ram,) = (segment for segment in self.segments if segment.start == 0)
        return ram

    def pages(self, segment: _Segment) -> Iterator[tuple[int, bytes]]:
        """Yield (position in the segment, data) of all chunks that are not zero."""
        with self.path.open("rb") as file:
            for position in range(0, segment.size, _CHUNK):
                file.seek(segment.offset + position)
                data = file.read(min(_CHUNK, segment.size - position))
                if data.count(0) != len(data):
                    yield position, data

    def write(self, segment: _Segment, file: IO[bytes], offset: int) -> None:
        """Write the segment at an offset, with holes where it is zero."""
        for position, data in self.pages(segment):
            file.seek(offset + position)
            file.write(data)
        file.truncate(offset + segment.size)


def cpus(path: Path) -> list[_CPU]:
    """Return the registers of all CPUs of an ELF dump that QEMU wrote."""
    return _Dump(path).cpus()


def _notes(notes: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield (name, offset of the name, data) of ELF notes."""
    offset = 0
    while offset + _NOTE.size <= len(notes):
        name_size, data_size, _ = _NOTE.unpack_from(notes, offset)
        name = offset + _NOTE.size
        data = name + (name_size + 3 & ~3)
        yield notes[name : name + name_size].rstrip(b"\0"), name, notes[data : data + data_size]
        offset = data + (data_size + 3 & ~3)


def elf_without_vmcoreinfo(source: Path, target: Path) -> None:
    """Write an ELF dump as QEMU does it for a guest without the device ``vmcoreinfo``."""
    dump = _Dump(source)
    copy(source, target)
    (name,) = (offset for name, offset, _ in _notes(dump.notes) if name == b"VMCOREINFO")
    with target.open("r+b") as file:
        file.seek(dump.notes_offset + name)
        file.write(b"UNKNOWN\0\0\0")


def netdump(source: Path, target: Path) -> None:
    """Write an ELF dump as netdump did: no VMCOREINFO, no holes, pages at page offsets."""
    dump = _Dump(source)
    ram = dump.ram()
    # An empty NT_PRSTATUS and NT_TASKSTRUCT
    prstatus = next(data for name, _, data in _notes(dump.notes) if name == b"CORE")
    note = _NOTE.pack(5, len(prstatus), 1) + b"CORE\0\0\0\0" + prstatus
    notes = EHDR.size + 2 * PHDR.size
    with target.open("wb") as file:
        file.write(dump.head())
        file.write(PHDR.pack(_PT_NOTE, 0, notes, 0, 0, len(note), 0, 0))
        file.write(PHDR.pack(PT_LOAD, 7, _PAGE, 0, 0, ram.size, ram.size, _PAGE))
        file.write(note)
        assert file.tell() <= _PAGE
        dump.write(ram, file, _PAGE)


def raw(source: Path, target: Path) -> None:
    """Write bare memory: what a bus analyser or ``pmemsave`` of QEMU's monitor leaves."""
    dump = _Dump(source)
    with target.open("wb") as file:
        dump.write(dump.ram(), file, 0)


def vmss(source: Path, target: Path) -> None:
    """Write a suspended guest of VMware: ``target`` and, beside it, its memory in a .vmem file."""
    dump = _Dump(source)
    raw(source, target.with_suffix(".vmem"))
    cpus = dump.cpus()
    groups = {
        "memory": _vmss_item("regionsCount", (), "<I", 0),
        "cpu": _vmss_item("cpu:numVCPUs", (), "<I", len(cpus))
        + b"".join(_vmss_cpu(number, cpu) for number, cpu in enumerate(cpus)),
    }
    # crash multiplies the number of group descriptors that it reads by their size once too often.
    position = struct.calcsize("<III") + len(groups) * 80 * 80
    descriptors, bodies = b"", b""
    for name, body in groups.items():
        descriptors += struct.pack("<64sQQ", name.encode(), position + len(bodies), len(body) + 2)
        bodies += body + bytes(2)
    with target.open("wb") as file:
        file.write(struct.pack("<III", 0xBED2BED2, 8, len(groups)) + descriptors)
        file.seek(position)
        file.write(bodies)


def _vmss_cpu(number: int, cpu: _CPU) -> bytes:
    """Return all registers that crash wants of a CPU before it uses any."""
    general = struct.pack("<16Q", *(cpu.general[name] for name in _GPREGS))
    return (
        _vmss_block("gpregs", number, general)
        + _vmss_block("CR64", number, struct.pack("<5Q32x", *cpu.control))
        + _vmss_block("IDTR", number, struct.pack("<HQ", _PAGE - 1, cpu.idt))
        + _vmss_item("rip", (number,), "<Q", cpu.general["rip"])
        + _vmss_item("eflags", (number,), "<I", cpu.general["rflags"])
    )


def _vmss_item(name: str, index: tuple[int, ...], format_: str, value: int) -> bytes:
    data = struct.pack(format_, value)
    tag = len(name) << 8 | len(index) << 6 | len(data)
    return struct.pack("<H", tag) + name.encode() + struct.pack(f"<{len(index)}i", *index) + data


def _vmss_block(name: str, cpu: int, data: bytes) -> bytes:
    tag = len(name) << 8 | 1 << 6 | 0x3F
    head = struct.pack("<H", tag) + name.encode()
    return head + struct.pack("<iQQH", cpu, len(data), len(data), 0) + data


def sadump(source: Path, target: Path) -> None:
    """Write a dump as the firmware of Fujitsu's servers does, on a partition of its own."""
    dump = _Dump(source)
    ram, cpus = dump.ram(), dump.cpus()
    pages = ram.size // _PAGE
    magic = [1]
    for _ in range(981):
        magic.append((magic[-1] + 7) * 11 & 0xFFFFFFFF)
    partition = struct.pack("<II", 0x75646173, 0x706D) + bytes(16 + 64 + 3 * 16 + 16)
    partition += struct.pack("<IIQ", 0, 0, 0) + struct.pack(f"<{len(magic)}I", *magic)
    length = -(-pages // (8 * _PAGE)) * _PAGE
    bitmap = bytearray(length)
    present = [position for position, _ in dump.pages(ram)]
    for position in present:
        for pfn in range(position // _PAGE, min(position + _CHUNK, ram.size) // _PAGE):
            bitmap[pfn >> 3] |= 0x80 >> (pfn & 7)
    states = b"".join(_smram(cpu) for cpu in cpus)
    apics = b"".join(struct.pack("<QQ", number, 1 << number) for number in range(len(cpus)))
    sub_header = struct.pack("<I", len(states)) + apics + states
    blocks = -(-len(sub_header) // _PAGE)
    written = sum(byte.bit_count() for byte in bitmap)
    header = struct.pack(
        "<8sII16xII11I4x4Q",
        *(b"sadump\0\0", 1, 0, 0, 0),
        *(_PAGE, 0, blocks, length // _PAGE, length // _PAGE, pages, pages),
        *(written, written, 0, len(cpus)),
        *(pages, pages, written, written),
    )
    with target.open("wb") as file:
        # Which pages are RAM, and which of these are in the dump: others are zero.
        for part in (partition, header, sub_header, b"\xff" * (pages // 8), bitmap):
            file.write(part.ljust(-(-len(part) // _PAGE) * _PAGE, b"\0"))
        for _, data in dump.pages(ram):
            file.write(data)


def _smram(cpu: _CPU) -> bytes:
    """Return ``struct sadump_smram_cpu_state`` with what crash reads."""
    state = bytearray(1024)
    idt_upper = 58 * 8 + 2 * 4
    cr4 = 58 * 8 + 6 * 4 + 8 + 10 * 8
    idt_lower = cr4 + 19 * 4 + 2 * 4
    struct.pack_into("<I", state, idt_upper, cpu.idt >> 32)
    struct.pack_into("<I", state, cr4, cpu.control[4] & 0xFFFFFFFF)
    struct.pack_into("<I", state, idt_lower, cpu.idt & 0xFFFFFFFF)
    struct.pack_into("<QQ", state, len(state) - 16, cpu.control[3], cpu.control[0])
    return bytes(state)


def kdump(source: Path, target: Path) -> None:
    """Write a kdump-compressed dump (lzo) without the pages that a crash kernel leaves out."""
    with _for_makedumpfile(source, target.parent) as elf:
        host.run(["makedumpfile", "-l", "-d", "31", str(elf), str(target)])


def split(source: Path, targets: tuple[Path, ...]) -> None:
    # Without the size of a block (KiB), a part of a small dump has nothing in it.
    options = ["--split", "--splitblock-size", "64", "-l", "-d", "0"]
    with _for_makedumpfile(source, targets[0].parent) as elf:
        host.run(["makedumpfile", *options, str(elf), *map(str, targets)])


@contextmanager
def _for_makedumpfile(source: Path, directory: Path) -> Iterator[Path]:
    """Copy QEMU's dump with the program headers where makedumpfile expects them."""
    elf = directory / "for-makedumpfile"
    copy(source, elf)
    dump = _Dump(source)
    ram = dump.ram()
    notes = PHDR.pack(_PT_NOTE, 0, dump.notes_offset, 0, 0, len(dump.notes), len(dump.notes), 0)
    load = PHDR.pack(PT_LOAD, 7, ram.offset, 0, 0, ram.size, ram.size, 0)
    with elf.open("r+b") as file:
        # They replace section headers, which only very large dumps need.
        file.write(dump.head() + notes + load)
        assert file.tell() <= dump.notes_offset
    try:
        yield elf
    finally:
        elf.unlink()
