# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of ORC in each of their formats, and steps of the unwinder, of *synthetic* kernels."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kcensus.engine.memory import Faults, Memory, Words
from kcensus.kernel.arch.model import Frames, StackMemory
from kcensus.kernel.arch.x86_64 import orc
from kcensus.kernel.arch.x86_64.orc import OrcTables, Rules, has_tables
from kcensus.kernel.arch.x86_64.unwinder import Unwinder
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks import stacks
from tests.unit.fakekernel import PAGE, FakeKernel

_RULES = 4096
_STEP = 16
"""Bytes of code that a rule is for."""
_BLOCKS = _RULES * _STEP // 256
_COMMON = "0 short sp_offset; 2 short bp_offset; 4 unsigned int sp_reg:4; 4.4 unsigned int bp_reg:4"
_REGISTERS = "32 unsigned long bp; 128 unsigned long ip; 136 unsigned long cs; 152 unsigned long sp"
_CODE = (1 << 64) - (1 << 30)


@dataclass(frozen=True)
class Format:
    """How a release writes rules: (kind, end) by what lies below a frame, and registers."""

    members: str
    kinds: dict[int, tuple[int, int]]
    registers: dict[int, int]
    """Number of each register by our name."""


_OLD = {orc.UNDEFINED: 0, orc.PREVIOUS_SP: 1, orc.BP: 4, orc.SP: 5}
_OLD |= {orc.BP_INDIRECT: 8, orc.SP_INDIRECT: 9}
_NEW = {orc.UNDEFINED: 0, orc.PREVIOUS_SP: 8, orc.BP: 4, orc.SP: 3}
_NEW |= {orc.BP_INDIRECT: 10, orc.SP_INDIRECT: 9}
_END = f"{_COMMON}; 5 unsigned int type:2; 5.2 unsigned int end:1"
_SIGNAL = f"{_COMMON}; 5 unsigned int type:3; 5.3 unsigned int signal:1"
_BEFORE_6_4 = {orc.CALL: (0, 0), orc.REGS: (1, 0), orc.REGS_PARTIAL: (2, 0), orc.END: (0, 1 << 2)}
_SINCE_6_4 = {orc.CALL: (2, 0), orc.REGS: (3, 0), orc.REGS_PARTIAL: (4, 0), orc.END: (1, 0)}
FORMATS = {
    "4.18": Format(_END, _BEFORE_6_4, _OLD),
    "6.4": Format(_SIGNAL, _SINCE_6_4, _OLD),
    "7.3": Format(_SIGNAL, _SINCE_6_4, _NEW),
}


def with_tables(form: Format, special: list[tuple[int, int, int, int, int]]) -> tuple[Memory, int]:
    """A kernel whose first rules are special, all others plain calls; and where its code begins.

    :param special: (kind, sp register, sp offset, bp register, bp offset)
    """
    k = FakeKernel("6.10", f"struct orc_entry 6 : {form.members}")
    rules = [*special, *[(orc.CALL, orc.SP, 8, orc.UNDEFINED, 0)] * (_RULES - len(special))]
    sizes = {"_stext": _RULES * _STEP, "orc_lookup": (_BLOCKS + 1) * 4}
    sizes |= {"__start_orc_unwind_ip": _RULES * 4, "__start_orc_unwind": _RULES * 6}
    places = {
        name: int(k.alloc(f"char [{size}]", alone=True).address_) for name, size in sizes.items()
    }
    text, table = places["_stext"], places["__start_orc_unwind_ip"]
    for row, (kind, sp, sp_offset, bp, bp_offset) in enumerate(rules):
        number, end = form.kinds[kind]
        registers = form.registers[sp] | form.registers[bp] << 4
        entry = struct.pack("<hhBB", sp_offset, bp_offset, registers, number | end)
        k.write(places["__start_orc_unwind"] + 6 * row, entry)
        k.write(table + 4 * row, struct.pack("<i", text + _STEP * row - (table + 4 * row)))
    for block in range(_BLOCKS + 1):
        row = min(block * 256 // _STEP, _RULES - 1)
        k.write(places["orc_lookup"] + 4 * block, struct.pack("<I", row))
    k.constant("lookup_num_blocks", _BLOCKS + 1, "unsigned int")
    k.functions(places)
    return Memory(k.prog), text


@pytest.mark.parametrize("release", FORMATS)
def test_rules_of_each_format(release: str) -> None:
    special = [
        (orc.CALL, orc.BP, 16, orc.PREVIOUS_SP, -16),
        (orc.REGS, orc.SP, 0, orc.UNDEFINED, 0),
        (orc.REGS_PARTIAL, orc.SP, 40, orc.UNDEFINED, 0),
        (orc.END, orc.UNDEFINED, 0, orc.UNDEFINED, 0),
        (orc.CALL, orc.BP_INDIRECT, -8, orc.BP, 24),
        (orc.CALL, orc.SP_INDIRECT, 8, orc.UNDEFINED, 0),
    ]
    memory, text = with_tables(FORMATS[release], special)
    assert has_tables(memory.prog)
    faults = Faults()
    every = range(len(special))
    # The last byte of each rule's code, and one of a plain call far behind.
    code = np.array([*(text + _STEP * (row + 1) - 1 for row in every), text + 40_000], np.uint64)
    rules = OrcTables(memory, faults).rules(code)
    columns = rules.kind, rules.sp_register, rules.sp_offset, rules.bp_register, rules.bp_offset
    read = list(zip(*(column.tolist() for column in columns), strict=True))
    assert read == [*special, (orc.CALL, orc.SP, 8, orc.UNDEFINED, 0)]
    # Code before the first rule has none.
    outside = OrcTables(memory, faults).rules(np.array([text - 1], np.uint64))
    assert outside.kind.tolist() == [orc.NONE]
    assert not faults


def _without(memory: Memory, page: int) -> Callable[[int, int], bytes]:
    """Return a function that reads memory with one page of zeros."""
    read = memory._read

    def without(address: int, size: int) -> bytes:
        data = bytearray(read(address, size))
        low, high = max(page - address, 0), max(min(page + PAGE - address, size), 0)
        data[low:high] = bytes(max(high - low, 0))
        return bytes(data)

    return without


def test_a_lost_page_of_places_in_code_leads_to_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, text = with_tables(FORMATS["6.4"], [])
    table = int(memory.prog.symbol("__start_orc_unwind_ip").address)

    rows = np.arange(PAGE // 4 - 200, PAGE // 2 + 200)
    code = np.uint64(text) + rows.astype(np.uint64) * np.uint64(_STEP)
    assert (OrcTables(memory, Faults()).rules(code).kind == orc.CALL).all()
    monkeypatch.setattr(memory, "_read", _without(memory, table + PAGE))
    found = OrcTables(memory, Faults()).rules(code).kind == orc.CALL
    # Blocks of the other pages are not touched, and each rule that is found is right.
    lost = (rows >= PAGE // 4) & (rows < PAGE // 2)
    assert found[~lost].sum() > 300
    assert not found[lost].any()


def test_a_lost_page_of_the_first_rows_of_blocks_has_no_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, text = with_tables(FORMATS["6.4"], [])
    lookup = int(memory.prog.symbol("orc_lookup").address)
    code = np.uint64(text) + np.array([4, 600, 60_000], np.uint64)
    assert (OrcTables(memory, Faults()).rules(code).kind == orc.CALL).all()
    monkeypatch.setattr(memory, "_read", _without(memory, lookup))
    found = OrcTables(memory, Faults()).rules(code).kind.tolist()
    assert found == [orc.CALL, orc.NONE, orc.NONE]


def test_a_damaged_table_is_not_taken_for_an_older_format() -> None:
    ends = [(orc.END, orc.UNDEFINED, 0, orc.UNDEFINED, 0)] * (_RULES // 2 + 1)
    memory, _ = with_tables(FORMATS["7.3"], ends)
    assert has_tables(memory.prog)
    with pytest.raises(LookupError):
        OrcTables(memory, Faults())


@pytest.mark.parametrize("ends_at_entry", [True, False])
def test_a_kernel_thread_ends_at_its_entry(
    ends_at_entry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels before 4.9 leave in bp what bp was when the thread was created."""
    pc = np.array([_CODE, _CODE + 16, _CODE, _CODE + 32], np.uint64)
    lane, cut = np.array([0, 0, 1, 1]), np.array([True, True])
    unwinder = SimpleNamespace(starts=lambda *_: (), ends_at_entry=ends_at_entry)
    monkeypatch.setattr(stacks, "walk", lambda *_: (lane, pc, pc, pc == 0, cut))
    readers = SimpleNamespace(unwinder=lambda _: unwinder, cpu_stacks=lambda _: ())
    monkeypatch.setattr(stacks, "_readers", lambda _: readers)
    names = {_CODE: "schedule", _CODE + 16: "ret_from_fork", _CODE + 32: "ret_from_space"}
    monkeypatch.setattr(stacks, "symbols_of", lambda _: lambda place: (names[place + 1], ""))
    k = FakeKernel("6.10")
    k.constant("THREAD_SIZE", 16384)
    columns: Any = SimpleNamespace(**dict.fromkeys(("stack", "address", "sp"), pc))
    found = stacks.stacks(Kernel(k.prog), columns, np.arange(2), Faults())
    # Tables that cannot tell the end are damaged.
    assert found.is_cut.tolist() == [not ends_at_entry, True]


def test_a_function_interrupted_at_its_first_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    pc = np.array([_CODE + 16, _CODE + 32], np.uint64)
    lane, cut, exact = np.array([0, 0]), np.array([False]), np.array([False, True])
    unwinder = SimpleNamespace(starts=lambda *_: (), ends_at_entry=False)
    monkeypatch.setattr(stacks, "walk", lambda *_: (lane, pc, pc, exact, cut))
    readers = SimpleNamespace(unwinder=lambda _: unwinder, cpu_stacks=lambda _: ())
    monkeypatch.setattr(stacks, "_readers", lambda _: readers)
    names = {_CODE + 15: "schedule", _CODE + 32: "memcpy"}
    monkeypatch.setattr(stacks, "symbols_of", lambda _: lambda place: (names[place], ""))
    k = FakeKernel("6.10")
    k.constant("THREAD_SIZE", 16384)
    columns: Any = SimpleNamespace(**dict.fromkeys(("stack", "address", "sp"), pc))
    found = stacks.stacks(Kernel(k.prog), columns, np.arange(1), Faults())
    assert found.functions(0) == ["schedule", "memcpy"]


@pytest.mark.parametrize(
    ("tables", "ends"),
    [
        (None, True),
        (SimpleNamespace(mark_ends=False), True),
        (SimpleNamespace(mark_ends=True), False),
    ],
    ids=["frame pointers", "ORC of v4.14", "ORC of v4.18"],
)
def test_tables_since_4_18_mark_the_ends_of_stacks(tables: Any, ends: bool) -> None:
    k = FakeKernel("6.10", f"struct pt_regs 168 : {_REGISTERS}")
    unwinder = Unwinder(StackMemory(Kernel(k.prog), np.empty(0, np.uint64), 16384, Faults()))
    unwinder.tables = tables
    assert unwinder.ends_at_entry == ends


def test_steps_through_saved_registers_and_indirect_frames() -> None:
    k = FakeKernel("6.10", f"struct pt_regs 168 : {_REGISTERS}")
    assert not has_tables(k.prog)
    stack = int(k.alloc("char [16384]", alone=True).address_)
    at = [stack + 8192 + 512 * step for step in range(6)]
    pc = [_CODE + 0x1000 * step for step in range(6)]
    # 0: a call whose frame is at bp. 1: all registers of an interrupt. 2: a part of them.
    # 3: the word at the stack pointer, plus 16. 4: the word at bp - 8. 5: the end.
    k.write_words(at[1] - 16, at[5], pc[1])
    k.write_words(at[1] + 32, at[4] + 8)
    k.write_words(at[1] + 128, pc[2], 0x10)
    k.write_words(at[1] + 152, at[2])
    k.write_words(at[2], pc[3], 0x10)
    k.write_words(at[2] + 24, at[3])
    k.write_words(at[3], at[4] - 16)
    k.write_words(at[4] - 8, pc[4])
    k.write_words(at[4], at[5])
    k.write_words(at[5] - 8, pc[5])
    given = {
        pc[0] - 1: (orc.CALL, orc.BP, 16, orc.PREVIOUS_SP, -16),
        pc[1] - 1: (orc.REGS, orc.SP, 0, orc.UNDEFINED, 0),
        pc[2]: (orc.REGS_PARTIAL, orc.SP, 0, orc.UNDEFINED, 0),
        pc[3]: (orc.CALL, orc.SP_INDIRECT, 16, orc.UNDEFINED, 0),
        pc[4] - 1: (orc.CALL, orc.BP_INDIRECT, -8, orc.UNDEFINED, 0),
        pc[5] - 1: (orc.END, orc.UNDEFINED, 0, orc.UNDEFINED, 0),
    }

    def rules(places: Words) -> Rules:
        rows = [given[place] for place in places.tolist()]
        return Rules(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))

    memory = StackMemory(Kernel(k.prog), np.array([stack], np.uint64), 16384, Faults())
    unwinder = Unwinder(memory)
    # Of a table, the walk uses the rules alone.
    tables: Any = SimpleNamespace(rules=rules)
    unwinder.tables = tables
    first, sp, bp, link = (np.array([each], np.uint64) for each in (pc[0], at[0], at[1] - 16, 0))
    start, known = Frames(first, sp, bp, np.array([False]), link), np.array([True])
    lane, places, bottoms, _, is_cut = stacks.walk(memory, unwinder, start, known)
    assert places.tolist() == pc
    assert bottoms.tolist() == at
    assert (lane.tolist(), is_cut.tolist()) == ([0] * 6, [False])
    # A place without a rule cuts the stack there.
    given[pc[3]] = (orc.NONE, orc.UNDEFINED, 0, orc.UNDEFINED, 0)
    _, places, _, _, is_cut = stacks.walk(memory, unwinder, start, known)
    assert (places.tolist(), is_cut.tolist()) == (pc[:4], [True])
