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
NOT_TRY = b"\x31\xf6"  # xor %esi, %esi
TABLE = b"\xff\x24\xc5\x00\x00\x00\x82"  # jmp *table(,%rax,8)

Item = bytes | str
"""Bytes; ``call NAME``, ``jmp NAME`` or ``jne NAME`` of a function or label; or ``LABEL:``."""


def of(lock: int) -> bytes:
    """Return ``mov $lock, %rdi``."""
    return b"\x48\xc7\xc7" + (lock & 0xFFFFFFFF).to_bytes(4, "little")


class Code:
    """Functions one after the other, and where labels in them are."""

    def __init__(self, functions: Mapping[str, Sequence[Item]], others: Sequence[str] = ()) -> None:
        every = {**functions, **dict.fromkeys(others, (RET,))}
        self.is_lost = False
        """Whether the code is not in the dump."""
        self.starts = {name: TEXT + _SIZE * row for row, name in enumerate(every)}
        self.labels = dict(self.starts)
        self.content = bytearray(b"\xcc" * _SIZE * len(every))
        # In the second round, all labels are known.
        for name, items in (*every.items(), *every.items()):
            at = self.starts[name]
            for item in items:
                if isinstance(item, str) and item.endswith(":"):
                    self.labels[item[:-1]] = at
                encoded = self._bytes(item, at)
                self.content[at - TEXT : at - TEXT + len(encoded)] = encoded
                at += len(encoded)

    def _bytes(self, item: Item, at: int) -> bytes:
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
        prog = drgn.Program(drgn.Platform(drgn.Architecture.X86_64))
        prog.add_memory_segment(TEXT, len(self.content), self._read, False)
        add_functions(prog, self.starts, _SIZE)
        return Kernel(prog)
