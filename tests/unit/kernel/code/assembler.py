# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel of some functions in machine code, as small as tests need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import drgn

from kcensus.kernel.kernel import Kernel
from tests.unit.fakekernel.machine import add_functions

TEXT = 0xFFFFFFFF81000000
LOCK, OTHER = 0xFFFFFFFF82000000, 0xFFFFFFFF82000100
_SIZE = 0x200
"""Bytes of one function."""

RET = b"\xc3"
MOVE = b"\x48\x89\xdf"  # mov %rbx, %rdi
TEST = b"\x85\xc0"  # test %eax, %eax
COUNT_UP, COUNT_DOWN = b"\x65\xff\x00", b"\x65\xff\x08"  # incl %gs:(%rax); decl %gs:(%rax)
INSIDE = b"\x48\x8d\x7b\x40"  # lea 0x40(%rbx), %rdi
NOT_TRY = b"\x31\xf6"  # xor %esi, %esi
TABLE = b"\xff\x24\xc5\x00\x00\x00\x82"  # jmp *table(,%rax,8)

Item = bytes | str
"""Bytes; ``call NAME``, ``jmp NAME`` or ``jne NAME`` of a function or label; or ``LABEL:``."""


def of(lock: int) -> bytes:
    """Return ``mov $lock, %rdi``."""
    return b"\x48\xc7\xc7" + (lock & 0xFFFFFFFF).to_bytes(4, "little")


def words(*numbers: int) -> bytes:
    """Return instructions of arm64."""
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def _count(step: int) -> bytes:
    """Return arm64's count: mov w2, step; ldr x3, [x19]; mrs x1, tpidr_el1; add; ldadd."""
    return words(step, 0xF9400263, 0xD538D081, 0x8B010063, 0xB8220064)


_ARM = {
    RET: words(0xD65F03C0),
    MOVE: words(0xAA1303E0),  # mov x0, x19
    TEST: words(0x6A00001F),  # tst w0, w0
    COUNT_UP: _count(0x52800022),
    COUNT_DOWN: _count(0x12800002),
    INSIDE: words(0x91010260),  # add x0, x19, #0x40
    NOT_TRY: words(0x52800001),  # mov w1, #0
    TABLE: words(0x8B20A820, 0xD61F0000),  # add x0, x1, w0, sxth #2; br x0
}


class Code:
    """Functions one after the other, and where labels in them are."""

    architecture = drgn.Architecture.X86_64
    filler = 0xCC

    def __init__(self, functions: Mapping[str, Sequence[Item]], others: Sequence[str] = ()) -> None:
        every = {**functions, **dict.fromkeys(others, (RET,))}
        self.is_lost = False
        """Whether the code is not in the dump."""
        self.starts = {name: TEXT + _SIZE * row for row, name in enumerate(every)}
        self.labels = dict(self.starts)
        self.content = bytearray([self.filler] * _SIZE * len(every))
        # In the second round, all labels are known.
        for name, items in (*every.items(), *every.items()):
            at = self.starts[name]
            for item in items:
                if isinstance(item, str) and item.endswith(":"):
                    self.labels[item[:-1]] = at
                encoded = self.encoded(item, at)
                self.content[at - TEXT : at - TEXT + len(encoded)] = encoded
                at += len(encoded)

    def encoded(self, item: Item, at: int) -> bytes:
        """Return the bytes of an item at an address."""
        if isinstance(item, bytes):
            return item
        if item.endswith(":"):
            return b""
        verb, name = item.split()
        opcode = {"call": b"\xe8", "jmp": b"\xe9", "jne": b"\x0f\x85"}[verb]
        distance = self.labels.get(name, at) - at - len(opcode) - 4
        return opcode + distance.to_bytes(4, "little", signed=True)

    def _read(self, address: int, size: int, offset: int, _: bool) -> bytes:
        if self.is_lost:
            raise drgn.FaultError("not in the dump", address)
        return bytes(self.content[offset : offset + size])

    def kernel(self) -> Kernel:
        prog = drgn.Program(drgn.Platform(self.architecture))
        prog.add_memory_segment(TEXT, len(self.content), self._read, False)
        add_functions(prog, self.starts, _SIZE)
        return Kernel(prog)


class ArmCode(Code):
    """The same in machine code of arm64."""

    architecture = drgn.Architecture.AARCH64
    filler = 0

    def encoded(self, item: Item, at: int) -> bytes:
        if isinstance(item, bytes):
            if item in _ARM:
                return _ARM[item]
            if item[:3] != of(0)[:3]:
                return item
            lock = (1 << 64) - (1 << 32) + int.from_bytes(item[3:], "little")
            return made(0, lock, at)
        if item.endswith(":"):
            return b""
        verb, name = item.split()
        distance = (self.labels.get(name, at) - at) // 4
        if verb == "jne":
            return words(0x35000000 | (distance & 0x7FFFF) << 5)
        return words({"call": 0x94000000, "jmp": 0x14000000}[verb] | distance & 0x3FFFFFF)


def made(register: int, address: int, at: int) -> bytes:
    """Return adrp and add that make an address, for a place of code."""
    pages = (address >> 12) - (at >> 12)
    adrp = 0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | register
    return words(adrp, 0x91000000 | (address & 0xFFF) << 10 | register << 5 | register)


MACHINE: type[Code] = Code
"""The architecture of the functions; tests set it."""
