# SPDX-License-Identifier: LGPL-2.1-or-later
"""What functions hold where they go on, of *synthetic* functions."""

from __future__ import annotations

from collections.abc import Sequence

from kcensus.kernel.locking.owners import Mode
from kcensus.kernel.tasks.call_sites import CallSites, Held
from tests.unit.kernel.code.assembler import (
    COUNT_DOWN,
    COUNT_UP,
    LOCK,
    MOVE,
    NOT_TRY,
    OTHER,
    RET,
    TABLE,
    TEST,
    Code,
    Item,
    of,
)

_OTHERS = [
    "down_read",
    "down_read_trylock",
    "up_read",
    "down_write",
    "up_write",
    "down_read_killable",
    "complete",
    "percpu_down_write",
    "percpu_up_write",
    "__percpu_down_read",
    "__percpu_up_read",
    "sleep",
]
_READ, _DROP = (of(LOCK), "call down_read"), (of(LOCK), "call up_read")
_SLEEP: Sequence[Item] = ("call sleep", "here:")


def sites(**functions: Sequence[Item]) -> tuple[CallSites, int]:
    """Some functions, and where the one with a label sleeps."""
    code = Code(functions, _OTHERS)
    return CallSites(code.kernel()), code.labels["here"]


def held(**functions: Sequence[Item]) -> list[Held]:
    calls, pc = sites(**functions)
    found = calls.held(pc, next(iter(functions)))
    assert calls.unreadable == 0
    return found


def only(**functions: Sequence[Item]) -> Held:
    found = held(**functions)
    assert len(found) == 1
    return found[0]


def test_what_all_ways_take() -> None:
    found = only(f=(*_READ, *_SLEEP, *_DROP, RET))
    assert (found.type, found.mode, found.object) == ("struct rw_semaphore", Mode.READ, LOCK)
    assert found.is_sure
    assert found.is_taken
    assert not found.is_taking
    # It need not drop it itself.
    assert only(f=(*_READ, *_SLEEP, RET)).is_sure


def test_what_is_dropped_again() -> None:
    # An error path behind drops it, too; it does not follow the place where it sleeps.
    error = ("error:", *_DROP, RET)
    assert held(f=(*_READ, TEST, "jne error", *_DROP, *_SLEEP, RET, *error)) == []


def test_what_some_ways_drop() -> None:
    found = only(f=(*_READ, TEST, "jne kept", *_DROP, "kept:", *_SLEEP, RET))
    assert not found.is_sure


def test_branches_that_exclude_each_other() -> None:
    apart = (TEST, "jne other", *_READ, "jmp out", "other:", *_SLEEP, "out:", RET)
    assert held(f=apart) == []
    joined = (TEST, "jne other", *_READ, "other:", *_SLEEP, RET)
    assert not only(f=joined).is_sure


def test_a_loop() -> None:
    # Here, it sleeps before it takes the lock, and after it has dropped it.
    assert held(f=("again:", *_SLEEP, *_READ, *_DROP, TEST, "jne again", RET)) == []


def test_attempts() -> None:
    way = (of(LOCK), "call down_read_trylock", TEST, "jne out", *_SLEEP, *_DROP, "out:", RET)
    assert only(f=way).is_sure
    # If it may go on without the lock, it is not sure.
    either = (of(LOCK), "call down_read_killable", TEST, *_SLEEP, "jne out", *_DROP, "out:", RET)
    found = only(f=either)
    assert found.is_taken
    assert not found.is_sure


def test_a_function_that_attempts_holds_nothing_for_its_caller() -> None:
    splice = (MOVE, "call down_read_trylock", TEST, "jne no", MOVE, "call up_read", "no:", RET)
    found = held(look_up=(*_SLEEP, "call splice", RET), splice=splice)
    assert not [each for each in found if each.is_sure or each.is_taken]


def test_what_it_only_drops_is_not_sure() -> None:
    found = only(f=(*_SLEEP, *_DROP, RET))
    assert not found.is_taken
    assert not found.is_sure


def test_the_caller_s_lock_that_it_has_dropped() -> None:
    found = only(f=(MOVE, "call up_read", *_SLEEP, MOVE, "call down_read", RET))
    assert found.is_dropped
    assert not found.is_sure
    caller = only(g=(*_READ, *_SLEEP, *_DROP, RET))
    assert caller.may_be(found)
    assert not caller.may_be(only(f=(of(OTHER), "call up_read", *_SLEEP, RET)))


def test_functions_that_take_and_drop_for_their_caller() -> None:
    wrappers = {"lock": (*_READ, RET), "unlock": (of(LOCK), "jmp up_read")}
    assert only(f=("call lock", *_SLEEP, "call unlock", RET), **wrappers).is_sure
    assert held(f=("call lock", "call unlock", *_SLEEP, RET), **wrappers) == []


def test_a_lock_that_it_takes_twice() -> None:
    found = only(f=(*_READ, of(LOCK), "call down_read", "here:", *_DROP, *_DROP, RET))
    assert found.is_sure
    assert found.is_taking


def test_a_computed_address_may_be_of_any_lock() -> None:
    found = held(f=(*_READ, MOVE, "call up_read", *_SLEEP, RET))
    assert [each for each in found if each.is_sure] == []


_SLOW_DOWN = ("slow_down:", of(LOCK), NOT_TRY, "call __percpu_down_read", "jmp down")
_SLOW_UP = ("slow_up:", of(LOCK), "call __percpu_up_read", "jmp up")


def test_an_inlined_percpu_down_read_with_its_slow_path_at_the_end() -> None:
    way = (TEST, "jne slow_down", COUNT_UP, "down:", *_SLEEP)
    way += (TEST, "jne slow_up", COUNT_DOWN, "up:", RET, *_SLOW_DOWN, *_SLOW_UP)
    found = only(f=way)
    assert (found.type, found.object) == ("struct percpu_rw_semaphore", LOCK)
    assert found.is_sure
    # Without the count, it is no more than possible.
    blind = (TEST, "jne slow_down", "down:", *_SLEEP)
    blind += (TEST, "jne slow_up", "up:", RET, *_SLOW_DOWN, *_SLOW_UP)
    found = only(f=blind)
    assert found.is_taken
    assert not found.is_sure
    # Nor if it sleeps after it has left.
    left = (TEST, "jne slow_down", COUNT_UP, "down:", TEST, "jne slow_up", COUNT_DOWN, "up:")
    assert held(f=(*left, *_SLEEP, RET, *_SLOW_DOWN, *_SLOW_UP)) == []


def test_functions_for_locks_hold_nothing_themselves() -> None:
    code = Code({"percpu_down_read": (*_READ, *_SLEEP, RET)}, _OTHERS)
    assert CallSites(code.kernel()).held(code.labels["here"]) == []


def test_parts_that_are_placed_apart() -> None:
    parts = {
        "f.cold": ("apart:", *_SLEEP, "jmp back"),
        "f": (*_READ, TEST, "jne apart", "back:", *_DROP, RET),
    }
    assert only(**parts).is_sure
    # One that does not come back, and drops the lock itself.
    away = {"f.cold": ("apart:", *_SLEEP, *_DROP, RET), "f": (*_READ, "jmp apart")}
    assert only(**away).is_sure


def test_ways_that_are_not_known() -> None:
    assert held(f=(*_READ, TEST, "jne other", *_SLEEP, *_DROP, RET, "other:", TABLE)) == []


def test_what_it_completes() -> None:
    done = (of(LOCK), "call complete")
    calls, pc = sites(f=(*_SLEEP, *done, RET))
    assert calls.completes(pc) == {LOCK: True}
    calls, pc = sites(f=(*_SLEEP, TEST, "jne out", *done, "out:", RET))
    assert calls.completes(pc) == {LOCK: False}
    calls, pc = sites(f=(*done, *_SLEEP, RET))
    assert calls.completes(pc) == {}


def test_code_that_is_not_in_the_dump() -> None:
    code = Code({"f": (*_READ, *_SLEEP, RET)}, _OTHERS)
    code.is_lost = True
    calls = CallSites(code.kernel())
    assert calls.held(code.labels["here"]) == []
    assert calls.unreadable == 1
