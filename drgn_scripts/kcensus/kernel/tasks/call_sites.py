# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which locks a function has taken by the place where it goes on, read from its machine code.

Some locks do not say who holds them. But a function on a stack that called ``percpu_down_write()``
with the address of a lock, and not yet ``percpu_up_write()``, holds it. This follows calls in the
order of their addresses, which is that of the source but for branches: it is likely, no proof.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import drgn
import numpy as np
from drgn.helpers.linux.kallsyms import module_kallsyms
from drgn.helpers.linux.module import address_to_module, module_address_regions

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Mode
from kcensus.kernel.names import ABSENT

_MAX_CODE = 1 << 16
"""Bytes of one function to look at."""
_MAX_LAST = 1 << 12
"""Bytes of the last function of a module, whose end is unknown."""
_MAX_SYMBOLS = 1 << 22
_MAX_DEPTH = 1
"""Functions that only take a lock for their caller, such as ``cpus_read_lock()``, in each other."""
_WINDOW = 40
"""Bytes before a call in which its first argument is set."""
_ARGUMENT = re.compile(
    rb"\x48\xc7\xc7(....)|\x48\x8d\x3d(....)"  # mov $address, %rdi; lea offset(%rip), %rdi
    rb"|[\x48\x4c]\x89[\xc7\xcf\xd7\xdf\xe7\xef\xf7\xff]"  # mov %register, %rdi
    rb"|[\x48\x49]\x8d[\x78-\x7f\xb8-\xbf]|[\x48\x49]\x8b[\x78-\x7f\xb8-\xbf]",  # of a structure
    re.DOTALL,
)


class Action(Enum):
    """What a call does."""

    TAKE = "takes"
    DROP = "drops"
    COMPLETE = "completes"


_RWSEM, _SEMAPHORE = "struct rw_semaphore", "struct semaphore"
_PERCPU, _COMPLETION = "struct percpu_rw_semaphore", "struct completion"
_WORD = "unsigned long"
"""With a bit that tasks wait for."""
# Attempts (down_trylock() and the like) may have failed, and are left out.
_CALLS: tuple[tuple[Action, str, Mode, str], ...] = (
    (
        Action.TAKE,
        _RWSEM,
        Mode.READ,
        "down_read down_read_killable down_read_interruptible down_read_nested down_read_non_owner",
    ),
    (
        Action.TAKE,
        _RWSEM,
        Mode.WRITE,
        "down_write down_write_killable down_write_nested",
    ),
    (Action.DROP, _RWSEM, Mode.READ, "up_read up_read_non_owner"),
    (Action.DROP, _RWSEM, Mode.WRITE, "up_write downgrade_write"),
    (Action.TAKE, _PERCPU, Mode.READ, "percpu_down_read __percpu_down_read"),
    (Action.TAKE, _PERCPU, Mode.WRITE, "percpu_down_write"),
    (Action.DROP, _PERCPU, Mode.READ, "percpu_up_read __percpu_up_read"),
    (Action.DROP, _PERCPU, Mode.WRITE, "percpu_up_write"),
    (
        Action.TAKE,
        _SEMAPHORE,
        Mode.NONE,
        "down down_interruptible down_killable down_timeout",
    ),
    (Action.DROP, _SEMAPHORE, Mode.NONE, "up"),
    (Action.COMPLETE, _COMPLETION, Mode.NONE, "complete complete_all"),
    (Action.COMPLETE, _WORD, Mode.NONE, "wake_up_bit wake_up_var"),
)
_WAKE = "rcuwait_wake_up"
"""How an inlined percpu_up_read() wakes the writer: its argument is a member of the lock."""


@dataclass(frozen=True)
class Call:
    """A call of a function for locks."""

    at: int
    """Where the caller goes on."""
    place: int
    """Where it goes on in the order of the source: what rarely runs is at the end of a function,
    and jumps back from there."""
    action: Action
    type: str
    mode: Mode
    object: int
    """Address; 0 where it is computed."""


@dataclass(frozen=True)
class Held:
    """A lock that a function holds where it goes on."""

    type: str
    mode: Mode
    object: int
    """Address; 0 where it is computed."""
    is_sure: bool
    """Whether no call before that place drops such a lock."""
    is_taken: bool
    """Whether a call before that place takes it; else it is only dropped next."""
    is_taking: bool
    """Whether the call at that place takes such a lock, too: calls before it may be of branches
    that exclude this one."""


class CallSites:
    """Machine code of functions, read once each."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.prog = kernel, kernel.prog
        self._calls: dict[int, list[Call]] = {}
        self._modules: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}
        """Where symbols of a module begin, and its regions of memory with their sizes."""
        self.unreadable = 0
        """Functions whose code could not be read."""

    @cached_property
    def targets(self) -> dict[int, tuple[Action, str, Mode, int]]:
        """Actions by the address of their function; the last value is where the lock is."""
        known: dict[int, tuple[Action, str, Mode, int]] = {}
        for action, type_, mode, names in _CALLS:
            for name in names.split():
                for address in self._addresses(name):
                    known[address] = action, type_, mode, 0
        try:
            inside = drgn.offsetof(self.prog.type(_PERCPU), "writer")
        except LookupError:
            return known
        for address in self._addresses(_WAKE):
            known[address] = Action.DROP, _PERCPU, Mode.READ, inside
        return known

    def held(self, pc: int) -> list[Held]:
        """Return what a function holds that goes on at ``pc``, after a call.

        That is what it took before and has not dropped, and what it drops next.
        """
        extent = self._extent(pc - 1)
        if extent is None:
            return []
        taken: dict[tuple[str, Mode, int], bool] = {}
        before: set[tuple[str, Mode, int]] = set()
        following: set[tuple[str, Mode, int]] = set()
        taking: set[str] = set()
        for call in sorted(self._calls_of(*extent), key=lambda call: call.place):
            key = call.type, call.mode, call.object
            if call.at != pc and call.place > pc:
                # An attempt or a rarely run part of the function may have taken it.
                if call.action is Action.DROP and key not in following:
                    taken[key] = True
                following.add(key)
            elif call.at == pc:
                # What it waits for now; a writer may drop it as a reader later.
                following |= {(call.type, mode, call.object) for mode in Mode}
                taking |= {call.type} if call.action is Action.TAKE else set()
            elif call.action is Action.TAKE:
                taken[key] = True
                before.add(key)
            elif call.action is Action.DROP and key in taken:
                taken[key] = False
        return [
            Held(*key, is_sure, key in before, key[0] in taking) for key, is_sure in taken.items()
        ]

    def completes(self, pc: int) -> set[int]:
        """Return the completions, and words with bits, that a function completes after ``pc``."""
        extent = self._extent(pc - 1)
        calls = [] if extent is None else self._calls_of(*extent)
        return {
            call.object for call in calls if call.at > pc and call.action is Action.COMPLETE
        } - {0}

    def _addresses(self, name: str) -> list[int]:
        try:
            return [int(symbol.address) for symbol in self.prog.symbols(name)]
        except LookupError:
            return []

    @cached_property
    def _starts(self) -> list[int]:
        """Where the symbols of the kernel begin, ascending.

        The kernel has them in memory; to ask for the symbol at an address takes 2 ms in a large
        symbol table, and all symbols do not fit in a capsule.
        """
        try:
            base, count = self._base(), self._count()
            place = self._addresses("kallsyms_offsets")[0]
            offsets = np.frombuffer(self.prog.read(place, 4 * count), "<i4").astype(np.int64)
        except (LookupError, IndexError, drgn.FaultError):
            return sorted({int(each.address) for each in self.prog.symbols()})
        # With CONFIG_KALLSYMS_ABSOLUTE_PERCPU (up to v6.14, commit not verified), numbers below 0
        # are relative to the base, the others are addresses of per-CPU variables.
        below = offsets[offsets < 0]
        distance = -1 - below if len(below) else offsets & 0xFFFFFFFF
        return sorted((np.uint64(base) + distance.astype(np.uint64)).tolist())

    def _base(self) -> int:
        # Gone since v7.0 or so (commit not verified): then, it is where the kernel begins.
        variable = self._addresses("kallsyms_relative_base")
        if not variable:
            return self._addresses("_text")[0]
        return int.from_bytes(self.prog.read(variable[0], 8), "little")

    def _count(self) -> int:
        """Return ``kallsyms_num_syms``, an unsigned int or, before v4.20, an unsigned long."""
        place = self._addresses("kallsyms_num_syms")[0]
        count = int.from_bytes(self.prog.read(place, 4), "little")
        if not 0 < count <= _MAX_SYMBOLS:
            raise LookupError("kallsyms_num_syms is impossible")
        return count

    def _extent(self, address: int) -> tuple[int, int] | None:
        """Return where the function at an address begins and ends."""
        starts = self._starts
        after = bisect.bisect_right(starts, address)
        # Modules are behind all of the kernel.
        if 0 < after < len(starts) and address < starts[after - 1] + _MAX_CODE:
            return starts[after - 1], min(starts[after], starts[after - 1] + _MAX_CODE)
        try:
            symbol = self.prog.symbol(address)
            return int(symbol.address), int(symbol.address + min(symbol.size, _MAX_CODE))
        except LookupError:
            pass
        try:
            module = address_to_module(self.prog, address)
            if not module:
                return None
            base = int(module)
            if base not in self._modules:
                symbols = sorted({int(symbol.address) for symbol in module_kallsyms(module)})
                self._modules[base] = symbols, module_address_regions(module)
        except (*ABSENT, AttributeError, ValueError):
            return None
        starts, regions = self._modules[base]
        row = bisect.bisect_right(starts, address)
        if not row > 0:
            return None
        start = starts[row - 1]
        end = starts[row] if row < len(starts) else start + _MAX_LAST
        # The symbol after the last function may be data, far behind.
        ends = (low + size for low, size in regions if low <= address < low + size)
        return start, min(end, start + _MAX_CODE, *ends)

    def _calls_of(self, start: int, end: int, depth: int = 0) -> list[Call]:
        """Return the calls of one function, in the order of their addresses."""
        if start in self._calls:
            return self._calls[start]
        self._calls[start] = []  # a function that calls itself
        calls = []
        for at, place, target, object_ in self._branches(start, end):
            known = self.targets.get(target)
            if known is not None:
                action, type_, mode, inside = known
                address = (object_ - inside) if object_ else 0
                calls.append(Call(at, place, action, type_, mode, address))
            elif depth < _MAX_DEPTH and not start <= target < end:
                calls += self._through(at, place, target, depth)
        self._calls[start] = calls
        return calls

    def _through(self, at: int, place: int, target: int, depth: int) -> Iterator[Call]:
        """Yield what a function that is called leaves taken, or drops, for its caller."""
        extent = self._extent(target)
        if extent is None or extent[0] != target:
            return
        balance: dict[tuple[str, Mode, int], list[Action]] = {}
        for call in self._calls_of(*extent, depth + 1):
            if call.action is not Action.COMPLETE:
                balance.setdefault((call.type, call.mode, call.object), []).append(call.action)
        for (type_, mode, object_), actions in balance.items():
            if len(set(actions)) == 1:
                yield Call(at, place, actions[0], type_, mode, object_)

    def _branches(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield where a function goes on after each call or jump, its target, and its argument.

        The first of them is the address of the next instruction, the second one where that jumps
        to, if it jumps back, or else the same.
        """
        try:
            code = self.prog.read(start, end - start)
        except drgn.FaultError:
            self.unreadable += 1
            return
        for found in re.finditer(rb"[\xe8\xe9](?=(....))", code, re.DOTALL):
            after = found.start() + 5
            target = start + after + int.from_bytes(found[1], "little", signed=True)
            if target >> 31 != (1 << 33) - 1:
                continue  # not in the kernel's code
            arguments = [*_ARGUMENT.finditer(code, max(found.start() - _WINDOW, 0), found.start())]
            object_ = 0
            if arguments:
                last = arguments[-1]
                if last[1]:
                    number = int.from_bytes(last[1], "little", signed=True)
                    object_ = number % (1 << 64)
                elif last[2]:
                    number = int.from_bytes(last[2], "little", signed=True)
                    object_ = start + last.end() + number
            place = after
            if code[after : after + 1] == b"\xe9":
                place += 5 + int.from_bytes(code[after + 1 : after + 5], "little", signed=True)
            elif code[after : after + 1] == b"\xeb":
                place += 2 + int.from_bytes(code[after + 1 : after + 2], "little", signed=True)
            if not 0 <= place < after:
                place = after
            yield start + after, start + place, target, object_
