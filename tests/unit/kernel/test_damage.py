# SPDX-License-Identifier: LGPL-2.1-or-later
"""Index of numbers, modules, clock and log of *synthetic* kernels whose memory is damaged."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from drgn import FaultError, Object

from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.block.limits import writeback
from kcensus.kernel.clock import hz
from kcensus.kernel.idr import idr_entries
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.log import records
from kcensus.kernel.names import name_at
from kcensus.kernel.symbols import Symbols
from tests.unit.fakekernel import PAGE, FakeKernel
from tests.unit.fakekernel.list_lrus import FakeListLrus

NOWHERE = 0xFFFF_C900_0000_0000


def test_a_tree_of_numbers_that_leads_into_itself_ends() -> None:
    fake = FakeListLrus("5.18")
    k = fake.kernel
    idr = k.alloc("struct idr")
    fake.xarray(idr.idr_rt, {at * 64: (at + 1) << 12 for at in range(5)})
    assert idr_entries(Memory(k.prog), idr) == ([1 << 12, 2 << 12, 3 << 12, 4 << 12, 5 << 12], 0)
    root = Object(k.prog, "struct xa_node", address=int(idr.idr_rt.xa_head) - 2)
    k.set(root.slots[1], int(idr.idr_rt.xa_head))
    assert idr_entries(Memory(k.prog), idr) == ([1 << 12, 3 << 12, 4 << 12, 5 << 12], 1)


def test_a_module_that_cannot_be_read_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    k = FakeKernel("6.10", "struct module 56 : 0 char [56] name")
    module = Object(k.prog, "struct module *", value=NOWHERE)
    monkeypatch.setattr("kcensus.kernel.symbols.address_to_module", lambda *_: module)
    assert Symbols(k.prog)(0x1234) == ("0x1234", "")


def test_symbols_of_a_module_without_debug_info(monkeypatch: pytest.MonkeyPatch) -> None:
    k = FakeKernel("6.10", "struct module 64 : 0 char [56] name; 56 unsigned int num_symtab")
    made = k.alloc("struct module", num_symtab=len(_NAMED), name=b"dm_x\0")
    module = made.address_of_()
    symbols = [SimpleNamespace(address=start, size=size, name=name) for start, size, name in _NAMED]
    monkeypatch.setattr("kcensus.kernel.symbols.address_to_module", lambda *_: module)
    monkeypatch.setattr("kcensus.kernel.symbols.module_kallsyms", lambda _: symbols)
    found = Symbols(k.prog)
    assert found.described(0x1010) == "copy [dm_x]"
    assert found.variable(0x2020) == "locks+0x20 [dm_x]"
    assert found.variable(0x2000) == "locks [dm_x]"
    # Behind the end of the last one.
    assert found.place(0x2040) == ("", 0, "dm_x")
    assert found(0x2040) == ("0x2040", "dm_x")


def test_a_name_without_a_pointer() -> None:
    k = FakeKernel("6.10", "struct target_type 16 : 0 unsigned long features; 8 char * name")
    page = int(k.alloc("struct target_type").address_) + PAGE & -PAGE
    k.write(page, bytes(PAGE))
    type_ = Object(k.prog, "struct target_type", address=page)
    with pytest.raises(FaultError):
        name_at(type_.name)
    k.set(type_.features, 1)
    assert name_at(type_.name) == ""


@pytest.mark.parametrize("is_livepatch", [False, True])
def test_only_a_livepatch_keeps_symbols_without_names(
    monkeypatch: pytest.MonkeyPatch, is_livepatch: bool
) -> None:
    members = "0 char [56] name; 56 unsigned int num_symtab; 60 bool klp"
    k = FakeKernel("6.10", f"struct module 64 : {members}")
    module = k.alloc("struct module", num_symtab=3, name=b"x\0", klp=is_livepatch).address_of_()
    symbols = [SimpleNamespace(address=at, size=1, name="") for at in range(3)]
    monkeypatch.setattr("kcensus.kernel.symbols.address_to_module", lambda *_: module)
    monkeypatch.setattr("kcensus.kernel.symbols.module_kallsyms", lambda _: symbols)
    found = Symbols(k.prog)
    found(2)
    assert found.damaged == (set() if is_livepatch else {"x"})


_NAMED = ((0x1000, 64, "copy"), (0x2000, 64, "locks"), (0x1800, 16, "end"))


@pytest.mark.parametrize(("mult", "shift"), [(0, 8), (5, 8), (1 << 31, 0)])
def test_impossible_clock(mult: int, shift: int) -> None:
    prog = {"clocksource_jiffies": SimpleNamespace(mult=mult, shift=shift)}
    with pytest.raises(LookupError, match="tick"):
        hz(prog)
    prog = {"clocksource_jiffies": SimpleNamespace(mult=4_000_000 << 8, shift=8)}
    assert hz(prog) == 250


@pytest.mark.parametrize(
    ("bits", "tail", "head"), [(63, 0, 1), (13, 0, 1 << 13), (13, 5, 4), (13, 1 << 61, 0)]
)
def test_log_with_impossible_ends(bits: int, tail: int, head: int) -> None:
    ends = {"tail_id": SimpleNamespace(counter=tail), "head_id": SimpleNamespace(counter=head)}
    ring = SimpleNamespace(count_bits=bits, **ends)
    with pytest.raises(ValueError, match="ring buffer"):
        records({"prb": SimpleNamespace(desc_ring=ring)})


_LOG = """
struct printk_log 16
    0 unsigned long long ts_nsec; 8 unsigned short len; 10 unsigned short text_len
"""


def old_log(first: int, following: int) -> FakeKernel:
    """Return a kernel with a log as up to v5.9, of three records and the mark of its end."""
    k = FakeKernel("6.10", _LOG)
    k.variable("log_buf", "char *", buffer := k.string(bytes(4096)))
    k.variable("log_first_idx", "unsigned int", first)
    k.variable("log_next_idx", "unsigned int", following)
    at = 0
    for length, text in ((32, b"a"), (32, b"b"), (32, b"c"), (0, b"")):
        k.write_words(buffer + at, (at + 1) * 10**9, length | len(text) << 16)
        k.write(buffer + at + 16, text)
        at += length or 16
    return k


def test_an_old_log_may_go_on_at_its_start() -> None:
    assert records(old_log(64, 32).prog) == [(65.0, "c"), (1.0, "a")]


@pytest.mark.parametrize(("first", "following"), [(0, 40), (0, 200), (64, 40), (4000, 40)])
def test_an_old_log_that_does_not_lead_to_its_end(first: int, following: int) -> None:
    k = old_log(first, following)
    if first == 4000:  # the memory there has a length that leads nowhere
        k.write_words(int(k.prog["log_buf"]) + first, 0, 8)
    with pytest.raises(ValueError, match="kernel log"):
        records(k.prog)


def test_no_flusher_has_no_dirty_page(monkeypatch: pytest.MonkeyPatch) -> None:
    k = FakeKernel("6.10", "struct percpu_counter 40 : 8 long count; 32 int * counters")
    counter = layout(k.prog, "struct percpu_counter", {"count": "count", "parts": "counters"})
    monkeypatch.setattr(writeback, "_counters", lambda prog: [counter, counter])
    monkeypatch.setattr(writeback, "cpu_offsets", lambda prog: np.zeros(2, np.uint64))
    none = np.zeros(0, np.uint64)
    assert [len(each) for each in writeback.dirty_pages(Kernel(k.prog), none, Faults())] == [0, 0]
