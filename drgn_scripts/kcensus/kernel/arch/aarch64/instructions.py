# SPDX-License-Identifier: LGPL-2.1-or-later
"""Targets and changed registers of arm64 instructions, each of 4 bytes.

Encodings follow the Arm Architecture Reference Manual (DDI 0487, chapter C4). Vector instructions
change the general register with the number in their lowest bits, as far as is known here: the
kernel has next to none in code that takes locks.

The library capstone (5.0.9, 11 MB installed) takes 1.9 µs for the text of an instruction, and 16 µs
with the registers that it reads and writes; this takes 2.5 µs, on code of a kernel of 6.12. It
follows neither values nor ways, and would add a parser in C of untrusted bytes.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from kcensus.kernel.arch.instructions import Instruction, Kind, UndecodableError
from kcensus.kernel.arch.registers import SLOTS, How, Write

_ZERO = 31
"""Register number of zero, and of the stack pointer."""
_FRAME, _LINK, _SIZE = 29, 30, 4
_WORD = (1 << 64) - 1
_CLOBBERED = (Write(0, How.CALLED, mask=1 << _LINK | (1 << 19) - 1),)
"""A called function may change x0 to x18, and the link register."""
_MOVED_STACK = (Write(_ZERO, How.FRAME),)
"""Also of instructions that change an unknown part of the stack, such as stores through x29, whose
distance from its end is unknown."""
_MAX_SLOTS = 512
"""Bytes of the stack, from its end on, in which values are followed."""
_TRAP = 1000
"""Number of the breakpoint of __builtin_trap(). Those of BUG() and WARN() are the same: after them,
code may go on."""


class _Shape(NamedTuple):
    """An instruction, wherever it is."""

    kind: Kind = Kind.NEXT
    distance: int | None = None
    """Distance of its target."""
    writes: tuple[Write, ...] = ()
    stores: tuple[int, ...] = ()
    adds: tuple[int, int] | None = None
    page: int = 0
    """Alignment of the address that it makes from its own; 0 for none."""


def decode(code: bytes, at: int, start: int) -> Instruction:
    """Return the instruction at an offset of code, given the start address of the code.

    :raises UndecodableError: it is unknown or incomplete
    """
    plain = code[at : at + _SIZE]
    if len(plain) < _SIZE:
        raise UndecodableError("an instruction is cut")
    word, place = int.from_bytes(plain, "little"), start + at
    if at + 2 * _SIZE == len(code) and _word(code, at + _SIZE) >> 16 == 0xFFFF:
        # An address, no instructions: ftrace's for the function that comes next. Code that calls
        # panic() or the like ends before it. Since Linux kernel commit baaf553d3bc3 ("arm64:
        # Implement HAVE_DYNAMIC_FTRACE_WITH_CALL_OPS") (in v6.3).
        return Instruction(place + _SIZE, Kind.END, 0, None, None, 0)
    kind, distance, writes, stores, adds, page = _shape(word)
    target = 0
    if page:
        address = (place - place % page + (distance or 0)) & _WORD
        writes = (Write(word & 31, How.NUMBER, number=address),)
    elif distance is not None:
        target = (place + distance) & _WORD
        if kind is Kind.BRANCH and at >= _SIZE and _is_retry(_word(code, at - _SIZE), word):
            kind, target = Kind.NEXT, 0
    elif kind is Kind.END and word & 0xFFFFFC1F == 0xD61F0000 and _is_table(code, at, word):
        kind = Kind.TABLE
    elif at >= 2 * _SIZE and word & 0xFFE0FC00 == 0x88007C00:
        adds = _adds(_word(code, at - 2 * _SIZE), _word(code, at - _SIZE), word)
    argument = inside = None
    for write in writes:
        if write.register == 0:
            argument = 0
            is_moved = write.how is How.MOVED and 0 < write.base < _ZERO
            # Signed, as far as instructions have signs.
            inside = write.number if is_moved else None
    if inside is not None and inside >> 63:
        inside -= 1 << 64
    return Instruction(place + _SIZE, kind, target, argument, inside, 0, writes, stores, adds)


def _word(code: bytes, at: int) -> int:
    return int.from_bytes(code[at : at + _SIZE], "little")


def _is_retry(before: int, branch: int) -> bool:
    """Return whether a branch repeats a store that lost its exclusiveness: stxr, cbnz."""
    is_exclusive = before & 0x3FC00000 == 0x08000000
    return is_exclusive and branch & 0x7F00001F == 0x35000000 | before >> 16 & 31


def _is_table(code: bytes, at: int, branch: int) -> bool:
    """Return whether a br follows an addition to its register: of an entry of a table of jumps.

    Other pointers of functions are loaded, or were given.
    """
    register = branch >> 5 & 31
    words = [_word(code, at - _SIZE * back) for back in range(1, 5) if at >= _SIZE * back]
    return any(each & 0xFF000000 == 0x8B000000 and each & 31 == register for each in words)


def _adds(load: int, add: int, store: int) -> tuple[int, int] | None:
    """Return the registers of ``ldxr w, [x]; add w, w, step; stxr w, w, [x]``."""
    pointer, value = store >> 5 & 31, store & 31
    is_load = load == 0x885F7C00 | pointer << 5 | value
    is_add = add & 0xFFE0FFFF == 0x0B000000 | value << 5 | value
    return (pointer, add >> 16 & 31) if is_load and is_add else None


def _signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) & 1 else number


@functools.lru_cache(1 << 16)
def _shape(word: int) -> _Shape:
    group = word >> 25 & 15
    if group & 0b1110 == 0b1000:
        return _numbers(word)
    if group & 0b1110 == 0b1010:
        return _ways(word)
    if group & 0b0101 == 0b0100:
        return _memory(word)
    if group & 0b0111 == 0b0101:
        return _Shape(writes=_registers(word))
    if group & 0b0111 == 0b0111 or group == 0b0010:
        return _Shape(writes=(Write(word & 31),) if word & 31 != _ZERO else ())
    if word >> 16 == 0:
        return _Shape(Kind.END)  # udf
    raise UndecodableError(f"instruction {word:#010x}")


def _numbers(word: int) -> _Shape:
    """Read an instruction with a number: adr, add, movz, bit fields."""
    register, base, is_wide = word & 31, word >> 5 & 31, word >> 31
    form = word >> 23 & 7
    if form & 6 == 0:
        distance = _signed(word >> 5 & 0x7FFFF, 19) << 2 | word >> 29 & 3
        is_page = word >> 31
        return _Shape(distance=distance << 12 if is_page else distance, page=4096 if is_page else 1)
    if form in (2, 3):
        if word >> 29 & 1 and register == _ZERO:
            return _Shape()  # cmp
        number = (word >> 10 & 0xFFF) << (12 if word >> 22 & 1 else 0)
        number = -number if word >> 30 & 1 else number
        # With tags of memory (form 3), the number is none.
        if register == _ZERO:
            return _Shape(writes=_MOVED_STACK)
        if form == 2 and base in (_ZERO, _FRAME) and register != _FRAME:
            # How far the frame is from the end of the stack is not known here.
            place = number if base == _ZERO else 0
            return _Shape(writes=(Write(register, How.STACK, number=place),))
        if form == 2 and is_wide:
            moved = Write(register, How.MOVED, base, number=number & _WORD)
            return _Shape(writes=(moved,))
    elif form == 5:
        shift, number = (word >> 21 & 3) * 16, word >> 5 & 0xFFFF
        whole = _WORD if is_wide else 0xFFFFFFFF
        opcode = word >> 29 & 3
        if opcode == 3 and is_wide:
            part = Write(
                register, How.INSERTED, register, number=number << shift, mask=0xFFFF << shift
            )
            return _Shape(writes=(part,))
        if opcode in (0, 2):
            number = number << shift if opcode else ~(number << shift)
            return _Shape(writes=(Write(register, How.NUMBER, number=number & whole),))
    elif form == 4 and word >> 29 & 3 == 3 and register == _ZERO:
        return _Shape()  # tst
    if form == 4 and register == _ZERO:
        return _Shape(writes=_MOVED_STACK)
    return _Shape(writes=(Write(register),) if register != _ZERO else ())


def _ways(word: int) -> _Shape:
    """Read a branch, an exception, or an access to a system register."""
    if word >> 26 & 31 == 0b00101:
        kind = Kind.CALL if word >> 31 else Kind.JUMP
        distance = _signed(word & 0x3FFFFFF, 26) << 2
        return _Shape(kind, distance, _CLOBBERED if word >> 31 else ())
    if word >> 25 & 63 == 0b011010 or word >> 24 == 0x54:
        return _Shape(Kind.BRANCH, _signed(word >> 5 & 0x7FFFF, 19) << 2)
    if word >> 25 & 63 == 0b011011:
        return _Shape(Kind.BRANCH, _signed(word >> 5 & 0x3FFF, 14) << 2)
    if word >> 25 == 0b1101011:  # through a register, also with a signed one
        opcode = word >> 21 & 7
        return _Shape(Kind.CALL, writes=_CLOBBERED) if opcode == 1 else _Shape(Kind.END)
    if word >> 24 == 0xD4:
        opcode, number = word >> 21 & 7, word >> 5 & 0xFFFF
        if opcode == 0:  # svc, hvc, smc
            return _Shape(writes=_CLOBBERED)
        is_end = opcode == 2 or (opcode == 1 and number == _TRAP)
        return _Shape(Kind.END if is_end else Kind.NEXT)
    if word >> 24 == 0xD5:  # system registers
        register = word & 31
        # tpidr_el1 and, for kernels at EL2, tpidr_el2
        if word & 0xFFFFFFE0 in (0xD538D080, 0xD53CD040):
            return _Shape(writes=(Write(register, How.PER_CPU),))
        if word == 0xD50320FF:
            return _Shape(writes=(Write(_LINK),))  # xpaclri
        is_read = word >> 21 & 1 and register != _ZERO
        return _Shape(writes=(Write(register),) if is_read else ())
    raise UndecodableError(f"instruction {word:#010x}")


def _memory(word: int) -> _Shape:
    """Read a load or store."""
    register, base, second = word & 31, word >> 5 & 31, word >> 10 & 31
    status, is_vector, form = word >> 16 & 31, word >> 26 & 1, word >> 28 & 3
    back = (base,) if base != _ZERO else ()
    if form == 0 and is_vector:
        return _Shape(writes=_unknown(back))
    if form == 0:
        is_pair, is_load, is_ordered = word >> 21 & 1, word >> 22 & 1, word >> 23 & 1
        if is_pair and (is_ordered or (word >> 31 == 0 and second == _ZERO)):
            # cas, and casp of two registers each
            many = (0,) if is_ordered else (0, 1)
            return _Shape(
                writes=_unknown([status + each for each in many]),
                stores=_held([register + each for each in many]),
            )
        values = (register, second) if is_pair else (register,)
        if is_load:
            return _Shape(writes=_unknown(values))
        return _Shape(writes=() if is_ordered else _unknown((status,)), stores=_held(values))
    if form == 1 and word >> 24 & 1 == 0:  # of a literal
        is_plain = not is_vector and word >> 30 != 3
        return _Shape(writes=_unknown((register,)) if is_plain else ())
    if form == 1:
        if word >> 21 & 1 == 0 and second & 3 == 0:  # with release or acquire
            is_load = word >> 22 & 3 != 0
            return _Shape(
                writes=_unknown((register,)) if is_load else (), stores=_held((register,))
            )
        # copies and tags
        return _Shape(writes=_unknown((register, base, status)), stores=_held((register,)))
    if form == 2:
        changed = _back(base) if word >> 23 & 1 else ()
        if base == _ZERO and word >> 22 & 1 == 0 and (is_vector or word >> 31 == 0):
            return _Shape(
                writes=_MOVED_STACK, stores=() if is_vector else _held((register, second))
            )
        if base == _FRAME and word >> 22 & 1 == 0:
            changed = (*changed, *_MOVED_STACK)
        if is_vector:
            return _Shape(writes=changed)
        if base == _ZERO and word >> 31 and not changed and word >> 30 & 1 == 0:
            place, is_load = _signed(word >> 15 & 127, 7) * 8, word >> 22 & 1 != 0
            return _kept((register, place), (second, place + 8), is_load=is_load)
        if word >> 22 & 1:
            return _Shape(writes=changed + _unknown((register, second)))
        return _Shape(writes=changed, stores=_held((register, second)))
    return _one(word, register, base, is_vector)


def _one(word: int, register: int, base: int, is_vector: int) -> _Shape:
    """Read a load or store of one register."""
    opcode, is_unsigned, way = word >> 22 & 3, word >> 24 & 1, word >> 10 & 3
    if is_unsigned or word >> 21 & 1 == 0:
        changed = _back(base) if not is_unsigned and way in (1, 3) else ()
    elif way == 0 and not is_vector:
        # LSE: the value from memory replaces the first register.
        is_add = word & 0xFF20FC00 == 0xB8200000  # stadd and ldadd of 32 bits
        source = word >> 16 & 31
        return _Shape(
            writes=_unknown((register,)),
            stores=_held((source,)),
            adds=(base, source) if is_add else None,
        )
    else:
        # With a signed pointer, or an offset in a register.
        changed = _back(base) if way & 1 else ()
        if way & 1:
            return _Shape(writes=changed + _unknown((register,)))
    # Of general registers, 2 is a load with sign.
    is_store = opcode == 0 or (is_vector and opcode == 2)
    if base == _ZERO and is_store and (is_vector or not is_unsigned):
        return _Shape(writes=_MOVED_STACK, stores=() if is_vector else _held((register,)))
    if base == _FRAME and is_store:
        changed = (*changed, *_MOVED_STACK)
    if is_vector:
        return _Shape(writes=changed)
    if is_unsigned and base == _ZERO and opcode < 2:
        place, is_wide = (word >> 10 & 0xFFF) << (word >> 30), word >> 30 == 3
        if is_wide:
            return _kept((register, place), is_load=opcode == 1)
        if opcode == 0:
            changed = (Write(SLOTS + (place & -8)),) if place < _MAX_SLOTS else ()
    if opcode == 0:
        return _Shape(writes=changed, stores=_held((register,)))
    is_prefetch = word >> 30 == 3 and opcode == 2
    return _Shape(writes=changed if is_prefetch else changed + _unknown((register,)))


def _back(base: int) -> tuple[Write, ...]:
    """Return the change of a register by the access through it."""
    return _MOVED_STACK if base == _ZERO else (Write(base),)


def _kept(*pairs: tuple[int, int], is_load: bool) -> _Shape:
    """Read a load or store of registers at places on the stack."""
    if is_load:
        loads = (
            Write(register, How.MOVED, SLOTS + place)
            if 0 <= place < _MAX_SLOTS
            else Write(register)
            for register, place in pairs
            if register != _ZERO
        )
        return _Shape(writes=tuple(loads))
    stores = (
        Write(SLOTS + place, How.NUMBER)
        if register == _ZERO
        else Write(SLOTS + place, How.MOVED, register)
        for register, place in pairs
        if 0 <= place < _MAX_SLOTS
    )
    return _Shape(writes=tuple(stores), stores=_held([register for register, _ in pairs]))


def _registers(word: int) -> tuple[Write, ...]:
    """Read an instruction that computes with registers."""
    register, base, other = word & 31, word >> 5 & 31, word >> 16 & 31
    if word >> 21 & 255 == 0b01011001 and word >> 29 & 1 == 0:
        # With an extended register, 31 is the stack pointer.
        if register == _ZERO:
            return _MOVED_STACK
        if base in (_ZERO, _FRAME):
            return (Write(register, How.STACK),)
    if register == _ZERO or word >> 21 & 255 == 0b11010010:
        # Flags only; for ccmp, the lowest bits are flags.
        return ()
    if word >> 21 & 255 == 0b11010000 and word >> 10 & 31 in range(1, 16) and word >> 29 & 3 == 1:
        return ()  # rmif, setf
    if word & 0xFFE0FFE0 == 0xAA0003E0 and other != _ZERO:  # mov
        return (Write(register, How.MOVED, other),)
    if word & 0x7FE0FFE0 == 0x2A0003E0 and other == _ZERO:
        return (Write(register, How.NUMBER),)
    if word & 0xFFE0FC00 == 0x8B000000 and _ZERO not in (base, other):  # add
        return (Write(register, How.SUM, base, other),)
    if word & 0xFFE00C00 == 0x9A800000 and _ZERO not in (base, other):  # csel
        return (Write(register, How.EITHER, base, other),)
    return (Write(register),)


def _unknown(registers: tuple[int, ...] | list[int]) -> tuple[Write, ...]:
    return tuple(Write(each) for each in registers if each < _ZERO)


def _held(registers: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    return tuple(each for each in registers if each < _ZERO)
