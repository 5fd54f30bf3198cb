# SPDX-License-Identifier: LGPL-2.1-or-later
"""Device mapper, workqueues and log of *synthetic* kernels whose memory is damaged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from drgn import Object

from kcensus.engine.memory import Memory
from kcensus.kernel.clock import hz
from kcensus.kernel.dm.devices import mapped_devices
from kcensus.kernel.idr import idr_entries
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.log import records
from kcensus.kernel.symbols import Symbols
from tests.unit.fakekernel import FakeKernel, add_types
from tests.unit.fakekernel.list_lrus import FakeListLrus

NOWHERE = 0xFFFF_C900_0000_0000


def test_a_tree_of_numbers_that_leads_into_itself_ends() -> None:
    fake = FakeListLrus("5.18")
    k = fake.kernel
    add_types(k.prog, {"struct idr": (24, "0 struct xarray idr_rt")}, "idr")
    idr = k.alloc("struct idr")
    fake.xarray(idr.idr_rt, {at * 64: (at + 1) << 12 for at in range(5)})
    assert idr_entries(Memory(k.prog), idr) == ([1 << 12, 2 << 12, 3 << 12, 4 << 12, 5 << 12], 0)
    root = Object(k.prog, "struct xa_node", address=int(idr.idr_rt.xa_head) - 2)
    k.set(root.slots[1], int(idr.idr_rt.xa_head))
    assert idr_entries(Memory(k.prog), idr) == ([1 << 12, 3 << 12, 4 << 12, 5 << 12], 1)


DM = {
    "struct idr": (8, ""),
    "struct mapped_device": (32, "0 char [16] name\n16 void * interface_ptr\n24 void * map"),
    "struct hash_cell": (16, "0 char * name\n8 char * uuid"),
    "struct dm_table": (16, "0 unsigned int num_targets\n8 struct dm_target * targets"),
    "struct dm_target": (
        32,
        "0 struct target_type * type\n8 unsigned long begin\n16 unsigned long len\n"
        "24 void * private",
    ),
    "struct target_type": (8, "0 char * name"),
}


def test_what_can_be_read_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    k = FakeKernel("6.10")
    add_types(k.prog, DM, "dm")
    k.variable("_minor_idr", "struct idr", 0)
    md, cell, table = (
        k.alloc(f"struct {name}") for name in ("mapped_device", "hash_cell", "dm_table")
    )
    k.write(md.name.address_, b"254:0")
    k.set(cell.name, k.string(b"n" * 3000))
    k.set(md.interface_ptr, cell)
    k.set(md.map, table)
    targets = k.alloc("struct dm_target [3]")
    kind = k.alloc("struct target_type")
    k.set(kind.name, k.string(b"snapshot"))
    k.set(targets[0].type, kind)
    k.set(targets[0].len, 8)
    k.set(targets[1].type, NOWHERE)
    k.set(table.num_targets, 3)
    k.set(table.targets, targets)
    monkeypatch.setattr(
        "kcensus.kernel.dm.devices.idr_entries", lambda *_: ([0, int(md.address_), NOWHERE], 1)
    )
    found = mapped_devices(Kernel(k.prog))
    (device,) = found.devices
    assert (device.number, device.name) == ("254:0", "n" * 256)
    assert [(target.type_name, target.length) for target in device.targets] == [("snapshot", 8)]
    # A node of the tree, the second target, and the other device.
    assert found.damaged == 3


def test_a_module_that_cannot_be_read_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    k = FakeKernel("6.10")
    add_types(k.prog, {"struct module": (56, "0 char [56] name")}, "module")
    module = Object(k.prog, "struct module *", value=NOWHERE)
    patched = "kcensus.kernel.symbols.address_to_module"
    monkeypatch.setattr(patched, lambda *_: module)
    assert Symbols(k.prog)(0x1234) == ("0x1234", "")


def test_symbols_of_a_module_without_debug_info(monkeypatch: pytest.MonkeyPatch) -> None:
    k = FakeKernel("6.10")
    add_types(
        k.prog, {"struct module": (64, "0 char [56] name\n56 unsigned int num_symtab")}, "module"
    )
    made = k.alloc("struct module")
    k.write(made.name.address_, b"dm_x\0")
    k.set(made.num_symtab, len(_NAMED))
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
    """drgn walks from one to the other, however far."""
    ring = SimpleNamespace(
        count_bits=bits,
        tail_id=SimpleNamespace(counter=tail),
        head_id=SimpleNamespace(counter=head),
    )
    with pytest.raises(ValueError, match="ring buffer"):
        records({"prb": SimpleNamespace(desc_ring=ring)})


_RECORD = (
    "0 unsigned long long ts_nsec\n8 unsigned short len\n10 unsigned short text_len\n"
    "12 unsigned short dict_len"
)


def old_log(*pieces: tuple[int, bytes], first: int, following: int) -> FakeKernel:
    """Return a kernel with a log as up to v5.9: lengths and texts, one after the other."""
    k = FakeKernel("6.10")
    add_types(k.prog, {"struct printk_log": (16, _RECORD)}, "log")
    k.variable("log_buf", "char *", buffer := k.string(bytes(4096)))
    k.variable("log_first_idx", "unsigned int", first)
    k.variable("log_next_idx", "unsigned int", following)
    at = 0
    for length, text in pieces:
        header = [(at + 1) * 10**9, length | len(text) << 16]
        k.write_words(buffer + at, *header)
        k.write(buffer + at + 16, text)
        at += length or 16
    return k


def test_an_old_log_may_go_on_at_its_start() -> None:
    k = old_log((32, b"a"), (32, b"b"), (32, b"c"), (0, b""), first=64, following=32)
    assert records(k.prog) == [(65.0, "c"), (1.0, "a")]


@pytest.mark.parametrize(("first", "following"), [(0, 40), (0, 200), (64, 40), (4000, 40)])
def test_an_old_log_that_does_not_lead_to_its_end(first: int, following: int) -> None:
    k = old_log((32, b"a"), (32, b"b"), (32, b"c"), (0, b""), first=first, following=following)
    if first == 4000:  # the memory there has a length that leads nowhere
        k.write_words(int(k.prog["log_buf"]) + first, 0, 8)
    with pytest.raises(ValueError, match="kernel log"):
        records(k.prog)
