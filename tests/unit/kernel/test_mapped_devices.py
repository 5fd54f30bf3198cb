# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mapped devices of *synthetic* kernels, and their index of names."""

from __future__ import annotations

import pytest
from drgn import Object

from kcensus.kernel.dm.devices import mapped_devices
from kcensus.kernel.kernel import Kernel
from tests.unit.fakekernel import FakeKernel, add_types

TYPES = {
    "struct mapped_device": (64, "0 char [16] name\n16 void * interface_ptr\n24 void * map"),
    "struct hash_cell": (
        64,
        "0 struct rb_node name_node\n24 struct list_head name_list\n40 char * name",
    ),
    "struct dm_table": (16, "0 unsigned int num_targets\n8 struct dm_target * targets"),
    "struct dm_target": (
        32,
        "0 struct target_type * type\n8 unsigned long begin\n16 unsigned long len\n"
        "24 void * private",
    ),
    "struct target_type": (8, "0 char * name"),
    "struct rb_node": (
        24,
        "0 unsigned long color\n8 struct rb_node * rb_right\n16 struct rb_node * rb_left",
    ),
    "struct rb_root": (8, "0 struct rb_node * rb_node"),
}


def kernel(index: str) -> tuple[FakeKernel, Object, list[Object]]:
    """A kernel with one mapped device of two targets, and three names."""
    k = FakeKernel("6.10")
    add_types(k.prog, TYPES, "dm")
    device, table = k.alloc("struct mapped_device"), k.alloc("struct dm_table")
    targets, kind = k.alloc("struct dm_target [2]"), k.alloc("struct target_type")
    k.set(kind.name, k.string(b"linear"))
    for target, (begin, length) in zip(targets, [(0, 8), (8, 24)], strict=True):
        k.set(target.type, kind)
        k.set(target.begin, begin)
        k.set(target.len, length)
    k.set(table.num_targets, 2)
    k.set(table.targets, targets)
    k.write(device.name.address_, b"253:0")
    k.set(device.map, table)
    cells = [k.alloc("struct hash_cell") for _ in range(3)]
    k.set(cells[0].name, k.string(b"vg-root"))
    k.set(device.interface_ptr, cells[0])
    idr = k.variable("_minor_idr", "struct idr")
    k.set(idr.idr_rt.xa_head, int(device.address_))
    if index == "tree":
        k.set(k.variable("name_rb_tree", "struct rb_root").rb_node, cells[0].name_node)
        k.set(cells[0].name_node.rb_left, cells[1].name_node)
        k.set(cells[0].name_node.rb_right, cells[2].name_node)
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


def test_a_tree_with_a_cycle_ends() -> None:
    k, _, cells = kernel("tree")
    k.set(cells[2].name_node.rb_left, cells[0].name_node)
    devices = mapped_devices(Kernel(k.prog))
    assert (devices.named, devices.damaged) == (3, 1)


def test_a_bent_hash_list() -> None:
    k, _, cells = kernel("hash")
    k.set(cells[1].name_list.next, cells[0].name_list)
    assert mapped_devices(Kernel(k.prog)).damaged == 1


def test_targets_that_cannot_be() -> None:
    k, table, _ = kernel("tree")
    # The number of targets is garbage: what follows the last one is none.
    k.set(table.num_targets, 0xFFFFFFFF)
    devices = mapped_devices(Kernel(k.prog))
    assert (len(devices.devices[0].targets), devices.damaged) == (2, 1)
    k.set(table.targets[1].begin, 99)
    assert len(mapped_devices(Kernel(k.prog)).devices[0].targets) == 1
