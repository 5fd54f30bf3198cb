# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mapped devices of *synthetic* kernels, and their index of names."""

from __future__ import annotations

import pytest
from drgn import Object

from kcensus.kernel.dm.devices import CLIENTS_OF_TARGETS, mapped_devices
from kcensus.kernel.kernel import Kernel
from tests.unit.fakekernel import FakeKernel

TYPES = """
struct mapped_device 64 : 0 char [16] name; 16 void * interface_ptr; 24 void * map
struct hash_cell 64 : 0 struct rb_node name_node; 24 struct list_head name_list; 40 char * name
struct dm_table 16 : 0 unsigned int num_targets; 8 struct dm_target * targets
struct dm_target 32
    0 struct target_type * type; 8 unsigned long begin; 16 unsigned long len; 24 void * private
struct target_type 8 : 0 char * name
struct rb_node 24 : 0 unsigned long color; 8 struct rb_node * rb_right; 16 struct rb_node * rb_left
struct rb_root 8 : 0 struct rb_node * rb_node
"""
_NOWHERE = 0xFFFF_C900_0000_0000


def kernel(index: str) -> tuple[FakeKernel, Object, list[Object]]:
    k = FakeKernel("6.10", TYPES)
    targets = k.alloc("struct dm_target [2]")
    kind = k.alloc("struct target_type", name=b"linear")
    for target, (begin, length) in zip(targets, [(0, 8), (8, 24)], strict=True):
        k.fill(target, type=kind, begin=begin, len=length)
    table = k.alloc("struct dm_table", num_targets=2, targets=targets)
    cells = [k.alloc("struct hash_cell", name=b"vg-root") for _ in range(3)]
    device = k.alloc("struct mapped_device", name=b"253:0", map=table, interface_ptr=cells[0])
    k.set(k.variable("_minor_idr", "struct idr").idr_rt.xa_head, device)
    if index == "tree":
        k.set(k.variable("name_rb_tree", "struct rb_root").rb_node, cells[0].name_node)
        k.fill(cells[0].name_node, rb_left=cells[1].name_node, rb_right=cells[2].name_node)
    else:
        buckets = k.variable("_name_buckets", "struct list_head [64]")
        for bucket in buckets:
            k.list_init(bucket)
        for cell, bucket in zip(cells, (buckets[0], buckets[7], buckets[7]), strict=True):
            k.list_add_tail(cell.name_list, bucket)
    return k, table, cells


@pytest.mark.parametrize("index", ["tree", "hash"])
def test_devices_and_names(index: str) -> None:
    k, _, _ = kernel(index)
    devices = mapped_devices(Kernel(k.prog))
    (device,) = devices.devices
    assert (device.name, device.number) == ("vg-root", "253:0")
    assert [(target.begin, target.length) for target in device.targets] == [(0, 8), (8, 24)]
    # Two devices are in the index of names, but not in that of minor numbers.
    assert (devices.named, devices.damaged) == (3, 0)


def test_what_can_be_read_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    k, table, cells = kernel("tree")
    k.set(cells[0].name, k.string(b"n" * 3000))
    k.set(table.targets[1].type, _NOWHERE)
    numbers = [0, int(k.symbols["_minor_idr"].idr_rt.xa_head), _NOWHERE]
    monkeypatch.setattr("kcensus.kernel.dm.devices.idr_entries", lambda *_: (numbers, 1))
    found = mapped_devices(Kernel(k.prog))
    (device,) = found.devices
    assert (device.number, device.name) == ("253:0", "n" * 256)
    assert [(target.type_name, target.length) for target in device.targets] == [("linear", 8)]
    # A node of the tree, the second target, and the other device.
    assert found.damaged == 3


def test_a_tree_with_a_cycle_ends_and_a_bent_list_is_torn() -> None:
    k, _, cells = kernel("tree")
    k.set(cells[2].name_node.rb_left, cells[0].name_node)
    devices = mapped_devices(Kernel(k.prog))
    assert (devices.named, devices.damaged) == (3, 1)
    k, _, cells = kernel("hash")
    k.set(cells[1].name_list.next, cells[0].name_list)
    assert mapped_devices(Kernel(k.prog)).damaged == 1
    # Targets that cannot be.
    k, table, _ = kernel("tree")
    # The number of targets is garbage: what follows the last one is none.
    k.set(table.num_targets, 0xFFFFFFFF)
    devices = mapped_devices(Kernel(k.prog))
    assert (len(devices.devices[0].targets), devices.damaged) == (2, 1)
    k.set(table.targets[1].begin, 99)
    assert len(mapped_devices(Kernel(k.prog)).devices[0].targets) == 1


_ZONED = {
    "per target": """
struct dmz_target 16 : 0 struct dmz_dev * dev; 8 struct dmz_reclaim * reclaim
struct dmz_dev 8 : 0 unsigned int id
""",
    "per device": """
struct dmz_target 16 : 0 struct dmz_dev * dev; 8 unsigned int nr_ddevs
struct dmz_dev 16 : 0 unsigned int id; 8 struct dmz_reclaim * reclaim
""",
}
_RECLAIM = """
struct dmz_reclaim 16 : 8 struct dm_kcopyd_client * kc
struct dm_kcopyd_client 8 : 0 void * pages
"""


@pytest.mark.parametrize("reclaim", _ZONED)
def test_clients_of_zoned_targets(reclaim: str) -> None:
    k = FakeKernel("6.10", _ZONED[reclaim] + _RECLAIM)
    reclaims = k.alloc("struct dmz_reclaim [2]")
    for each, kc in zip(reclaims, (0x1000, 0x2000), strict=True):
        k.set(each.kc, kc)
    target, devices = k.alloc("struct dmz_target"), k.alloc("struct dmz_dev [2]")
    k.set(target.dev, devices)
    if reclaim == "per target":
        k.set(target.reclaim, reclaims)
    else:
        k.set(target.nr_ddevs, 2)
        for device, each in zip(devices, reclaims, strict=True):
            k.set(device.reclaim, each)
    clients = CLIENTS_OF_TARGETS["zoned"](k.prog, int(target.address_of_()))
    assert clients == ([0x1000] if reclaim == "per target" else [0x1000, 0x2000])
