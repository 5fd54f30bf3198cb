# SPDX-License-Identifier: LGPL-2.1-or-later
"""What functions hold where they go on, of *synthetic* functions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kcensus.kernel.code.call_sites import CallSites, Held
from kcensus.kernel.code.text import text_of
from kcensus.kernel.locking.owners import Mode
from kcensus.kernel.waiting.frames import staying
from tests.unit.kernel.code import assembler
from tests.unit.kernel.code.assembler import LOCK, MOVE, RET, TABLE, TEST, ArmCode, Code, Item, of

_OTHERS = (
    *("down_read", "down_read_trylock", "up_read", "down_write", "up_write", "down_read_killable"),
    *("complete", "percpu_down_write", "percpu_up_write", "__percpu_down_read", "__percpu_up_read"),
    "sleep",
)
_READ, _DROP = (of(LOCK), "call down_read"), (of(LOCK), "call up_read")
_SLEEP: Sequence[Item] = ("call sleep", "here:")
_SLOW_DOWN = ("slow_down:", of(LOCK), assembler.NOT_TRY, "call __percpu_down_read", "jmp down")
_SLOW_UP = ("slow_up:", of(LOCK), "call __percpu_up_read", "jmp up")
_UP, _DOWN = assembler.COUNT_UP, assembler.COUNT_DOWN
_TRIES = (of(LOCK), "call down_read_trylock", TEST, "jne out", *_SLEEP, *_DROP, "out:", RET)
_MAY_FAIL = (of(LOCK), "call down_read_killable", TEST, *_SLEEP, "jne out", *_DROP, "out:", RET)
_SPLICE = (MOVE, "call down_read_trylock", TEST, "jne no", MOVE, "call up_read", "no:", RET)
_HELPERS = {"splice": _SPLICE, "lock": (*_READ, RET), "unlock": (of(LOCK), "jmp up_read")}
_DROPS_ITS_CALLERS = (MOVE, "call up_read", *_SLEEP, MOVE, "call down_read", RET)
_INLINED = (TEST, "jne slow_down", _UP, "down:", *_SLEEP, TEST, "jne slow_up", _DOWN, "up:", RET)
_BLIND = (TEST, "jne slow_down", "down:", *_SLEEP, TEST, "jne slow_up", "up:", RET)
_LEFT = (TEST, "jne slow_down", _UP, "down:", TEST, "jne slow_up", _DOWN, "up:", *_SLEEP, RET)
_ON_ERROR = ("error:", *_DROP, RET)
_TAKEN_TWICE = (*_READ, of(LOCK), "call down_read", "here:", *_DROP, *_DROP, RET)
_APART = (TEST, "jne other", *_READ, "jmp out", "other:", *_SLEEP, "out:", RET)
_CASES: dict[str, tuple[list[str], Sequence[Item]]] = {
    "taken on all ways": (["sure taken"], (*_READ, *_SLEEP, *_DROP, RET)),
    "not dropped by itself": (["sure taken"], (*_READ, *_SLEEP, RET)),
    "dropped again": ([], (*_READ, TEST, "jne error", *_DROP, *_SLEEP, RET, *_ON_ERROR)),
    "some ways drop it": (["taken"], (*_READ, TEST, "jne kept", *_DROP, "kept:", *_SLEEP, RET)),
    "taken on another way": ([], _APART),
    "taken on some ways": (["taken"], (TEST, "jne other", *_READ, "other:", *_SLEEP, RET)),
    # It sleeps before it takes the lock, and after it has dropped it.
    "loop": ([], ("again:", *_SLEEP, *_READ, *_DROP, TEST, "jne again", RET)),
    "tried": (["sure taken"], _TRIES),
    "goes on without it": (["taken"], _MAY_FAIL),
    "tried by a called function": ([], (*_SLEEP, "call splice", RET)),
    "only dropped": ([""], (*_SLEEP, *_DROP, RET)),
    "dropped of the caller": (["dropped"], _DROPS_ITS_CALLERS),
    "called functions take it": (["sure taken"], ("call lock", *_SLEEP, "call unlock", RET)),
    "called functions drop it": ([], ("call lock", "call unlock", *_SLEEP, RET)),
    "taken twice": (["sure taken taking"], _TAKEN_TWICE),
    # A computed address may be that of any lock.
    "computed": (["dropped", "taken"], (*_READ, MOVE, "call up_read", *_SLEEP, RET)),
    "inlined, slow path at the end": (["sure taken"], (*_INLINED, *_SLOW_DOWN, *_SLOW_UP)),
    "inlined, without a count": (["taken"], (*_BLIND, *_SLOW_DOWN, *_SLOW_UP)),
    "inlined, and left": ([], (*_LEFT, *_SLOW_DOWN, *_SLOW_UP)),
    "table of jumps": ([], (*_READ, TEST, "jne other", *_SLEEP, *_DROP, RET, "other:", TABLE)),
}
_COLD = {
    "comes back": (("apart:", *_SLEEP, "jmp back"), (*_READ, TEST, "jne apart", "back:", *_DROP)),
    "drops it": (("apart:", *_SLEEP, *_DROP, RET), (*_READ, "jmp apart")),
}


@pytest.fixture(autouse=True, params=[Code, ArmCode], ids=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembler, "MACHINE", request.param)


def sites(**functions: Sequence[Item]) -> tuple[CallSites, int]:
    """Some functions, and where the one with a label sleeps."""
    code = assembler.MACHINE(functions, _OTHERS)
    return CallSites(code.kernel()), code.labels["here"]


def held(**functions: Sequence[Item]) -> list[Held]:
    calls, pc = sites(**functions)
    found = calls.held(pc, next(iter(functions)))
    assert calls.unreadable == 0
    return found


def flags(**functions: Sequence[Item]) -> list[str]:
    every, names = held(**functions), ("sure", "taken", "taking", "dropped")
    return sorted(" ".join(name for name in names if getattr(each, f"is_{name}")) for each in every)


@pytest.mark.parametrize(("expected", "function"), _CASES.values(), ids=_CASES)
def test_locks(expected: list[str], function: Sequence[Item]) -> None:
    assert flags(f=function, **_HELPERS) == expected


@pytest.mark.parametrize(("cold", "hot"), _COLD.values(), ids=_COLD)
def test_parts_that_are_placed_apart(cold: Sequence[Item], hot: Sequence[Item]) -> None:
    assert flags(**{"f.cold": cold, "f": (*hot, RET)}) == ["sure taken"]


def test_type_mode_and_object() -> None:
    (found,) = held(f=(*_READ, *_SLEEP, *_DROP, RET))
    assert (found.type, found.mode, found.object) == ("struct rw_semaphore", Mode.READ, LOCK)
    (found,) = held(f=(*_INLINED, *_SLOW_DOWN, *_SLOW_UP))
    assert (found.type, found.object) == ("struct percpu_rw_semaphore", LOCK)


def test_the_distance_of_a_lock_from_its_object() -> None:
    inside = assembler.INSIDE
    (found,) = held(f=(inside, "call down_read", *_SLEEP, inside, "call up_read", RET))
    assert (found.object, found.inside) == (0, frozenset({0x40}))
    (found,) = held(f=(MOVE, "call down_read", *_SLEEP, RET))
    assert found.inside == frozenset({0})
    (found,) = held(f=("call down_read", *_SLEEP, RET))
    assert found.inside == frozenset()


def test_the_lock_that_a_called_function_has_dropped() -> None:
    (caller,) = held(g=(*_READ, *_SLEEP, *_DROP, RET))
    (dropped,) = held(f=_DROPS_ITS_CALLERS)
    assert caller.may_be(dropped)
    (other,) = held(f=(of(assembler.OTHER), "call up_read", *_SLEEP, RET))
    assert not caller.may_be(other)


def test_functions_for_locks_hold_nothing_themselves() -> None:
    code = assembler.MACHINE({"percpu_down_read": (*_READ, *_SLEEP, RET)}, _OTHERS)
    assert CallSites(code.kernel()).held(code.labels["here"]) == []


def test_what_it_completes() -> None:
    done = (of(LOCK), "call complete")
    calls, pc = sites(f=(*_SLEEP, *done, RET))
    assert calls.completes(pc) == {LOCK: True}
    calls, pc = sites(f=(*_SLEEP, TEST, "jne out", *done, "out:", RET))
    assert calls.completes(pc) == {LOCK: False}
    calls, pc = sites(f=(*done, *_SLEEP, RET))
    assert calls.completes(pc) == {}


def test_code_that_is_not_in_the_dump() -> None:
    code = assembler.MACHINE({"f": (*_READ, *_SLEEP, RET)}, _OTHERS)
    code.is_lost = True
    calls = CallSites(code.kernel())
    assert calls.held(code.labels["here"]) == []
    assert calls.unreadable == 1


def test_which_functions_the_code_of_another_one_calls() -> None:
    calls, _ = sites(write=("call down_read", *_SLEEP, RET))
    assert calls.calls("write", ["down_read", "up_read"]) is True
    assert calls.calls("write", ["up_read"]) is False
    assert calls.calls("write", ["unknown"]) is None
    assert calls.calls("unknown", ["up_read"]) is None


_AREA = of(LOCK), "call down_read_trylock", RET
_WHOLE = of(LOCK), "call down_read_killable", RET
_TWO_LOCKS = (TEST, "jne area", "again:", "call whole", *_SLEEP, TEST, "jne again", *_DROP, RET)
_HANDLES_TWICE = ("area:", "call area_lock", "call sleep", *_DROP, RET)


@pytest.mark.parametrize(
    ("expected", "function"),
    [
        ({"whole"}, (*_TWO_LOCKS, *_HANDLES_TWICE)),
        ({"", "whole"}, (TEST, "jne on", "call whole", "on:", *_SLEEP, RET)),
        ({"", "whole"}, ("call whole", TEST, "jne on", *_DROP, "on:", *_SLEEP, RET)),
        ({"area_lock", "whole"}, ("call whole", TEST, "jne on", "call area_lock", "on:", *_SLEEP)),
        ({""}, (*_SLEEP, "call whole", RET)),
        (set(), (*_SLEEP, RET)),
    ],
)
def test_the_last_call_that_takes_a_lock(expected: set[str], function: Sequence[Item]) -> None:
    calls, pc = sites(f=function, area_lock=_AREA, whole=_WHOLE)
    found = calls.takers(pc, "f", "struct rw_semaphore", Mode.READ)
    names = {start: name for name in ("area_lock", "whole") for start in calls.addresses(name)}
    assert {names.get(each, "") for each in found} == expected


@pytest.mark.parametrize(
    ("is_passing", "function"),
    [
        (True, (TEST, "jne out", MOVE, "out:", RET)),
        (True, (TEST, "jmp sleep")),
        (False, ("again:", TEST, "jne again", RET)),
        (False, (TEST, "call sleep", RET)),
        (False, (TEST, TABLE)),
        (False, (TEST, "jne f.cold", "on:", MOVE, RET)),
        (False, (TEST, "jmp middle")),
    ],
)
def test_functions_in_which_no_task_stays(is_passing: bool, function: Sequence[Item]) -> None:
    code = assembler.MACHINE(
        {"f": function, "g": (RET, "middle:", MOVE, RET), "f.cold": ("jmp on",)}, _OTHERS
    )
    kernel, start = code.kernel(), code.labels["f"]
    extent = text_of(kernel).functions.extent(start)
    assert extent is not None
    assert text_of(kernel).is_passing(extent) == is_passing
    names = [(start, "f.isra.0"), (code.labels["g"], "g")]
    assert staying(kernel, names, "f") == "f"
    names = [(start, "f"), (code.labels["g"], "g.part.0")]
    assert staying(kernel, names, "f") == ("g" if is_passing else "f")
    assert staying(kernel, names, "g") == "g"
    code.is_lost = True
    assert staying(code.kernel(), names, "f") == "f"
