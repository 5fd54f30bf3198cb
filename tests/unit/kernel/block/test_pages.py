# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages of bios on *synthetic* memory: clones, splits and damage."""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.block import bios
from kcensus.kernel.kernel import Kernel
from tests.unit.fakekernel import VMEMMAP, FakeKernel, add_types

_VECTOR = {"struct bio_vec": (16, "0 void * bv_page\n8 unsigned int bv_len\n12 int bv_offset")}


class Vectors:
    """Arrays of ``struct bio_vec``, and bios of them."""

    def __init__(self) -> None:
        self.k = FakeKernel("6.10")
        add_types(self.k.prog, _VECTOR, "block")
        self.rows: list[tuple[int, int, int, int, int]] = []

    def add(self, lengths: list[int], *, count: int, size: int | None = None) -> None:
        """Add a bio of segments of some lengths."""
        array = self.k.alloc(f"struct bio_vec [{len(lengths)}]", alone=True)
        step = drgn.sizeof(self.k.prog.type("struct page"))
        for index, length in enumerate(lengths):
            self.k.set(array[index].bv_page, VMEMMAP + index * step)
            self.k.set(array[index].bv_len, length)
        whole = sum(lengths) if size is None else size
        self.rows.append((int(array.address_), 0, count, 0, whole))

    def pages(self) -> tuple[list[int], int]:
        """Return the number of pages of each bio, and how many bios lack some."""
        vectors, *columns = (np.array(column) for column in zip(*self.rows, strict=True))
        numbers = [column.astype(np.int64) for column in columns]
        memory = Memory(self.k.prog)
        row, _, lost = bios._pages(memory, vectors.astype(np.uint64), *numbers)
        return np.bincount(row, minlength=len(self.rows)).tolist(), lost


def test_a_clone_of_small_segments() -> None:
    vectors = Vectors()
    vectors.add([512] * 8, count=8)
    vectors.add([512] * 8, count=0)
    assert vectors.pages() == ([8, 8], 0)


def test_a_split_of_a_long_array() -> None:
    vectors = Vectors()
    vectors.add([4096] * 400, count=0)
    assert vectors.pages() == ([400], 0)


def test_damaged_bios_do_not_cost_sound_ones() -> None:
    vectors = Vectors()
    for _ in range(5):
        vectors.add([0xFFFF_F000], count=1)
    vectors.add([4096], count=1)
    pages, lost = vectors.pages()
    assert pages[-1] == 1
    assert lost == sum(count == 0 for count in pages) > 0


def test_a_bio_whose_vectors_end_early() -> None:
    vectors = Vectors()
    vectors.add([4096], count=1, size=8192)
    assert vectors.pages() == ([1], 1)


def test_clones_of_requests_lead_to_what_was_submitted() -> None:
    """Multipath clones the bios of a request; a buffer is the private data of the original."""
    k = FakeKernel("6.10")
    bio = "0 void * bi_end_io\n8 void * bi_private"
    info = "0 struct bio * orig\n8 void * tio\n16 struct bio clone"
    add_types(k.prog, {"struct bio": (16, bio), "struct dm_rq_clone_bio_info": (32, info)}, "dm")
    original, clone = k.alloc("struct bio"), k.alloc("struct dm_rq_clone_bio_info")
    k.set(original.bi_end_io, 0x200)
    k.set(original.bi_private, 0xB0F)
    k.set(clone.orig, original)
    k.set(clone.clone.bi_end_io, 0x100)
    address = np.array([int(clone.clone.address_of_())], np.uint64)
    functions = {0x100: "end_clone_bio", 0x200: "xfs_buf_bio_end_io"}
    origin, end_io, private = bios._origins(
        Kernel(k.prog),
        address,
        np.array([0x100], np.uint64),
        np.array([0x7], np.uint64),
        functions,
        Faults(),
    )
    assert origin.tolist() == [int(original.address_)]
    assert (end_io.tolist(), private.tolist()) == ([0x200], [0xB0F])
