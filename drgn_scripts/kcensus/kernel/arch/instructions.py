# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a decoder of machine code tells, whatever the architecture."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from enum import Enum
from typing import NamedTuple, Protocol

from kcensus.kernel.arch.registers import Values, Write


class Kind(Enum):
    """Next step after an instruction."""

    NEXT = "next"
    CALL = "call"
    JUMP = "jump"
    BRANCH = "branch"
    END = "end"
    """Return, or jump to a computed address."""
    TABLE = "table"
    """Jump to one of several addresses of a table."""


class Instruction(NamedTuple):
    """One instruction."""

    end: int
    kind: Kind
    target: int
    """Target of a call, jump or branch; 0 if computed."""
    argument: int | None
    """The first argument after the instruction: 0 if computed, None if unchanged."""
    inside: int | None
    """Distance of a computed argument from a register that has an object's address; None if
    unknown."""
    counted: int
    """1 or -1 if it counts a per-CPU variable of 32 bits behind a register up or down."""
    writes: tuple[Write, ...] = ()
    """Changed registers, of decoders that trace them."""
    stores: tuple[int, ...] = ()
    """Registers that it stores in memory, of decoders that trace them."""
    adds: tuple[int, int] | None = None
    """Registers with the address and the change of a count of 32 bits, if the decoder traces."""


class UndecodableError(ValueError):
    """Bytes are no known instruction."""


class UnclearError(Exception):
    """Some ways through a function are unknown."""


Traced = Iterator[tuple[Instruction, Values]]
"""The instructions of a function, with the registers before each."""


class Search(NamedTuple):
    """A search in the code of a module for calls with one of its objects as first argument."""

    code: bytes
    start: int
    """Address of the code."""
    object: int
    targets: Container[int]
    """The called functions to look for."""
    harmless: Container[int]
    """Functions that do not keep the address of the object."""
    traced: Callable[[int], Traced]
    """Follows the function at an address; raises :class:`UnclearError` and ``drgn.FaultError``."""


class Decoder(Protocol):
    """Reads the machine code of one architecture.

    Code is always given with the address of its first byte.
    """

    first: int
    """Register with the first argument; -1 if the decoder does not trace registers."""
    per_cpu: str
    """Name of a function that returns the distance of this CPU's variables; empty for none."""
    veneer: int
    """Most bytes of a piece of code that only jumps to a function far away; 0 for none."""

    def decode(self, code: bytes, at: int, start: int) -> Instruction:
        """Return the instruction at an offset.

        :raises UndecodableError: it is unknown or incomplete
        """

    def calls(self, code: bytes, start: int) -> Iterator[tuple[int, int]]:
        """Yield the end and the target of possible calls and unconditional jumps."""

    def jumps(self, code: bytes, start: int) -> Iterator[tuple[int, int]]:
        """Yield the end and the target of possible jumps and branches."""

    def is_no_try(self, code: bytes) -> bool:
        """Return whether code that ends with a call of ``__percpu_down_read()`` sets its second
        argument, `try`, to false."""

    def behind(self, code: bytes, start: int) -> int:
        """Return the function to which a veneer jumps; 0 if the code is none."""

    def completing(self, search: Search) -> set[int] | None:
        """Return the return addresses of the calls; None if code passes the address of the object
        to code that may keep it."""
