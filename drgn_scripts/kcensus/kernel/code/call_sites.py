# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks held by a function at a return address, read from its machine code.

Some locks do not name their holder. A function on a stack holds a lock if it called
``percpu_down_write()``, but not ``percpu_up_write()``, on all ways to its place, or drops the lock
on all ways from there. If it does on some ways only, it may hold the lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import drgn

from kcensus.kernel.arch.instructions import Search, UnclearError
from kcensus.kernel.code.flow import Extent, Flow
from kcensus.kernel.code.text import text_of
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Mode

_MAX_LOCKS = 64
"""Locks of one function."""
_MAX_DEPTH = 1
"""Nesting of functions that only take a lock for their caller, such as ``cpus_read_lock()``."""


class Action(Enum):
    """The effect of a call."""

    TAKE = "takes"
    ATTEMPT = "takes or fails"
    DROP = "drops"
    COMPLETE = "completes"


_RWSEM, _SEMAPHORE = "struct rw_semaphore", "struct semaphore"
_PERCPU, _COMPLETION = "struct percpu_rw_semaphore", "struct completion"
_WORD = "unsigned long"
"""A word with a bit that tasks wait for."""
_CALLS: tuple[tuple[Action, str, Mode, str], ...] = (
    (Action.TAKE, _RWSEM, Mode.READ, "down_read down_read_nested down_read_non_owner"),
    (Action.ATTEMPT, _RWSEM, Mode.READ, "down_read_killable down_read_killable_nested"),
    (Action.ATTEMPT, _RWSEM, Mode.READ, "down_read_interruptible down_read_trylock"),
    (Action.TAKE, _RWSEM, Mode.WRITE, "down_write down_write_nested _down_write_nest_lock"),
    (Action.ATTEMPT, _RWSEM, Mode.WRITE, "down_write_killable down_write_killable_nested"),
    (Action.ATTEMPT, _RWSEM, Mode.WRITE, "down_write_trylock"),
    (Action.DROP, _RWSEM, Mode.READ, "up_read up_read_non_owner"),
    (Action.DROP, _RWSEM, Mode.WRITE, "up_write downgrade_write"),
    (Action.TAKE, _RWSEM, Mode.READ, "downgrade_write"),
    (Action.TAKE, _PERCPU, Mode.READ, "percpu_down_read"),
    (Action.ATTEMPT, _PERCPU, Mode.READ, "__percpu_down_read"),
    (Action.TAKE, _PERCPU, Mode.WRITE, "percpu_down_write"),
    (Action.ATTEMPT, _PERCPU, Mode.WRITE, "percpu_down_write_trylock"),
    (Action.DROP, _PERCPU, Mode.READ, "percpu_up_read __percpu_up_read"),
    (Action.DROP, _PERCPU, Mode.WRITE, "percpu_up_write"),
    (Action.TAKE, _SEMAPHORE, Mode.NONE, "down"),
    (Action.ATTEMPT, _SEMAPHORE, Mode.NONE, "down_interruptible down_killable"),
    (Action.ATTEMPT, _SEMAPHORE, Mode.NONE, "down_timeout down_trylock"),
    (Action.DROP, _SEMAPHORE, Mode.NONE, "up"),
    (Action.COMPLETE, _COMPLETION, Mode.NONE, "complete complete_all"),
    (Action.COMPLETE, _WORD, Mode.NONE, "wake_up_bit wake_up_var"),
)
_WAKE = "rcuwait_wake_up"
"""Wakes the writer in an inlined percpu_up_read(); its argument is a member of the lock."""

Key = tuple[str, Mode, int]
"""Type, mode and address of a lock; the address is 0 if computed."""
Effects = dict[Key, frozenset[int]]
"""Possible changes of the hold count of each lock by a call."""
_CHANGES = {
    Action.TAKE: frozenset({1}),
    Action.ATTEMPT: frozenset({0, 1}),
    Action.DROP: frozenset({-1}),
    Action.COMPLETE: frozenset({0}),
}
_READ = _PERCPU, Mode.READ
_LEAST, _MOST = -3, 3
"""Bounds of a hold count, relative to the start of the function: "at least" and "at most"."""


@dataclass(frozen=True)
class Held:
    """A lock of a function at a return address."""

    type: str
    mode: Mode
    object: int
    """Address; 0 if computed."""
    is_sure: bool
    """Whether it takes the lock on all ways to the address, or on some and then drops it on all."""
    is_taken: bool
    """Whether the function takes the lock on some way to the address, or only drops it next."""
    is_taking: bool
    """Whether the call before the address takes such a lock, too."""
    is_dropped: bool = False
    """Whether the function may have dropped a lock of its caller."""
    inside: frozenset[int] = frozenset()
    """Distances of computed addresses from those of the objects that have such a lock."""

    def may_be(self, other: Held) -> bool:
        """Return whether another function's lock may be the same."""
        objects = {self.object, other.object} - {0}
        return (self.type, self.mode) == (other.type, other.mode) and len(objects) < 2


@dataclass
class _Body:
    flow: Flow
    effects: dict[int, Effects]
    """Effects by return address."""
    completed: dict[int, int]
    """Completed object by return address."""
    inside: dict[Key, frozenset[int]]
    """Known distances of computed addresses of taken locks from those of their objects."""

    @cached_property
    def keys(self) -> set[Key]:
        return {key for effects in self.effects.values() for key in effects}

    def counts(self, key: Key) -> dict[int, frozenset[int]]:
        """Return the possible hold counts of a lock at the start of each reachable block."""
        known = {self.flow.extent[0]: frozenset({0})}
        pending = [*known]
        while pending:
            block = self.flow.blocks[pending.pop()]
            count = self.after(block.start, len(block.sites), key, known[block.start])
            for start in block.following:
                more = known.get(start, frozenset()) | count
                if more != known.get(start):
                    known[start] = more
                    pending.append(start)
        return known

    def after(self, start: int, number: int, key: Key, count: frozenset[int]) -> frozenset[int]:
        for site in self.flow.blocks[start].sites[:number]:
            changes = self.changes(site.end, key)
            if changes:
                count = frozenset(many for each in count for many in _changed(each, changes))
        return count

    def changes(self, end: int, key: Key) -> frozenset[int]:
        """Return the possible changes of a lock's hold count by a call; empty for none."""
        effects = self.effects.get(end, {})
        if key in effects:
            return effects[key]
        # A lock with a computed address may be any.
        others = [
            changes
            for other, changes in effects.items()
            if other[:2] == key[:2] and 0 in (other[2], key[2])
        ]
        return frozenset({0}).union(*others) if others else frozenset()

    def exits(self, key: Key) -> frozenset[int]:
        found: set[int] = set()
        for start, count in self.counts(key).items():
            block = self.flow.blocks[start]
            if not block.following:
                found |= self.after(start, len(block.sites), key, count)
        return frozenset(found)

    def is_next(self, at: tuple[int, int], key: Key) -> bool:
        """Return whether a lock is dropped, without being taken, on all ways from a site."""
        return self._on_all(at, lambda end: self._dropped(end, key))

    def is_completed(self, at: tuple[int, int], object_: int) -> bool:
        return self._on_all(at, lambda end: self.completed.get(end) == object_ or None)

    def _dropped(self, end: int, key: Key) -> bool | None:
        changes = self.changes(end, key)
        if not any(changes):
            return None
        # If the call did not drop it, a later one does.
        return False if max(changes) > 0 else None if 0 in changes else True

    def _on_all(self, at: tuple[int, int], judge: Callable[[int], bool | None]) -> bool:
        """Return whether the judge approves all ways from a site, of which there is at least one.

        The judge returns None for calls that do not decide.
        """
        seen, is_any = set[int](), False
        pending = [at]
        while pending:
            start, number = pending.pop()
            block = self.flow.blocks[start]
            verdicts = (judge(site.end) for site in block.sites[number:])
            verdict = next((each for each in verdicts if each is not None), None)
            if verdict is False or (verdict is None and not block.following):
                return False
            if verdict:
                is_any = True
                continue
            pending += [(each, 0) for each in block.following if each not in seen]
            seen |= {*block.following}
        return is_any


def _changed(count: int, changes: frozenset[int]) -> set[int]:
    found = {min(max(count + change, _LEAST), _MOST) for change in changes}
    is_more = count == _MOST and min(changes) < 0
    is_less = count == _LEAST and max(changes) > 0
    return found | {count} if is_more or is_less else found


class CallSites:
    """Machine code of functions, read once each."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.prog = kernel, kernel.prog
        self._bodies: dict[tuple[int, int, int], _Body | None] = {}
        self._effects: dict[tuple[int, int], Effects] = {}
        self._unreadable: set[int] = set()
        self._text = text_of(kernel)
        self._functions = self._text.functions

    @property
    def unreadable(self) -> int:
        """Number of functions with unreadable code."""
        return len(self._unreadable)

    @cached_property
    def targets(self) -> dict[int, list[tuple[Action, str, Mode]]]:
        """Actions by the address of their function."""
        known: dict[int, list[tuple[Action, str, Mode]]] = defaultdict(list)
        for action, type_, mode, names in _CALLS:
            for name in names.split():
                for address in self.addresses(name):
                    known[address].append((action, type_, mode))
        return dict(known)

    @cached_property
    def _slow(self) -> list[int]:
        return self.addresses("__percpu_down_read")

    @cached_property
    def _wakes(self) -> tuple[set[int], int]:
        """Addresses of ``rcuwait_wake_up()``, and offset of its argument in the lock."""
        try:
            inside = drgn.offsetof(self.prog.type(_PERCPU), "writer")
        except LookupError:
            return set(), 0
        return set(self.addresses(_WAKE)), inside

    def held(self, pc: int, name: str = "") -> list[Held]:
        """Return the locks of a function at a return address.

        :param name: of the function; a part that rarely runs has its own
        """
        body = self._body_at(pc, name)
        if body is None:
            return []
        at = body.flow.sites[pc]
        taking = {key for key, changes in body.effects.get(pc, {}).items() if max(changes) > 0}
        found = []
        for key in body.keys:
            counts = body.counts(key).get(at[0], frozenset())
            count = body.after(*at, key, counts)
            is_taken, is_next = max(count, default=0) > 0, body.is_next(at, key)
            is_dropped = min(count, default=0) < 0
            if not is_taken and not is_next and not is_dropped:
                continue
            # A lock that the function only drops may be taken in unknown ways by its callees.
            is_sure = is_taken and (min(count) > 0 or is_next)
            is_taking = any(each[0] == key[0] for each in taking)
            inside = body.inside.get(key, frozenset())
            found.append(Held(*key, is_sure, is_taken, is_taking, is_dropped, inside))
        return found

    def takers(self, pc: int, name: str, type_: str, mode: Mode) -> set[int]:
        """Return the functions whose call is the last one before ``pc`` that may take such a lock.

        :return: on each way; 0 for a way without one, or with a drop after it. Empty if unknown
        """
        body = self._body_at(pc, name)
        if body is None:
            return set()
        keys = [key for key in body.keys if key[:2] == (type_, mode)]
        found, seen = set[int](), set[int]()
        start, number = body.flow.sites[pc]
        # The call itself runs afterwards.
        pending = [(start, number)]
        while pending:
            start, number = pending.pop()
            block = body.flow.blocks[start]
            for site in reversed(block.sites[:number]):
                changes = frozenset[int]().union(*(body.changes(site.end, key) for key in keys))
                if any(changes):
                    found.add(site.target if max(changes) > 0 else 0)
                    break
            else:
                before = [each for each in body.flow.preceding[start] if each not in seen]
                seen |= {*before}
                pending += [(each, len(body.flow.blocks[each].sites)) for each in before]
                if start == body.flow.extent[0]:
                    found.add(0)
        return found

    def completes(self, pc: int, name: str = "") -> dict[int, bool]:
        """Return completions, and words with bits, that a function completes after ``pc``.

        :return: for each, whether on all ways
        """
        body = self._body_at(pc, name)
        if body is None:
            return {}
        start, number = at = body.flow.sites[pc]
        reached, pending = set[int](), [*body.flow.blocks[start].following]
        ends = {site.end for site in body.flow.blocks[start].sites[number:]}
        while pending:
            block = body.flow.blocks[pending.pop()]
            if block.start not in reached:
                reached.add(block.start)
                ends |= {site.end for site in block.sites}
                pending += block.following
        objects = {body.completed[end] for end in ends if end in body.completed} - {0}
        return {object_: body.is_completed(at, object_) for object_ in objects}

    # Functions

    def _body_at(self, pc: int, name: str) -> _Body | None:
        extent = self._functions.extent(pc - 1) if self._text.is_decoded else None
        # A function for locks itself counts and tries while it waits, without holding the lock.
        if extent is None or extent[0] in self.targets:
            return None
        try:
            wholes = self._wholes(extent, name) if ".cold" in name else []
        except drgn.FaultError:
            return None
        ways: list[tuple[Extent, Extent | None]] = [(each, extent) for each in wholes]
        for whole, part in ways or [(extent, None)]:
            body = self._body(whole, 0, part)
            if body is not None and pc in body.flow.sites:
                return body
        return None

    def _wholes(self, part: Extent, name: str) -> list[Extent]:
        """Return the functions to which a part placed apart may belong, by jumps and by name."""
        targets = self._text.jumped(part)
        base = name.split(".cold")[0]
        named = {*self.addresses(base)}
        symbols = zip(*self._functions.module_symbols(part[0]), strict=True)
        named |= {start for start, each in symbols if each == base}
        wholes = {self._functions.extent(each) for each in targets if not part[0] <= each < part[1]}
        return sorted(
            each
            for each in wholes | {self._functions.extent(start) for start in named}
            if each is not None and (each[0] not in targets or each[0] in named)
        )

    def _body(self, extent: Extent, depth: int, part: Extent | None = None) -> _Body | None:
        """Return a function with the effects of its calls; None if it has none, or is unclear."""
        key = extent[0], depth, part[0] if part else 0
        if key not in self._bodies:
            self._bodies[key] = None  # a function that calls itself
            try:
                self._bodies[key] = self._made(extent, depth, part)
            except UnclearError:
                pass
            except drgn.FaultError:
                # Most functions that are only called have nothing to do with locks.
                self._unreadable |= {extent[0]} if depth == 0 else set()
        return self._bodies[key]

    def _made(self, extent: Extent, depth: int, part: Extent | None) -> _Body | None:
        known, (wakes, within) = self.targets, self._wakes
        called = {
            target
            for each in (extent, part)
            if each is not None
            for target in self._text.called(each)
        }
        through = {
            target: own
            for target in called - set(known) - wakes
            if depth < _MAX_DEPTH and (own := self._effects_of(target, depth + 1))
        }
        if not called & (set(known) | wakes) and not through:
            return None
        flow = self._text.flow(extent, part)
        effects: dict[int, Effects] = {}
        completed: dict[int, int] = {}
        inner: dict[Key, frozenset[int]] = {}
        counted: dict[int, int] = {}
        woken: dict[int, int] = {}
        for block in flow.blocks.values():
            for site in block.sites:
                if site.counted:
                    counted[site.end] = site.counted
                elif site.target in wakes:
                    woken[site.end] = site.argument - within if site.argument else 0
                elif site.target in through:
                    effects[site.end] = through[site.target]
                for action, type_, mode in known.get(site.target, ()):
                    if action is Action.COMPLETE:
                        completed[site.end] = site.argument
                    else:
                        is_sure = site.target in self._slow and self._text.is_no_try(site.end, flow)
                        lock = type_, mode, site.argument
                        changes = _CHANGES[Action.TAKE if is_sure else action]
                        effects.setdefault(site.end, {})[lock] = changes
                        if max(changes) > 0 and site.inside is not None and not site.argument:
                            inner[lock] = inner.get(lock, frozenset()) | {site.inside}
        self._add_counts(effects, counted, woken)
        body = _Body(flow, effects, completed, inner)
        return body if len(body.keys) <= _MAX_LOCKS else None

    def _add_counts(
        self, effects: dict[int, Effects], counted: dict[int, int], woken: dict[int, int]
    ) -> None:
        """Note the effects of inlined functions of percpu_rw_semaphores, which count readers.

        Their lock is the argument of the call that waits for a writer, or wakes it after the count.
        """
        slow = {end: key for end, own in effects.items() for key in own if key[:2] == _READ}
        slow |= {end: (*_READ, object_) for end, object_ in woken.items()}
        if len(set(slow.values())) == 1:
            key = slow[min(slow)]
            for end, change in counted.items():
                effects[end] = {key: frozenset({change})}
        for end, object_ in woken.items():
            is_counted = -1 in counted.values() and len(set(slow.values())) == 1
            effects[end] = {(*_READ, object_): frozenset({0} if is_counted else {0, -1})}

    def _effects_of(self, target: int, depth: int) -> Effects:
        """Return the locks that a function takes or drops for its caller."""
        known = self._effects.get((target, depth))
        if known is None:
            extent = self._functions.extent(target)
            is_whole = extent is not None and extent[0] == target
            body = self._body(extent, depth) if extent is not None and is_whole else None
            keys = body.keys if body else set[Key]()
            known = {key: changes for key in keys if body and any(changes := body.exits(key))}
            self._effects[target, depth] = known
        return known

    # All code

    def completing(
        self,
        code: bytes,
        start: int,
        object_: int,
        targets: Container[int],
        harmless: Container[int],
    ) -> set[int] | None:
        """Return the return addresses of calls in code of a module with an object as argument.

        :param targets: the functions to look for
        :param harmless: functions that do not keep the object
        :return: None if code passes the object to code that may keep it, or is unclear
        """
        if not self._text.is_decoded:
            return None
        search = Search(code, start, object_, targets, harmless, self._text.traced)
        return self._text.decoder.completing(search)

    def start_of(self, pc: int) -> int | None:
        """Return the start of the function with a return address, or None."""
        extent = self._functions.extent(pc - 1)
        return None if extent is None else extent[0]

    def calls(self, name: str, callees: Iterable[str]) -> bool | None:
        """Return whether the code of a function calls one of others; None if unknown."""
        if not self._text.is_decoded:
            return None
        wanted = {address for each in callees for address in self.addresses(each)}
        try:
            extents = [self._functions.extent(address) for address in self.addresses(name)]
            targets = {to for each in extents if each for to in self._text.called(each)}
        except drgn.FaultError:
            return None
        return not wanted.isdisjoint(targets) if wanted and targets else None

    def addresses(self, name: str) -> list[int]:
        """Return the addresses of the functions with a name; none without symbols."""
        return self._functions.addresses(name)
