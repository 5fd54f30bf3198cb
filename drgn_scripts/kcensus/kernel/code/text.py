# SPDX-License-Identifier: LGPL-2.1-or-later
"""Machine code of functions: their calls and jumps, through veneers, and their flow."""

from __future__ import annotations

from functools import cached_property

import drgn

from kcensus.kernel.arch.instructions import Decoder, Kind, Traced, UnclearError, UndecodableError
from kcensus.kernel.arch.readers import readers_of
from kcensus.kernel.code.flow import Extent, Flow
from kcensus.kernel.code.functions import Functions
from kcensus.kernel.kernel import Kernel, once


class Text:
    """Machine code of the kernel and its modules, read once for each function."""

    def __init__(self, prog: drgn.Program) -> None:
        self.prog, self.functions = prog, Functions(prog)
        readers = readers_of(prog.platform)
        self._decoder = readers.decoder if readers is not None else None
        self._code: dict[Extent, bytes] = {}
        self._veneers: dict[int, int] = {}
        self._passing: dict[Extent, bool] = {}

    @property
    def is_decoded(self) -> bool:
        """Whether there is a decoder, without which only :meth:`read` works."""
        return self._decoder is not None

    @property
    def decoder(self) -> Decoder:
        """The decoder of the architecture."""
        assert self._decoder is not None, "machine code of an architecture without a decoder"
        return self._decoder

    def read(self, extent: Extent) -> bytes:
        """Return the code of a function or part.

        :raises drgn.FaultError: it is not in the dump
        """
        if extent not in self._code:
            self._code[extent] = self.prog.read(extent[0], extent[1] - extent[0])
        return self._code[extent]

    def called(self, extent: Extent) -> set[int]:
        """Return the functions that the code of one may call, or jump to."""
        calls = self.decoder.calls(self.read(extent), extent[0])
        return {self._resolved(target) for _, target in calls}

    def jumped(self, extent: Extent) -> set[int]:
        """Return the targets of possible jumps and branches of code."""
        return {target for _, target in self.decoder.jumps(self.read(extent), extent[0])}

    def is_passing(self, extent: Extent) -> bool:
        """Return whether a function has neither a loop nor a call, so that no task stays in it.

        A jump to another function leaves it: that one is on the stack then. A jump to a part of it
        that is placed apart, or from there, may be one of a loop.

        :raises drgn.FaultError: it is not in the dump
        """
        if extent not in self._passing:
            self._passing[extent] = self._is_passing(extent)
        return self._passing[extent]

    def _is_passing(self, extent: Extent) -> bool:
        code, start = self.read(extent), extent[0]
        end = start
        while end < extent[1]:
            try:
                step = self.decoder.decode(code, end - start, start)
            except UndecodableError:
                return False
            if step.kind in (Kind.CALL, Kind.TABLE):
                return False
            if step.kind in (Kind.JUMP, Kind.BRANCH):
                is_inside = extent[0] <= step.target < extent[1]
                is_back = is_inside and step.target < step.end
                if is_back or not (is_inside or self._is_function(step.target)):
                    return False
            end = step.end
        return True

    def _is_function(self, address: int) -> bool:
        """Return whether a function begins at an address, not a part of one that rarely runs."""
        found = self.functions.extent(address)
        if found is None or found[0] != address:
            return False
        try:
            return ".cold" not in self.prog.symbol(address).name
        except LookupError:
            return False

    def flow(self, extent: Extent, part: Extent | None = None) -> Flow:
        """Follow a function.

        :raises UnclearError: it jumps by a table, or has unknown instructions
        :raises drgn.FaultError: it is not in the dump
        """
        return Flow(
            extent,
            self.decoder,
            self.read,
            self.functions.extent,
            part,
            self._resolved,
            self._per_cpu,
        )

    @cached_property
    def _per_cpu(self) -> frozenset[int]:
        name = self.decoder.per_cpu
        return frozenset(self.functions.places(name) if name else ())

    def traced(self, place: int) -> Traced:
        """Return the instructions of the function at an address, with registers."""
        extent = self.functions.extent(place)
        if extent is None:
            raise UnclearError("code of no function")
        return self.flow(extent).traced()

    def is_no_try(self, end: int, flow: Flow) -> bool:
        """Return whether the second argument of the call with a return address is 0."""
        part = flow.part(end - 1)
        return self.decoder.is_no_try(self.read(part)[: end - part[0]])

    def _resolved(self, target: int) -> int:
        """Return the function that a veneer of a module jumps to, or the address as it is."""
        starts = self.functions.starts
        if not self.decoder.veneer or (starts and starts[0] <= target <= starts[-1]):
            return target
        if target not in self._veneers:
            try:
                code = self.prog.read(target, self.decoder.veneer)
            except drgn.FaultError:
                code = b""
            self._veneers[target] = self.decoder.behind(code, target) or target
        return self._veneers[target]


@once
def text_of(kernel: Kernel) -> Text:
    """Return the machine code of a kernel, which its readers share."""
    return Text(kernel.prog)
