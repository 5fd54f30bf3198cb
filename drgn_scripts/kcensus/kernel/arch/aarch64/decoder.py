# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls, jumps and arguments in machine code of arm64: columns of words of 4 bytes.

An address of a variable is made by two instructions and more, so registers are traced.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.kernel.arch.aarch64.instructions import decode
from kcensus.kernel.arch.instructions import Instruction, Kind, Search, UnclearError
from kcensus.kernel.arch.instructions import UndecodableError as Undecodable
from kcensus.kernel.arch.registers import ANY, Values, only, write

_SIZE = 4
_BRANCHES = (
    (0xFF000000, 0x54000000, 19),
    (0x7E000000, 0x34000000, 19),
    (0x7E000000, 0x36000000, 14),
)
"""Masks, values, and bits of the distance, of b.cond, cbz and tbz."""
_JUMP = ((0xFC000000, 0x14000000, 26),)
_CALL = (*_JUMP, (0xFC000000, 0x94000000, 26))
_NOT_TRY = (0x52800001, 0x2A1F03E1)
"""mov w1, #0; and mov w1, wzr."""
_NEAR = 6
"""Instructions before a call to search for these."""
_VENEERS = {0xD61F0200: 16, 0xD61F0220: 17}
"""br x16 and br x17, the registers of veneers."""
_ARGUMENTS = range(8)
_PAGE = 4096
_ANCHORS = 1 << 14
"""A compiler makes the address of a variable from one of up to 4 KiB before it."""


class AArch64:
    """The decoder of arm64."""

    first = 0
    # Compilers do not always inline it.
    per_cpu = "__kern_my_cpu_offset"
    veneer = 5 * _SIZE

    def decode(self, code: bytes, at: int, start: int) -> Instruction:
        """Return the instruction at an offset."""
        return decode(code, at, start)

    def calls(self, code: bytes, start: int) -> Iterator[tuple[int, int]]:
        """Yield the end and the target of possible calls and unconditional jumps."""
        return _found(code, start, _CALL)

    def jumps(self, code: bytes, start: int) -> Iterator[tuple[int, int]]:
        """Yield the end and the target of possible jumps and branches."""
        return _found(code, start, (*_JUMP, *_BRANCHES))

    def is_no_try(self, code: bytes) -> bool:
        """Return whether the second argument of a call at the end of code is 0."""
        words = _words(code)[:-1][-_NEAR:]
        return any(each in _NOT_TRY for each in words.tolist())

    def behind(self, code: bytes, start: int) -> int:
        """Return the function to which a veneer jumps; 0 if the code is none.

        Modules may be far from the kernel with CONFIG_RANDOMIZE_BASE. A ``struct plt_entry`` makes
        the address in x16 by adrp and add; where it has members ``mov0``, ``mov1`` and ``mov2``, by
        three parts of 16 bits.
        """
        values: Values = {}
        for at in range(0, len(code) - _SIZE + 1, _SIZE):
            register = _VENEERS.get(int.from_bytes(code[at : at + _SIZE], "little"))
            if register is not None:
                return only(values, register)
            try:
                step = decode(code, at, start)
            except Undecodable:
                return 0
            if step.kind is not Kind.NEXT or any(
                each.register not in (16, 17) for each in step.writes
            ):
                return 0
            for change in step.writes:
                write(values, change)
        return 0

    def completing(self, search: Search) -> set[int] | None:
        """Return the return addresses of calls with an object of a module as first argument."""
        code, start, object_, targets, harmless, traced = search
        found, known = set[int](), set[int]()
        try:
            for place in _mentions(code, start, object_):
                if place in known:
                    continue
                for step, values in traced(place):
                    known.add(step.end - _SIZE)
                    is_own = start <= step.target < start + len(code)
                    if _keeps(step, values, object_, harmless, is_own=is_own):
                        return None
                    is_away = step.kind in (Kind.CALL, Kind.JUMP) and step.target in targets
                    if is_away and object_ in values.get(self.first, ()):
                        found.add(step.end)
        except (UnclearError, drgn.FaultError):
            return None
        return found


def _keeps(
    step: Instruction, values: Values, object_: int, harmless: Container[int], *, is_own: bool
) -> bool:
    """Return whether an instruction passes the address of an object to code that may keep it.

    :param is_own: whether it calls a function of the object's module
    """
    if step.kind is Kind.END:
        passed: Iterable[int] = (0,)
    elif step.kind not in (Kind.CALL, Kind.JUMP):
        passed = step.stores
    elif step.target in harmless:
        passed = ()
    else:
        passed = (0,) if is_own else _ARGUMENTS
    held = (values.get(register, frozenset()) for register in passed)
    return any(object_ in each or ANY in each for each in held)


def _mentions(code: bytes, start: int, object_: int) -> list[int]:
    """Return the instructions that make an address from which a compiler may make an object's."""
    words = _words(code)
    rows = np.flatnonzero(words & np.uint32(0x1F000000) == np.uint32(0x10000000))
    word = words[rows].astype(np.int64)
    distance = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
    distance -= (distance >> 20) << 21
    is_page = word >> 31 == 1
    place = rows * _SIZE
    # Relative to the code, where an address is a small number.
    made = np.where(is_page, (place + start % _PAGE & -_PAGE) - start % _PAGE, place)
    made += np.where(is_page, distance * _PAGE, distance)
    before = object_ - start - made
    near = place[(before >= 0) & (before < _ANCHORS)]
    return [start + each for each in near.tolist()]


def _words(code: bytes) -> npt.NDArray[np.uint32]:
    return np.frombuffer(code, "<u4", len(code) // _SIZE)


def _found(
    code: bytes, start: int, forms: tuple[tuple[int, int, int], ...]
) -> Iterator[tuple[int, int]]:
    words = _words(code)
    for mask, value, bits in forms:
        rows = np.flatnonzero(words & np.uint32(mask) == np.uint32(value))
        shift = 0 if bits == 26 else 5
        distance = words[rows].astype(np.int64) >> shift & ((1 << bits) - 1)
        distance -= (distance >> (bits - 1)) << bits
        for row, step in zip(rows.tolist(), distance.tolist(), strict=True):
            place = start + row * _SIZE
            yield place + _SIZE, (place + step * _SIZE) % (1 << 64)
