# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages of bios on *synthetic* memory: clones, splits and damage."""

from __future__ import annotations

import drgn
import numpy as np
import pytest

from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.block import bios
from kcensus.kernel.kernel import Kernel
from tests.unit.fakekernel import VMEMMAP, FakeKernel

_VECTOR = "struct bio_vec 16 : 0 void * bv_page; 8 unsigned int bv_len; 12 int bv_offset"
_CLONE = """
struct bio 16 : 0 void * bi_end_io; 8 void * bi_private
struct dm_rq_clone_bio_info 32 : 0 struct bio * orig; 8 void * tio; 16 struct bio clone
"""
_SOUND = [*[(1 << 20) - 1] * 4, 0, 1]


@pytest.mark.parametrize(
    ("bios_of", "pages", "lost"),
    [
        # A clone does not know the number of its small segments.
        ([([512] * 8, 8, 4096), ([512] * 8, 0, 4096)], [8, 8], 0),
        # A split of a long array.
        ([([4096] * 400, 0, 4096 * 400)], [400], 0),
        # Its vectors end early.
        ([([4096], 1, 8192)], [1], 1),
        # Damaged bios do not cost the sound one.
        ([([0xFFFF_F000], 1, 0xFFFF_F000)] * 5 + [([4096], 1, 4096)], _SOUND, 1),
    ],
    ids=["clone", "split", "short", "damaged"],
)
def test_pages_of_bios(
    bios_of: list[tuple[list[int], int, int]], pages: list[int], lost: int
) -> None:
    k = FakeKernel("6.10", _VECTOR)
    step, arrays = drgn.sizeof(k.prog.type("struct page")), []
    for lengths, _, _ in bios_of:
        array = k.alloc(f"struct bio_vec [{len(lengths)}]", alone=True)
        for index, length in enumerate(lengths):
            k.fill(array[index], bv_page=VMEMMAP + index * step, bv_len=length)
        arrays.append(int(array.address_))
    none = np.zeros(len(arrays), np.int64)
    count, size = (np.array(column) for column in list(zip(*bios_of, strict=True))[1:])
    row, _, missing = bios._pages(
        Memory(k.prog), np.array(arrays, np.uint64), none, count, none, size
    )
    found = np.bincount(row, minlength=len(arrays)).tolist()
    assert (found, missing) == (pages, lost)


def test_clones_of_requests_lead_to_what_was_submitted() -> None:
    """Multipath clones the bios of a request; a buffer is the private data of the original."""
    k = FakeKernel("6.10", _CLONE)
    original = k.alloc("struct bio", bi_end_io=0x200, bi_private=0xB0F)
    clone = k.alloc("struct dm_rq_clone_bio_info", orig=original)
    k.set(clone.clone.bi_end_io, 0x100)
    address = np.array([int(clone.clone.address_of_())], np.uint64)
    functions = {0x100: "end_clone_bio", 0x200: "xfs_buf_bio_end_io"}
    ends, privates = np.array([0x100], np.uint64), np.array([0x7], np.uint64)
    origin, end_io, private = bios._origins(
        Kernel(k.prog), address, ends, privates, functions, Faults()
    )
    assert origin.tolist() == [int(original.address_)]
    assert (end_io.tolist(), private.tolist()) == ([0x200], [0xB0F])
