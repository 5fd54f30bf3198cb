# SPDX-License-Identifier: LGPL-2.1-or-later
"""Code of arm64 with veneers, the offset of this CPU, and addresses of objects: *synthetic*."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import drgn
import pytest

from kcensus.kernel.code import functions
from kcensus.kernel.code.call_sites import CallSites, Held
from kcensus.kernel.code.functions import Functions
from kcensus.kernel.code.text import Text
from tests.unit.kernel.code import assembler
from tests.unit.kernel.code.assembler import LOCK, RET, TEXT, ArmCode, Item, made, of, words

_OTHERS = ("down_read", "up_read", "complete", "keep", "sleep", "wait_for_completion")
_CALLED: Sequence[Item] = ("call sleep", "here:")
_KEPT = words(0xAA0003F3)  # mov x19, x0
_NEXT = words(0x91010260)  # add x0, x19, #0x40
_MEMBER = words(0xAA1303E0)  # mov x0, x19
_SPILL, _RELOAD = words(0xF90007E0), words(0xF94007E0)  # str x0, [sp, #8]; ldr
_TAKEN = words(0x910023E1)  # add x1, sp, #8
_FRAME = words(0xA9BD7BFD)  # stp x29, x30, [sp, #-48]!


def held(*items: Item) -> list[Held]:
    code = ArmCode({"f": (*items, RET)}, (*_OTHERS, "__kern_my_cpu_offset", "__percpu_down_read"))
    return CallSites(code.kernel()).held(code.labels["here"], "f")


@pytest.mark.parametrize(
    ("items", "lock"),
    [
        ((of(LOCK), _KEPT, "call sleep", _MEMBER, "call down_read", *_CALLED), LOCK),
        ((of(LOCK), _KEPT, "call sleep", _NEXT, "call down_read", *_CALLED), LOCK + 0x40),
        ((of(LOCK), "call sleep", "call down_read", *_CALLED), 0),
        ((_FRAME, of(LOCK), _SPILL, "call sleep", _RELOAD, "call down_read", *_CALLED), LOCK),
        # Other functions may change what is on the stack there.
        ((_FRAME, of(LOCK), _SPILL, _TAKEN, "call sleep", _RELOAD, "call down_read", *_CALLED), 0),
        (
            (
                of(LOCK),
                _KEPT,
                "jne on",
                of(LOCK + 64),
                _KEPT,
                "on:",
                _MEMBER,
                "call down_read",
                *_CALLED,
            ),
            0,
        ),
    ],
)
def test_the_address_of_a_lock(items: Sequence[Item], lock: int) -> None:
    assert [each.object for each in held(*items)] == [lock]


def test_a_count_with_the_offset_from_a_function() -> None:
    # mov w2, #1; add x3, x20, x0; ldadd w2, w4, [x3]
    count = ("call __kern_my_cpu_offset", words(0x52800022, 0x8B000283, 0xB8220064))
    slow = ("slow:", of(LOCK), assembler.NOT_TRY, "call __percpu_down_read")
    (found,) = held("jne slow", *count, "on:", *_CALLED, RET, *slow, "jmp on")
    assert (found.is_sure, found.is_taken, found.object) == (True, True, LOCK)


def test_a_call_by_a_veneer() -> None:
    code = ArmCode({"f": (of(LOCK), "call far", *_CALLED, RET)}, _OTHERS)
    # Behind all symbols, as those of modules are.
    code.labels["far"] = veneer = TEXT + len(code.content)
    code.content += made(16, code.labels["down_read"], veneer) + words(0xD61F0200, 0, 0)
    call = code.labels["here"] - 8
    code.content[call - TEXT : call - TEXT + 4] = code.encoded("call far", call)
    (found,) = CallSites(code.kernel()).held(code.labels["here"], "f")
    assert (found.type, found.object) == ("struct rw_semaphore", LOCK)


_STORE = words(0xF9000260)  # str x0, [x19]
_BLR = words(0xD63F0280)  # blr x20


@pytest.mark.parametrize(
    ("items", "is_completed"),
    [
        ((of(LOCK), "call complete", RET), True),
        ((of(LOCK), "jmp complete"), True),
        ((of(LOCK - 0x40), _KEPT, "call sleep", _NEXT, "call complete", RET), True),
        ((of(LOCK), "call wait_for_completion", of(LOCK), "call complete", RET), True),
        ((of(LOCK + 64), "call keep", of(LOCK), "call complete", RET), True),
        # It may keep the address.
        ((of(LOCK), _STORE, "call complete", RET), None),
        ((of(LOCK), "call keep", of(LOCK), "call complete", RET), None),
        ((of(LOCK), _BLR, of(LOCK), "call complete", RET), None),
        ((of(LOCK), RET), None),
        ((of(LOCK), "jne on", of(LOCK + 64), "on:", "call keep", RET), None),
        # Its ways are unclear.
        ((of(LOCK), "call complete", assembler.TABLE), None),
        ((of(LOCK + 64), "call complete", RET), False),
    ],
)
def test_who_completes_an_object(items: Sequence[Item], is_completed: bool | None) -> None:
    code = ArmCode({"f": items}, _OTHERS)
    sites, at = CallSites(code.kernel()), code.labels
    text = bytes(code.content[:0x200])
    harmless = {at["complete"], at["wait_for_completion"]}
    found = sites.completing(text, TEXT, LOCK, {at["complete"]}, harmless)
    assert (found if found is None else bool(found)) == is_completed


def test_an_architecture_without_a_decoder() -> None:
    code = ArmCode({"f": ("call down_read", *_CALLED, RET)}, _OTHERS)
    code.architecture = drgn.Architecture.PPC64
    sites = CallSites(code.kernel())
    assert sites.held(code.labels["here"]) == []
    assert sites.calls("f", ["down_read"]) is None
    assert sites.completing(b"", TEXT, LOCK, (), ()) is None
    assert sites.unreadable == 0
    assert not Text(code.kernel().prog).is_decoded
    assert Functions(code.kernel().prog).addresses("f") == [code.labels["f"]]


class _Symbol(NamedTuple):
    name: str
    address: int


def test_marks_of_code_and_data_are_no_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    start = TEXT - (1 << 30)
    symbols = [_Symbol("f", start), _Symbol("$x", start), _Symbol("$d", start + 64)]
    symbols.append(_Symbol("g", start + 128))
    monkeypatch.setattr(functions, "address_to_module", lambda *_: 1)
    monkeypatch.setattr(functions, "module_kallsyms", lambda _: iter(symbols))
    monkeypatch.setattr(functions, "module_address_regions", lambda _: [(start, 4096)])
    found = Functions(ArmCode({"other": (RET,)}).kernel().prog)
    assert found.extent(start + 96) == (start, start + 128)
    assert found.module_symbols(start) == ([start, start + 128], ["f", "g"])
