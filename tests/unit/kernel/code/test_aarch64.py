# SPDX-License-Identifier: LGPL-2.1-or-later
"""Instructions of arm64, against objdump, and what becomes of registers.

``aarch64.tsv`` has one instruction or more of each mnemonic in three kernels: its word, text by
``objdump`` of binutils, kind, distance of the target, and the registers that it changes by its text
("call" for those that a called function may change).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcensus.kernel.arch.aarch64.decoder import AArch64
from kcensus.kernel.arch.aarch64.instructions import decode
from kcensus.kernel.arch.instructions import Kind, UndecodableError
from kcensus.kernel.arch.registers import (
    ANY,
    MEMBER,
    PER_CPU,
    SLOT,
    SLOTS,
    UNKNOWN,
    How,
    Values,
    joined,
    only,
    write,
)
from tests.unit.kernel.code.assembler import made, words

_AT = 0xFFFF_8000_8000_0FF8
_LOCK = 0xFFFF_8000_81B0_0F10
_CALLED = sum(1 << register for register in (*range(19), 30))
_NOP = words(0xD503201F)
_SAMPLE = Path(__file__).with_name("aarch64.tsv").read_text().splitlines()


@pytest.mark.parametrize("line", _SAMPLE, ids=lambda line: line.split("\t")[1].split()[0])
def test_against_objdump(line: str) -> None:
    word, _, kind, distance, writes = line.split("\t")
    found = decode(words(int(word, 16)), 0, _AT)
    assert found.end == _AT + 4
    assert found.kind is Kind(kind)
    assert found.target == (_AT + int(distance) if distance else 0)
    changed = {each.register for each in found.writes if each.register < 31}
    if writes == "call":
        (called,) = found.writes
        assert (called.how, called.mask) == (How.CALLED, _CALLED)
    else:
        assert changed == {*map(int, writes.split())}
    assert (found.argument is None) == (0 not in changed)


def after(*code: int, values: Values | None = None) -> Values:
    """Return the registers after some instructions."""
    text, found = words(*code), dict(values or {})
    for at in range(0, len(text), 4):
        for change in decode(text, at, _AT).writes:
            write(found, change)
    return found


def run(text: bytes) -> Values:
    return after(*(int.from_bytes(text[at : at + 4], "little") for at in range(0, len(text), 4)))


def test_addresses() -> None:
    assert only(run(made(0, _LOCK, _AT)), 0) == _LOCK
    # mov x19, x0; add x1, x19, #0x10
    kept = after(0xAA0003F3, 0x91004261, values=run(made(0, _LOCK, _AT)))
    assert (only(kept, 19), only(kept, 1)) == (_LOCK, _LOCK + 16)
    # A call changes x1 but not x19.
    called = after(0x94000000, values=kept)
    assert (only(called, 19), 1 in called) == (_LOCK, False)
    # sub x0, x19, #8; adr x2, .+4; ldr x19, [x19]
    less = after(0xD1002260, 0x10000022, 0xF9400273, values=kept)
    assert (only(less, 0), only(less, 2), 19 in less) == (_LOCK - 8, _AT + 8, False)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ((0x52800020,), 1),  # mov w0, #1
        ((0x12800000,), 0xFFFFFFFF),  # mov w0, #-1
        ((0x92800000,), (1 << 64) - 1),  # mov x0, #-1
        ((0x2A1F03E0,), 0),  # mov w0, wzr
        ((0xD2A00020, 0xF2824680), 0x11234),  # mov x0, #0x10000; movk x0, #0x1234
        ((0xD538D080,), PER_CPU),  # mrs x0, tpidr_el1
        ((0xD53CD040,), PER_CPU),  # mrs x0, tpidr_el2
        ((0xD538D080, 0x8B000020), SLOT),  # mrs x0, tpidr_el1; add x0, x1, x0
        ((0x91001020,), MEMBER),  # add x0, x1, #4
        ((0x91001021, 0xD538D080, 0x8B000020), UNKNOWN),  # a member of this CPU's structure
        ((0xD5384100,), UNKNOWN),  # mrs x0, sp_el0
        ((0x8B010020,), UNKNOWN),  # add x0, x1, x1
    ],
)
def test_values(code: tuple[int, ...], value: int) -> None:
    assert after(*code).get(0, {UNKNOWN}) == {value}


def test_values_where_ways_meet() -> None:
    one, other = run(made(0, _LOCK, _AT)), run(made(0, _LOCK + 64, _AT))
    assert joined(one, other)[0] == {_LOCK, _LOCK + 64}
    assert joined(one, {})[0] == {_LOCK, UNKNOWN}
    assert only(joined(one, other), 0) == 0
    many: Values = {}
    for step in range(12):
        many = joined(many, {0: frozenset({step})})
    assert many == {0: {ANY}}
    assert after(0x91001000, values=many) == {0: {ANY}}
    # csel x2, x0, x1, eq
    assert after(0x9A810002, values={0: frozenset({1}), 1: frozenset({2})})[2] == {1, 2}


def test_values_kept_on_the_stack() -> None:
    lock = run(made(0, _LOCK, _AT))
    # str x0, [sp, #8]; ldr x1, [sp, #8]
    assert only(after(0xF90007E0, 0xF94007E1, values=lock), 1) == _LOCK
    # stp x0, xzr, [sp, #16]; ldp x2, x1, [sp, #16]
    pair = after(0xA9017FE0, 0xA94107E2, values=lock)
    assert (only(pair, 2), pair[1]) == (_LOCK, frozenset({0}))
    # str w1, [sp, #8] after it; sub sp, sp, #16; sub sp, sp, x1; stp w0, w1, [sp]; str q0, [sp];
    # str x1, [x29, #24]; stp x1, x2, [x29, #16]
    changes = (0xB9000BE1, 0xD10043FF, 0xCB2163FF, 0x290007E0, 0x3D8003E0, 0xF9000FA1, 0xA9010BA1)
    for change in changes:
        assert SLOTS + 8 not in after(0xF90007E0, change, values=lock)


def test_loads_and_sums_with_the_stack_pointer() -> None:
    kept = after(0xF90007E0, values=run(made(0, _LOCK, _AT)))
    # ldrsw x0, [sp, x1]; ldursw x0, [sp, #-4]; ldr x0, [x29, #24]
    for load in (0xB8A16BE0, 0xB89FC3E0, 0xF9400FA0):
        assert after(load, values=kept) == {SLOTS + 8: frozenset({_LOCK})}
    # add x0, sp, w1, uxtw; add x0, x29, x1, uxtx; add x0, sp, #8: other functions may write there.
    for code in (0x8B2143E0, 0x8B2163A0, 0x910023E0):
        assert decode(words(code), 0, _AT).writes[0].how is How.STACK
    assert decode(words(0x8B214040), 0, _AT).writes[0].how is How.UNKNOWN  # add x0, x2, w1, uxtw


@pytest.mark.parametrize(
    ("code", "inside"),
    [
        (0xAA1303E0, 0),  # mov x0, x19
        (0x91010260, 0x40),  # add x0, x19, #0x40
        (0xD1002260, -8),  # sub x0, x19, #8
        (0x910023E0, None),  # add x0, sp, #8
        (0x91002000, None),  # add x0, x0, #8
        (0xF9402260, None),  # ldr x0, [x19, #64]
        (0xF94007E0, None),  # ldr x0, [sp, #8]
        (0x91010261, None),  # add x1, x19, #0x40
    ],
)
def test_distance_of_an_argument_from_an_object(code: int, inside: int | None) -> None:
    assert decode(words(code), 0, _AT).inside == inside


_LL_SC = (0x885F7C64, 0x0B020084, 0x88017C64)
"""ldxr w4, [x3]; add w4, w4, w2; stxr w1, w4, [x3]."""
_AGAIN = 0x35FFFFA1
"""cbnz w1, to the ldxr."""


def test_counts() -> None:
    assert decode(words(0xB822007F), 0, _AT).adds == (3, 2)  # stadd w2, [x3]
    assert decode(words(0xB8220064), 0, _AT).adds == (3, 2)  # ldadd w2, w4, [x3]
    assert decode(words(0xF822007F), 0, _AT).adds is None  # stadd x2, [x3]
    assert decode(words(0xB822107F), 0, _AT).adds is None  # stclr w2, [x3]
    assert decode(words(*_LL_SC), 8, _AT).adds == (3, 2)
    other = words(_LL_SC[0], 0x0B020085, _LL_SC[2])  # add w5, w4, w2
    assert decode(other, 8, _AT).adds is None


def test_a_store_that_is_tried_again_is_no_branch() -> None:
    assert decode(words(*_LL_SC, _AGAIN), 12, _AT).kind is Kind.NEXT
    assert decode(words(*_LL_SC, _AGAIN + 1), 12, _AT).kind is Kind.BRANCH
    assert decode(words(_AGAIN), 0, _AT).kind is Kind.BRANCH


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ((0xD61F0200,), Kind.END),  # br x16
        ((0xF9400010, 0xD61F0200), Kind.END),  # ldr x16, [x0]; br x16
        ((0x8B21A850, 0xD61F0200), Kind.TABLE),  # add x16, x2, w1, sxth #2; br x16
        ((0x8B010850, 0xD503249F, 0xD61F0200), Kind.TABLE),  # add x16, x2, x1, lsl #2; bti j; br
        ((0xD4210000,), Kind.NEXT),  # brk #0x800: BUG() and WARN()
        ((0xD4207D00,), Kind.END),  # brk #1000
        ((0x00000000,), Kind.END),  # udf
        ((0xD65F0BFF,), Kind.END),  # retaa
    ],
)
def test_ends(code: tuple[int, ...], kind: Kind) -> None:
    assert decode(words(*code), 4 * len(code) - 4, _AT).kind is kind


def test_an_address_before_the_next_function_is_no_code() -> None:
    literal = words(0xF5437860, 0xFFFFABE5)
    assert decode(_NOP + literal, 4, _AT).kind is Kind.END
    with pytest.raises(UndecodableError):
        decode(literal + _NOP, 0, _AT)


@pytest.mark.parametrize("code", [b"", b"\x1f\x20\x03", words(0xF5437860), words(0x80DF5800)])
def test_what_is_no_instruction(code: bytes) -> None:
    with pytest.raises(UndecodableError):
        decode(code, 0, _AT)


def test_calls_and_jumps_of_code() -> None:
    code = _NOP + words(0x94000002, 0x17FFFFFF, 0x54000041, 0xB4FFFFE0, 0x37000040) + b"\x94"
    decoder, start = AArch64(), _AT
    assert [*decoder.calls(code, start)] == [(start + 12, start + 4), (start + 8, start + 12)]
    assert {*decoder.jumps(code, start)} == {
        *((start + 12, start + 4), (start + 16, start + 20)),
        *((start + 20, start + 12), (start + 24, start + 28)),
    }
    assert [*decoder.calls(b"", start)] == []


def test_no_try() -> None:
    call, decoder = words(0x94000000), AArch64()
    assert decoder.is_no_try(words(0x52800001) + _NOP + call)
    assert decoder.is_no_try(words(0x2A1F03E1) + call)
    assert not decoder.is_no_try(words(0x52800021) + call)
    assert not decoder.is_no_try(words(0x52800001) + 8 * _NOP + call)
    assert not decoder.is_no_try(b"")


def test_veneers_of_modules() -> None:
    decoder, far = AArch64(), 0xFFFF_9000_1234_5678
    jump = words(0xD61F0200)
    old = words(0x92800010 | (~far & 0xFFFF) << 5, 0xF2A00010 | (far >> 16 & 0xFFFF) << 5)
    old += words(0xF2C00010 | (far >> 32 & 0xFFFF) << 5)
    assert decoder.behind(made(16, _LOCK, _AT) + jump, _AT) == _LOCK
    assert decoder.behind(words(0xD503245F) + made(16, _LOCK, _AT + 4) + jump, _AT) == _LOCK
    assert decoder.behind(old + jump, _AT) == far
    for code in (b"", _NOP * 5, made(16, _LOCK, _AT), made(0, _LOCK, _AT) + jump, words(1), jump):
        assert decoder.behind(code, _AT) == 0


def test_values_on_the_stack_have_bounds() -> None:
    lock = run(made(0, _LOCK, _AT))
    # str x0, [sp, #512]; stp x0, x0, [sp, #-8]; str w0, [sp, #512]
    for code in (0xF90103E0, 0xA93F83E0, 0xB90203E0):
        assert after(code, values=lock).keys() <= {0, SLOTS}
    # ldr x0, [sp, #512]
    assert after(0xF94103E0, values=lock) == {}
