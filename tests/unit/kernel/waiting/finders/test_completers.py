# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which calls have an object as their argument, in *synthetic* machine code."""

from __future__ import annotations

import pytest

from kcensus.kernel.waiting.finders.completers import calls_with

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


def test_two_functions_that_complete_it() -> None:
    first = _MOV + _call(7, _COMPLETE)
    code = first + _MOV + _call(len(first) + 7, _COMPLETE)
    assert {*calls_with(code, _CODE, _OBJECT, {_COMPLETE})} == {_CODE + 12, _CODE + 24}


def test_a_call_far_from_the_object() -> None:
    code = _MOV + bytes(64) + _call(71, _COMPLETE)
    assert [*calls_with(code, _CODE, _OBJECT, {_COMPLETE})] == []


def test_code_that_ends_in_the_middle() -> None:
    assert [*calls_with(_MOV + b"\xe8\x00", _CODE, _OBJECT, {_COMPLETE})] == []
    assert [*calls_with(b"\x48\x8d\x3d\x00", _CODE, _OBJECT, {_COMPLETE})] == []
