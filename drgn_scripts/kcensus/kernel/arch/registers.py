# SPDX-License-Identifier: LGPL-2.1-or-later
"""Values of registers along the ways through a function.

Where an address is made by several instructions, a compiler makes it once, keeps it in a register
over calls, and makes the addresses of neighbours from it. A register may have one of several values
where ways meet; one that is not noted has an unknown value.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

Values = dict[int, frozenset[int]]
"""Possible values of registers: addresses and numbers, or one of the marks below."""
_MAX_VALUES = 8

SLOTS = 64
"""A value kept on the stack has a number, too: from here on, by the distance in bytes."""

UNKNOWN, MEMBER, PER_CPU, SLOT, ANY = -1, -2, -3, -4, -5
"""Any value; one with a distance from an unknown one; the distance of this CPU's variables; the
address of this CPU's variable behind an unknown pointer; and one of too many values."""
_NONE = frozenset({UNKNOWN})
_WORD = (1 << 64) - 1


class How(Enum):
    """How an instruction makes a value."""

    UNKNOWN = "unknown"
    NUMBER = "a number"
    MOVED = "a register plus a number"
    SUM = "the sum of two registers"
    EITHER = "one of two registers"
    INSERTED = "a register with other bits in a part"
    PER_CPU = "the distance of this CPU's variables"
    CALLED = "unknown values of all registers that a called function may change"
    STACK = "an address on the stack"
    FRAME = "the stack grows or shrinks"


class Write(NamedTuple):
    """A change of a register."""

    register: int
    how: How = How.UNKNOWN
    base: int = 0
    other: int = 0
    number: int = 0
    mask: int = 0
    """Bits to replace by the number; or a bit for each register that a called function changes."""


def write(values: Values, change: Write) -> None:
    """Carry out a change."""
    how = change.how
    if how is How.UNKNOWN:
        values.pop(change.register, None)
        return
    if how is How.CALLED:
        for register in [each for each in values if change.mask >> each & 1]:
            del values[register]
        return
    if how is How.FRAME:
        for slot in [each for each in values if each >= SLOTS]:
            del values[slot]
        return
    made = _made(values, change)
    if made is None or made == _NONE:
        values.pop(change.register, None)
    else:
        values[change.register] = made if len(made) <= _MAX_VALUES else frozenset({ANY})


def only(values: Mapping[int, frozenset[int]], register: int) -> int:
    """Return the address or number in a register, or 0 if there are several or none."""
    found = values.get(register, _NONE)
    return max(next(iter(found)), 0) if len(found) == 1 else 0


def joined(known: Values, more: Values) -> Values:
    """Return what registers may have where two ways meet."""
    found = dict(known)
    for register in known.keys() | more.keys():
        one, other = known.get(register, _NONE), more.get(register, _NONE)
        if one != other:
            every = one | other
            found[register] = every if len(every) <= _MAX_VALUES and ANY not in every else _ANY
    return found


_ANY = frozenset({ANY})


def _made(values: Values, change: Write) -> frozenset[int] | None:
    how, number = change.how, change.number
    if how is How.NUMBER:
        return frozenset({number})
    if how is How.STACK:
        return None
    if how is How.PER_CPU:
        return frozenset({PER_CPU})
    base = values.get(change.base, _NONE)
    if how is How.MOVED:
        return frozenset(_moved(each, number) for each in base) if number else base
    if how is How.INSERTED:
        kept = _WORD & ~change.mask
        return frozenset(UNKNOWN if each < 0 else each & kept | number for each in base)
    other = values.get(change.other, _NONE)
    if how is How.EITHER:
        return base | other
    # Sums matter for variables of this CPU only.
    if other == _NONE:
        base, other = other, base
    return frozenset({SLOT}) if base == _NONE and other == {PER_CPU} else None


def _moved(value: int, number: int) -> int:
    if value >= 0:
        return (value + number) & _WORD
    return ANY if value == ANY else MEMBER
