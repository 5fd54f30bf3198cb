# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks that functions hold by their machine code, of *synthetic* functions.

The instructions are what compilers make of calls with a variable, a member of it or a register as
their argument; the functions around them are made up.
"""

from __future__ import annotations

from types import SimpleNamespace

import drgn
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Mode
from kcensus.kernel.tasks import call_sites
from kcensus.kernel.tasks.call_sites import CallSites, Held
from tests.unit.fakekernel import FakeKernel, add_types

_CODE = 0xFFFF_FFFF_8100_0000
_MODULE = 0xFFFF_FFFF_C030_0000
_LOCK, _OTHER = 0xFFFF_FFFF_8240_0040, 0xFFFF_FFFF_8240_0080
_RWSEM, _PERCPU, _SEMAPHORE = (
    f"struct {name}" for name in ("rw_semaphore", "percpu_rw_semaphore", "semaphore")
)
_ROOM = 256
"""Bytes between functions."""
_PRIMITIVES = [
    "down_read",
    "up_read",
    "down_write",
    "up_write",
    "percpu_down_write",
    "percpu_up_write",
    "down",
    "up",
    "complete",
    "rcuwait_wake_up",
]
_REGISTER = b"\x48\x89\xdf"  # mov %rbx, %rdi
Step = tuple[str, int | None]
"""A function to call, and its argument; None for a register."""


class Code:
    """Functions one behind the other."""

    def __init__(self) -> None:
        self.k = FakeKernel("6.10")
        types = {_PERCPU: (96, "64 void * writer"), "struct rcuwait": (8, "")}
        add_types(self.k.prog, types, "locks")
        self.code = bytearray()
        self.places: dict[str, int] = {}
        for name in _PRIMITIVES:
            self.function(name)
        self.readable = True
        prog = self.k.prog
        prog.add_memory_segment(_CODE, 1 << 20, self._read)
        prog.register_symbol_finder("code", self._find, enable_index=0)

    def _read(self, address: int, size: int, offset: int, is_physical: bool) -> bytes:
        if not self.readable:
            raise drgn.FaultError("not in the dump", address)
        return bytes(self.code[offset : offset + size]).ljust(size, b"\0")

    def _find(
        self, prog: drgn.Program, name: str | None, address: int | None, one: bool
    ) -> list[drgn.Symbol]:
        kinds = drgn.SymbolBinding.GLOBAL, drgn.SymbolKind.FUNC
        return [
            drgn.Symbol(each, place, _ROOM, *kinds)
            for each, place in self.places.items()
            if name in (None, each) and (address is None or place <= address < place + _ROOM)
        ]

    def function(self, name: str, *steps: Step, is_jump: bool = False) -> list[int]:
        """Add a function, and return where it goes on after each call.

        :param is_jump: whether the last call is its end
        """
        self.places[name] = start = _CODE + len(self.code)
        body, after = bytearray(b"\x55"), []
        for number, (target, argument) in enumerate(steps):
            if argument is None:
                body += _REGISTER
            elif number % 2:
                body += b"\x48\xc7\xc7" + (argument & 0xFFFFFFFF).to_bytes(4, "little")
            else:
                distance = argument - (start + len(body) + 7)
                body += b"\x48\x8d\x3d" + distance.to_bytes(4, "little", signed=True)
            goes_on = start + len(body) + 5
            distance = self.places[target] - goes_on
            body += b"\xe9" if is_jump and number == len(steps) - 1 else b"\xe8"
            body += distance.to_bytes(4, "little", signed=True)
            after.append(goes_on)
        assert len(body) < _ROOM
        self.code += bytes(body + b"\xc3").ljust(_ROOM, b"\xcc")
        return after

    def sites(self) -> CallSites:
        self.function("end_of_code")
        return CallSites(Kernel(self.k.prog))


def _held(type_: str, mode: Mode, object_: int, **flags: bool) -> Held:
    known = {"is_sure": True, "is_taken": True, "is_taking": False} | flags
    return Held(type_, mode, object_, **known)


def test_a_lock_is_held_from_the_call_that_takes_it_to_the_one_that_drops_it() -> None:
    code = Code()
    code.function("sleep")
    taken, asleep, dropped, again = code.function(
        "user", ("down_write", _LOCK), ("sleep", None), ("up_write", _LOCK), ("sleep", None)
    )
    sites = code.sites()
    assert sites.held(asleep) == [_held(_RWSEM, Mode.WRITE, _LOCK)]
    # While it waits for the lock, it does not hold it.
    assert sites.held(taken) == []
    # It may have dropped it in a branch only.
    assert sites.held(again) == [_held(_RWSEM, Mode.WRITE, _LOCK, is_sure=False)]
    assert sites.held(dropped)[0].is_taken
    assert sites.unreadable == 0


def test_a_lock_that_is_only_dropped_was_taken_by_an_attempt() -> None:
    code = Code()
    code.function("sleep")
    asleep, *_ = code.function("user", ("sleep", None), ("up_read", _LOCK), ("up_read", _OTHER))
    assert code.sites().held(asleep) == [
        _held(_RWSEM, Mode.READ, lock, is_taken=False) for lock in (_LOCK, _OTHER)
    ]


def test_a_lock_in_a_register_has_no_address() -> None:
    code = Code()
    code.function("sleep")
    _, asleep = code.function("user", ("down_read", None), ("sleep", None))
    assert code.sites().held(asleep) == [_held(_RWSEM, Mode.READ, 0)]


def test_a_second_lock_of_a_type_makes_branches_possible() -> None:
    code = Code()
    first, second = code.function("user", ("down", _LOCK), ("down", _OTHER))
    sites = code.sites()
    assert sites.held(first) == []
    assert sites.held(second) == [_held(_SEMAPHORE, Mode.NONE, _LOCK, is_taking=True)]


@pytest.mark.parametrize("is_jump", [False, True])
def test_a_function_that_takes_a_lock_for_its_caller(is_jump: bool) -> None:
    code = Code()
    code.function("sleep")
    code.function("cpus_write_lock", ("percpu_down_write", _LOCK), is_jump=is_jump)
    code.function("balanced", ("down_read", _OTHER), ("up_read", _OTHER))
    *_, asleep = code.function(
        "user", ("cpus_write_lock", None), ("balanced", None), ("sleep", None)
    )
    assert code.sites().held(asleep) == [_held(_PERCPU, Mode.WRITE, _LOCK)]


def test_the_writer_that_an_inlined_percpu_up_read_wakes_is_a_member_of_the_lock() -> None:
    code = Code()
    code.function("sleep")
    asleep, *_ = code.function("user", ("sleep", None), ("rcuwait_wake_up", _LOCK + 64))
    assert code.sites().held(asleep) == [_held(_PERCPU, Mode.READ, _LOCK, is_taken=False)]


def test_what_a_function_completes_later() -> None:
    code = Code()
    before, asleep, _ = code.function(
        "user", ("complete", _OTHER), ("down", None), ("complete", _LOCK)
    )
    sites = code.sites()
    assert sites.completes(asleep) == {_LOCK}
    assert sites.completes(before) == {_LOCK}
    assert sites.completes(_CODE + (1 << 24)) == set()


def test_functions_that_call_themselves_and_each_other_end() -> None:
    code = Code()
    code.places["odd"] = code.places["even"] = _CODE + len(code.code)
    code.function("even", ("odd", None), ("even", None))
    odd, _ = code.function("odd", ("even", None), ("down", _LOCK))
    assert code.sites().held(odd) == []


def test_code_that_is_not_in_the_dump_is_counted_once() -> None:
    code = Code()
    _, asleep = code.function("user", ("down", _LOCK), ("up", _OTHER))
    sites = code.sites()
    code.readable = False
    for _ in range(2):
        assert sites.held(asleep) == []
    assert sites.unreadable == 1


@pytest.mark.parametrize("size", [0x1000, 0x2000])
def test_the_last_function_of_a_module_ends_with_its_memory(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The symbol after it is a variable, on pages far behind: the next one is not mapped."""
    code, last = Code(), _MODULE + 0xF60
    body = b"\x48\xc7\xc7" + (_LOCK & 0xFFFFFFFF).to_bytes(4, "little")
    for number, target in enumerate(("down", "complete")):
        body += b"\xe8" + (code.places[target] - (last + 12 + 5 * number)).to_bytes(
            4, "little", signed=True
        )
    text = bytes(0xF60) + body.ljust(size - 0xF60, b"\x90")

    def read(address: int, count: int, offset: int, is_physical: bool) -> bytes:
        return text[offset : offset + count]

    code.k.prog.add_memory_segment(_MODULE, size, read)
    module = drgn.Object(code.k.prog, "void *", value=_MODULE)
    variables = [SimpleNamespace(address=at) for at in (_MODULE, last, _MODULE + 0x6000)]
    for name, value in (
        ("address_to_module", module),
        ("module_kallsyms", variables),
        ("module_address_regions", [(_MODULE + 0x6000, 0x1000), (_MODULE, size)]),
    ):
        monkeypatch.setattr(call_sites, name, lambda *_, value=value: value)
    sites = code.sites()
    assert sites.held(last + 17) == [_held(_SEMAPHORE, Mode.NONE, _LOCK)]
    assert sites.unreadable == 0


@given(body=st.binary(max_size=_ROOM), at=st.integers(0, _ROOM))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_code(body: bytes, at: int) -> None:
    code = Code()
    start = _CODE + len(code.code)
    code.function("random")
    code.code[-_ROOM : len(code.code) - _ROOM + len(body)] = body
    sites = code.sites()
    assert all(each.object >= 0 for each in sites.held(start + at))
    assert sites.unreadable == 0
