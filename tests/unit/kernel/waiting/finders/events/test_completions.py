# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which calls have an object as their argument, in *synthetic* machine code."""

from __future__ import annotations

import pytest

from kcensus.kernel.arch.x86_64.decoder import calls_with, escapes

_CODE, _OBJECT, _COMPLETE = 0xFFFF_FFFF_C020_0000, 0xFFFF_FFFF_C020_4A40, 0xFFFF_FFFF_810C_0000


def _number(value: int) -> bytes:
    return (value % (1 << 32)).to_bytes(4, "little")


def _call(at: int, target: int) -> bytes:
    return b"\xe8" + _number(target - (_CODE + at + 5))


_MOV = b"\x48\xc7\xc7" + _number(_OBJECT)
_LEA = b"\x48\x8d\x3d" + _number(_OBJECT - (_CODE + 7))


@pytest.mark.parametrize("argument", [_MOV, _LEA], ids=["mov", "lea"])
def test_a_call_with_the_object(argument: bytes) -> None:
    code = argument + _call(7, _COMPLETE)
    assert [*calls_with(code, _CODE, _OBJECT, {_COMPLETE})] == [_CODE + 12]
    assert [*calls_with(code, _CODE, _OBJECT, {_COMPLETE + 16})] == []
    assert [*calls_with(code, _CODE, _OBJECT + 32, {_COMPLETE})] == []


def test_other_calls() -> None:
    first = _MOV + _call(7, _COMPLETE)
    for code, found in (
        (first + _MOV + _call(len(first) + 7, _COMPLETE), {_CODE + 12, _CODE + 24}),
        # Far from the object, and code that ends in the middle.
        (_MOV + bytes(64) + _call(71, _COMPLETE), set()),
        (_MOV + b"\xe8\x00", set()),
        (b"\x48\x8d\x3d\x00", set()),
    ):
        assert {*calls_with(code, _CODE, _OBJECT, {_COMPLETE})} == found


_WAITS, _KEEPS = _COMPLETE + 64, _COMPLETE + 128
_STORES = {
    "on the stack": b"\x48\xc7\x44\x24\x08" + _number(_OBJECT),
    "in memory": b"\x48\xc7\x43\x18" + _number(_OBJECT),
    "in a variable": b"\x48\xc7\x05" + _number(0x100) + _number(_OBJECT),
    "in a kept register": b"\x48\xc7\xc3" + _number(_OBJECT) + _call(7, _WAITS),
    "in a kept register, by lea": b"\x4c\x8d\x25" + _number(_OBJECT - _CODE - 7) + _call(7, _WAITS),
    "as an argument of the kernel's": _MOV + _call(7, _KEEPS),
    "as a second one": b"\x48\xc7\xc6" + _number(_OBJECT) + _call(7, _KEEPS),
}


@pytest.mark.parametrize("place", _STORES)
def test_an_address_that_code_keeps(place: str) -> None:
    assert escapes(_STORES[place], _CODE, _OBJECT, {_COMPLETE, _WAITS})
    assert not escapes(_STORES[place], _CODE, _OBJECT + 4096, {_COMPLETE, _WAITS})


def test_addresses_that_code_does_not_keep() -> None:
    second = b"\x48\xc7\xc6" + _number(_OBJECT)
    # The last one is a function of the module itself, such as one that prints it.
    own = second + _call(7, _CODE + 2) + b"\x90"
    for code in (b"\x90" * 3, _MOV + _call(7, _COMPLETE), _LEA + _call(7, _WAITS), own):
        assert not escapes(code, _CODE, _OBJECT, {_COMPLETE, _WAITS})
