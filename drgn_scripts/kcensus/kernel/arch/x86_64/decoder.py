# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls, jumps and arguments in machine code of x86-64, found by patterns of bytes.

Addresses of variables are operands of 32 bits of one instruction, so registers need no tracing.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

from kcensus.kernel.arch.instructions import Instruction, Search
from kcensus.kernel.arch.x86_64.instructions import decode

_CALL, _JUMP = rb"[\xe8\xe9]", rb"(?:\xe9|\x0f[\x80-\x8f])"
"""A call or tail jump; and a jump or branch, each with a distance of 32 bits."""
_CALLS = re.compile(rb"[\xe8\xe9](?=(....))", re.DOTALL)
_NOT_TRY = b"\x31\xf6"
"""xor %esi, %esi."""
_CALL_SIZE = 5
_NEAR = 24
"""Bytes before a call to search for this instruction."""
_WINDOW = 40
"""Most bytes between the address of an object and the call with it."""
_TAKES = re.compile(rb"(?=([\x48\x49\x4c\x4d])(\xc7|\x8d)(.)(....))", re.DOTALL)
"""mov $number, register; or lea distance(%rip), register."""
_STORE = (
    rb"[\x48\x49]\xc7(?:\x05....|[\x00-\x3f]|\x04.|[\x40-\x7f].|\x44..|[\x80-\xbf]....|\x84.....)"
)
"""Encoding of mov $number, memory, without the number."""
_FIRST = 7
"""%rdi."""
_ARGUMENTS = (7, 6, 2, 1, 8, 9)


class X86:
    """The decoder of x86-64."""

    first = -1
    per_cpu = ""
    veneer = 0

    def decode(self, code: bytes, at: int, start: int) -> Instruction:
        """Return the instruction at an offset."""
        return decode(code, at, start)

    def calls(self, code: bytes, start: int) -> Iterator[tuple[int, int]]:
        """Yield the end and the target of possible calls and unconditional jumps."""
        return _found(code, start, _CALL)

    def jumps(self, code: bytes, start: int) -> Iterator[tuple[int, int]]:
        """Yield the end and the target of possible jumps and branches."""
        return _found(code, start, _JUMP)

    def is_no_try(self, code: bytes) -> bool:
        """Return whether the second argument of a call at the end of code is 0."""
        return _NOT_TRY in code[-_NEAR - _CALL_SIZE : -_CALL_SIZE]

    def behind(self, code: bytes, start: int) -> int:
        """Return 0: all code is within reach of a call."""
        return 0

    def completing(self, search: Search) -> set[int] | None:
        """Return the return addresses of calls with an object of a module as first argument."""
        code, start, object_, targets, harmless, _ = search
        if escapes(code, start, object_, harmless):
            return None
        return {*calls_with(code, start, object_, targets)}


def _found(code: bytes, start: int, pattern: bytes) -> Iterator[tuple[int, int]]:
    for found in re.finditer(pattern + rb"(?=(....))", code, re.DOTALL):
        after = start + found.end() + 4
        target = after + int.from_bytes(found[1], "little", signed=True)
        if target >> 31 == (1 << 33) - 1:  # in kernel code
            yield after, target


def escapes(code: bytes, start: int, object_: int, harmless: Container[int]) -> bool:
    """Return whether code passes the address of an object to unknown code.

    It does by a store of the address, by a load into a register for no argument, or by a call of a
    kernel function that is not known to complete the object, wait for it or print it.
    """
    for found in _TAKES.finditer(code):
        prefix, is_lea, form = found[1][0], found[2] == b"\x8d", found[3][0]
        number, end = int.from_bytes(found[4], "little", signed=True), found.end(4)
        if is_lea:
            address, register = start + end + number, form >> 3 & 7 | (prefix & 4) << 1
            is_taken = form & 0xC7 == 0x05
        else:
            address, register = number % (1 << 64), form & 7 | (prefix & 1) << 3
            is_taken = form & 0xF8 == 0xC0
        if address != object_ or not is_taken:
            continue
        call = _CALLS.search(code, end, end + _WINDOW)
        if register not in _ARGUMENTS or call is None:
            return True
        target = start + call.start() + 5 + int.from_bytes(call[1], "little", signed=True)
        is_own = start <= target < start + len(code)
        if target not in harmless and (register == _FIRST or not is_own):
            return True
    word = (object_ & 0xFFFFFFFF).to_bytes(4, "little")
    return re.search(_STORE + re.escape(word), code, re.DOTALL) is not None


def calls_with(code: bytes, start: int, object_: int, targets: Container[int]) -> Iterator[int]:
    """Yield the return addresses of calls of some functions with an object as their argument.

    :param start: address of the code
    :param targets: addresses of the functions
    """
    for place in _mentions(code, start, object_):
        for call in _CALLS.finditer(code, place, min(place + _WINDOW, len(code))):
            after = start + call.start() + 5
            if after + int.from_bytes(call[1], "little", signed=True) in targets:
                yield after


def _mentions(code: bytes, start: int, object_: int) -> Iterator[int]:
    """Yield the offsets after each address of an object in code, absolute or relative."""
    for found in re.finditer(re.escape((object_ & 0xFFFFFFFF).to_bytes(4, "little")), code):
        yield found.end()
    for found in re.finditer(rb"\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](?=(....))", code, re.DOTALL):
        after = found.end() + 4
        if start + after + int.from_bytes(found[1], "little", signed=True) == object_:
            yield after
