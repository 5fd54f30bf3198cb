# SPDX-License-Identifier: LGPL-2.1-or-later
"""The blocks of a function, their calls, and their order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from kcensus.kernel.arch.instructions import (
    Decoder,
    Instruction,
    Kind,
    Traced,
    UnclearError,
    UndecodableError,
)
from kcensus.kernel.arch.registers import SLOT, SLOTS, How, Values, Write, joined, only, write

Extent = tuple[int, int]
_SLOT = frozenset({SLOT})
_MAX_VISITS = 1 << 14
"""Visits of blocks to find the values of registers: compilers' functions need few for each."""
_MAX_PARTS = 8
"""Most parts of one function: compilers split off one."""


class Site(NamedTuple):
    """A call, a jump to another function, or a count of a per-CPU variable."""

    end: int
    """Return address."""
    target: int
    """Target; 0 if computed, and for a count."""
    argument: int
    """First argument; 0 if computed."""
    inside: int | None
    """Distance of a computed argument from the address of an object; None if unknown."""
    counted: int
    """1 or -1 for a count."""


@dataclass
class Block:
    """Instructions that run one after the other."""

    start: int
    sites: list[Site] = field(default_factory=list)
    following: list[int] = field(default_factory=list)
    """Starts of possible next blocks; none at the end of the function."""


class Flow:
    """The blocks of one function."""

    def __init__(
        self,
        extent: Extent,
        decoder: Decoder,
        code_of: Callable[[Extent], bytes],
        extent_of: Callable[[int], Extent | None],
        part: Extent | None = None,
        resolve: Callable[[int], int] = int,
        per_cpu: Container[int] = (),
    ) -> None:
        """Follow a function from its beginning.

        :param code_of: reads code; raises drgn.FaultError
        :param extent_of: returns the function or part at an address
        :param part: a part of the function, in addition to the parts found
        :param resolve: returns the function that a veneer jumps to, or the address as it is
        :param per_cpu: functions that return the distance of this CPU's variables
        :raises UnclearError: it jumps by a table, has unknown instructions, or goes in circles
        """
        self.extent, self.decoder, self._resolve = extent, decoder, resolve
        self._per_cpu = per_cpu
        self._code = {each: code_of(each) for each in (extent, part) if each is not None}
        self._code_of, self._extent_of = code_of, extent_of
        self._known: dict[int, Instruction] = {}
        self._steps: dict[int, list[Instruction]] = {}
        """Instructions of each block, by its start."""
        self._starting: dict[int, Values] = {}
        """Registers at the start of each block, of decoders that trace them."""
        self._follow()
        if decoder.first >= 0:
            self._forget_shared()
        self.blocks = self._made()

    @cached_property
    def preceding(self) -> dict[int, list[int]]:
        """Predecessors of each block."""
        found: dict[int, list[int]] = {start: [] for start in self.blocks}
        for start, block in self.blocks.items():
            for after in block.following:
                found[after].append(start)
        return found

    @cached_property
    def sites(self) -> dict[int, tuple[int, int]]:
        """Block and number in the block of each site, by return address."""
        return {
            site.end: (start, number)
            for start, block in self.blocks.items()
            for number, site in enumerate(block.sites)
            if not site.counted
        }

    def part(self, address: int) -> Extent:
        """Return the part of this function around an address."""
        return next(each for each in self._code if each[0] <= address < each[1])

    def _part(self, address: int, *, is_branch: bool = False) -> Extent | None:
        """Return the part targeted by a jump, or by a branch, which never leaves the function."""
        for known in self._code:
            if known[0] <= address < known[1]:
                return known
        extent = self._extent_of(address) if len(self._code) < _MAX_PARTS else None
        if extent is None or (
            not is_branch and extent[0] == address and not self._comes_back(extent)
        ):
            return None
        self._code[extent] = self._code_of(extent)
        return extent

    def _comes_back(self, part: Extent) -> bool:
        """Return whether the code at a jump's target jumps back: a rarely run part placed apart."""
        code, at = self._code_of(part), 0
        start, end = self.extent
        while at < len(code):
            try:
                step = self.decoder.decode(code, at, part[0])
            except UndecodableError:
                return False
            if step.kind in (Kind.JUMP, Kind.BRANCH) and start < step.target < end:
                return True
            at = step.end - part[0]
        return False

    def _follow(self) -> None:
        pending = [self.extent[0]]
        while pending:
            address = pending.pop()
            while address not in self._known:
                part = self._part(address)
                if part is None:
                    break
                try:
                    step = self.decoder.decode(self._code[part], address - part[0], part[0])
                except UndecodableError as error:
                    raise UnclearError(str(error)) from None
                if step.kind is Kind.TABLE:
                    raise UnclearError("a table of jumps")
                if step.kind in (Kind.CALL, Kind.JUMP) and step.target:
                    step = step._replace(target=self._resolve(step.target))
                    if step.target in self._per_cpu:
                        result = Write(self.decoder.first, How.PER_CPU)
                        step = step._replace(writes=(*step.writes, result))
                self._known[address] = step
                if step.kind is Kind.BRANCH or (
                    step.kind is Kind.JUMP and self._part(step.target) is not None
                ):
                    if self._part(step.target, is_branch=step.kind is Kind.BRANCH) is None:
                        raise UnclearError("a branch to nowhere")
                    pending.append(step.target)
                # A function that never returns may be the last thing in another one.
                if step.kind in (Kind.JUMP, Kind.END) or step.end >= part[1]:
                    break
                address = step.end

    def _forget_shared(self) -> None:
        """Forget values that are kept on the stack where other functions may change them: from the
        first place on whose address is taken."""
        steps = self._known
        places = [
            change.number
            for step in steps.values()
            for change in step.writes
            if change.how is How.STACK
        ]
        least = SLOTS + min(places, default=1 << 16)
        for address, step in steps.items():
            if any(change.register >= least for change in step.writes):
                writes = tuple(each for each in step.writes if each.register < least)
                steps[address] = step._replace(writes=writes)

    def _after(self, step: Instruction) -> list[int]:
        ways = [step.target] if step.kind in (Kind.JUMP, Kind.BRANCH) else []
        if step.kind not in (Kind.JUMP, Kind.END):
            ways.append(step.end)
        return [each for each in ways if each in self._known]

    def _made(self) -> dict[int, Block]:
        starts = {self.extent[0]}
        for step in self._known.values():
            if step.kind in (Kind.JUMP, Kind.BRANCH, Kind.END):
                starts |= {*self._after(step), step.end}
        blocks: dict[int, Block] = {}
        for start in sorted(starts & set(self._known)):
            block = blocks[start] = Block(start)
            steps = self._steps[start] = [self._known[start]]
            while (after := self._after(steps[-1])) == [steps[-1].end] and after[0] not in starts:
                steps.append(self._known[after[0]])
            block.following = after
        values = self._values(blocks) if self.decoder.first >= 0 else {}
        for start, block in blocks.items():
            self._add_sites(block, dict(values[start]) if start in values else None)
        self._starting = values
        return blocks

    def _add_sites(self, block: Block, values: Values | None) -> None:
        argument, inside = 0, None
        steps = self._steps[block.start]
        is_any = any(step.kind is Kind.CALL or step.adds or step.counted for step in steps)
        if not is_any and not self._is_away(steps[-1]):
            return
        for step in steps:
            if values is not None:
                argument = only(values, self.decoder.first)
            counted = step.counted or _counted(step, values)
            if step.kind is Kind.CALL or self._is_away(step):
                block.sites.append(Site(step.end, step.target, argument, inside, 0))
            elif counted:
                block.sites.append(Site(step.end, 0, 0, None, counted))
            if step.argument is not None:
                argument, inside = step.argument, step.inside
            if values is not None:
                for change in step.writes:
                    write(values, change)

    def _is_away(self, step: Instruction) -> bool:
        return step.kind is Kind.JUMP and step.target not in self._known

    def _values(self, blocks: dict[int, Block]) -> dict[int, Values]:
        """Return the possible values of registers at the start of each reachable block."""
        changes = {
            start: [change for step in steps for change in step.writes]
            for start, steps in self._steps.items()
        }
        known: dict[int, Values] = {self.extent[0]: {}}
        # In the order of addresses, most blocks are after all those that lead to them.
        pending, is_pending = [self.extent[0]], {self.extent[0]}
        for _ in range(_MAX_VISITS):
            if not pending:
                return known
            start = heapq.heappop(pending)
            is_pending.discard(start)
            values = dict(known[start])
            for change in changes[start]:
                write(values, change)
            for after in blocks[start].following:
                before = known.get(after)
                if before == values:
                    continue
                more = values if before is None else joined(before, values)
                if more != before:
                    known[after] = more
                    if after not in is_pending:
                        is_pending.add(after)
                        heapq.heappush(pending, after)
        raise UnclearError("values of registers that keep changing")

    def traced(self) -> Traced:
        """Yield the reachable instructions, with the possible values of registers before each.

        Jumps inside the function are yielded as branches.
        """
        for start, known in self._starting.items():
            values = dict(known)
            for step in self._steps[start]:
                is_inside = step.kind is Kind.JUMP and not self._is_away(step)
                yield step._replace(kind=Kind.BRANCH) if is_inside else step, values
                for change in step.writes:
                    write(values, change)


def _counted(step: Instruction, values: Values | None) -> int:
    """Return the change of a per-CPU variable behind a register, from values of registers."""
    if step.adds is None or values is None or values.get(step.adds[0]) != _SLOT:
        return 0
    return {1: 1, 0xFFFFFFFF: -1}.get(only(values, step.adds[1]), 0)
