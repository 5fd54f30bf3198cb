# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lengths, targets and first arguments of x86-64 instructions.

Lengths follow the opcode maps of the Intel 64 manual (volume 2, appendix A). Of VEX instructions,
only BMI is decoded: the kernel has no vectors in code that takes locks.
"""

from __future__ import annotations

from kcensus.kernel.arch.instructions import Instruction, Kind, UndecodableError

_PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")
_GS, _NARROW = 0x65, 0x66


def _of(*ranges: int | tuple[int, int]) -> frozenset[int]:
    found: set[int] = set()
    for each in ranges:
        found |= {each} if isinstance(each, int) else set(range(each[0], each[1] + 1))
    return frozenset(found)


_ARITHMETIC = range(0x40)
_MODRM = _of(0x63, 0x69, 0x6B, (0x80, 0x81), (0x83, 0x8F), 0xC0, 0xC1, 0xC6, 0xC7) | _of(
    (0xD0, 0xD3), (0xD8, 0xDF), 0xF6, 0xF7, 0xFE, 0xFF
)
_BYTE = _of(0x6A, 0x6B, (0x70, 0x7F), 0x80, 0x83, 0xA8, (0xB0, 0xB7), 0xC0, 0xC1, 0xC6, 0xCD) | _of(
    (0xE0, 0xE7), 0xEB
)
"""Opcodes with an operand of 8 bits in the instruction."""
_WORD = _of(0x68, 0x69, 0x81, 0xA9, (0xB8, 0xBF), 0xC7)
"""Opcodes with an operand of 32 bits, or of 16 with a prefix."""
_INVALID = _of(0x06, 0x07, 0x0E, 0x16, 0x17, 0x1E, 0x1F, 0x27, 0x2F, 0x37, 0x3F) | _of(
    (0x60, 0x62), 0x82, 0x9A, 0xC5, (0xD4, 0xD6), 0xEA
)
_TWO_PLAIN = _of((0x05, 0x09), 0x0B, (0x30, 0x37), 0x77, (0xA0, 0xA2), (0xA8, 0xAA), (0xC8, 0xCF))
"""Opcodes of two bytes, without operands."""
_TWO_BYTE = _of((0x70, 0x73), 0xA4, 0xAC, 0xBA, 0xC2, (0xC4, 0xC6))


def decode(code: bytes, at: int, start: int) -> Instruction:
    """Return the instruction at an offset of code, given the start address of the code.

    :raises UndecodableError: it is unknown or incomplete
    """
    try:
        return _decode(code, at, start)
    except IndexError:
        raise UndecodableError("an instruction is cut") from None


def _decode(code: bytes, at: int, start: int) -> Instruction:
    prefixes, first = set(), at
    while code[at] in _PREFIXES:
        prefixes.add(code[at])
        at += 1
    rex = 0
    if code[at] & 0xF0 == 0x40:
        rex = code[at]
        at += 1
    opcode = code[at]
    at += 1
    two = 0
    if opcode == 0x0F:
        two = code[at]
        at += 1
        has_modrm, immediate = _two_bytes(two)
        if two in (0x38, 0x3A):
            at += 1
    elif opcode == 0xC4:  # a VEX prefix of three bytes
        opcode, two, has_modrm, immediate = 0x0F, 0x38, True, int(code[at] & 0x1F == 3)
        at += 3
    elif opcode in _INVALID:
        raise UndecodableError(f"opcode {opcode:#x}")
    elif opcode in _ARITHMETIC:
        has_modrm = opcode & 7 < 4
        immediate = {4: 1, 5: 2 if _NARROW in prefixes else 4}.get(opcode & 7, 0)
    else:
        has_modrm = opcode in _MODRM
        immediate = _immediate(opcode, code[at], rex, prefixes) if at < len(code) else 0
    modrm = code[at] if has_modrm else -1
    if has_modrm:
        at += _operand(code, at)
    end = at + immediate
    if end > len(code):
        raise UndecodableError("an instruction is cut")
    kind, target = Kind.NEXT, 0
    if opcode in (0xE8, 0xE9) or two & 0xF0 == 0x80:
        kind = Kind.BRANCH if two else Kind.CALL if opcode == 0xE8 else Kind.JUMP
        target = start + end + int.from_bytes(code[at:end], "little", signed=True)
    elif opcode & 0xF0 == 0x70 or opcode in range(0xE0, 0xE4) or opcode == 0xEB:
        kind = Kind.JUMP if opcode == 0xEB else Kind.BRANCH
        target = start + end + int.from_bytes(code[at:end], "little", signed=True)
    elif opcode in (0xC2, 0xC3, 0xCA, 0xCB, 0xCC, 0xCF):
        kind = Kind.END
    elif opcode == 0xFF and modrm >> 3 & 7 in (4, 5):
        # Through a register with a scaled index: one of several addresses.
        kind = Kind.TABLE if modrm & 0xC7 == 0x04 else Kind.END
    elif opcode == 0xFF and modrm >> 3 & 7 in (2, 3):
        kind = Kind.CALL
    plain = code[first:end]
    return Instruction(
        start + end,
        kind,
        target % (1 << 64),
        0 if kind is Kind.CALL else _argument(plain, rex, opcode, two, modrm, start + end),
        _inside(plain),
        _counted(plain, opcode, modrm) if prefixes == {_GS} and not rex & 8 else 0,
    )


def _two_bytes(two: int) -> tuple[bool, int]:
    """Return whether an instruction of two bytes has a ModRM byte, and the size of its operand."""
    if two & 0xF0 == 0x80:
        return False, 4
    if two in _TWO_PLAIN:
        return False, 0
    return True, int(two in _TWO_BYTE or two == 0x3A)


def _immediate(opcode: int, modrm: int, rex: int, prefixes: set[int]) -> int:
    if opcode in (0xE8, 0xE9):
        return 4
    if opcode in (0xC2, 0xCA):
        return 2
    if opcode == 0xC8:
        return 3
    if 0xA0 <= opcode <= 0xA3:
        return 4 if 0x67 in prefixes else 8
    if 0xB8 <= opcode <= 0xBF and rex & 8:
        return 8
    is_test = opcode in (0xF6, 0xF7) and modrm >> 3 & 7 < 2
    if opcode in _BYTE or (is_test and opcode == 0xF6):
        return 1
    if opcode in _WORD or is_test:
        return 2 if _NARROW in prefixes else 4
    return 0


def _operand(code: bytes, at: int) -> int:
    """Return the size of a ModRM byte with its SIB byte and displacement."""
    mode, register = code[at] >> 6, code[at] & 7
    if mode == 3:
        return 1
    size = 1 + (register == 4) + (0, 1, 4)[mode]
    if mode == 0 and (register == 5 or (register == 4 and code[at + 1] & 7 == 5)):
        size += 4
    return size


def _argument(plain: bytes, rex: int, opcode: int, two: int, modrm: int, end: int) -> int | None:
    """Return %rdi after an instruction."""
    if plain[0] == 0xC4:
        return 0
    if plain[:3] == b"\x48\xc7\xc7":  # mov $address, %rdi
        return int.from_bytes(plain[3:], "little", signed=True) % (1 << 64)
    if plain[:3] == b"\x48\x8d\x3d":  # lea offset(%rip), %rdi
        return (end + int.from_bytes(plain[3:], "little", signed=True)) % (1 << 64)
    if modrm < 0:
        # pop %rdi; xchg %rax, %rdi; mov $number, %edi; string instructions
        is_string = not two and opcode in (*range(0xA4, 0xA6), 0xAA, 0xAB, 0x6C, 0x6D)
        is_named = not two and not rex & 1 and opcode in (0x5F, 0x97, 0xB7, 0xBF)
        return 0 if is_string or is_named else None
    is_register = modrm >> 3 & 7 == 7 and not rex & 4
    is_operand = modrm >> 6 == 3 and modrm & 7 == 7 and not rex & 1
    # The digit of an opcode looks like a register: `cmp $8, %rax` does not change %rdi.
    if not two and opcode in (0x80, 0x81, 0x83, 0x8F, 0xC0, 0xC1, 0xC6, 0xC7, *range(0xD0, 0xD4)):
        is_register = False
    if not two and opcode in (0xF6, 0xF7, 0xFE, 0xFF, *range(0xD8, 0xE0)):
        is_register = False
    return 0 if is_register or is_operand else None


def _inside(plain: bytes) -> int | None:
    """Return the distance of %rdi from another register after an instruction; None for others."""
    if len(plain) < 3 or plain[0] & 0xFA != 0x48:
        return None
    mode, source, target = plain[2] >> 6, plain[2] >> 3 & 7, plain[2] & 7
    if plain[1] == 0x89 and plain[0] & 1 == 0 and (mode, target) == (3, 7):
        return 0  # mov %register, %rdi
    if plain[1] != 0x8D or plain[0] & 4 or source != 7 or mode not in (1, 2):
        return None
    # lea distance(%register), %rdi; the stack pointer is not an object. %r12 needs one more byte.
    is_indexed = target == 4
    if is_indexed and (plain[0] & 1 == 0 or plain[3] != 0x24):
        return None
    return int.from_bytes(plain[3 + is_indexed :], "little", signed=True)


def _counted(plain: bytes, opcode: int, modrm: int) -> int:
    """Return the change of a per-CPU variable behind a register by an instruction; 0 for none."""
    mode, register, digit = modrm >> 6, modrm & 7, modrm >> 3 & 7
    # %r12 and %r13 as pointers need one more byte.
    is_pointer = mode == 0 and (register not in (4, 5) or (register == 4 and 0x24 in plain[-2:]))
    is_pointer |= mode == 1 and register == 5 and 0 in plain[-2:]
    if modrm < 0 or not is_pointer:
        return 0
    if opcode == 0xFF:
        return {0: 1, 1: -1}.get(digit, 0)
    if opcode == 0x83 and digit in (0, 5) and plain[-1] in (0x01, 0xFF):
        step = 1 if plain[-1] == 0x01 else -1
        return step if digit == 0 else -step
    return 0
