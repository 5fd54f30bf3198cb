# SPDX-License-Identifier: LGPL-2.1-or-later
"""A *synthetic* kernel: 16 MiB of invented memory that drgn reads like that of an x86-64 kernel.

Two eras have the real types of a kernel (see :mod:`.eras`); in the others, offsets of members are
invented. What a test writes into this memory is the *truth* that the code under test has to find:

>>> k = FakeKernel("6.10")
>>> dentry = k.cache("dentry", 192)
>>> slab = k.slab(dentry, free=[3, 1, 5])
>>> dentry.allocated()  # addresses of the objects that are neither free nor parked

``k.prog`` is the program; virtual addresses go through real page tables, so drgn's helpers work.
``k.drop(address)`` makes a page unreadable, ``k.set(member, value)`` overwrites any member, and
``k.settle()`` makes the kernel's own counters agree with everything made so far. A variant of an
era is ``FakeKernel(replace(ERAS["7.0"], codetag=True))``.
"""

from tests.unit.fakekernel.eras import ERAS, FILE_ERAS, LRU_ERAS, Era, table
from tests.unit.fakekernel.machine import DIRECT_MAP, PAGE, RANGES, VMEMMAP, Machine
from tests.unit.fakekernel.slub import Cache, FakeKernel, Memcg, Slab
from tests.unit.fakekernel.types import add_types

__all__ = [
    "DIRECT_MAP",
    "ERAS",
    "FILE_ERAS",
    "LRU_ERAS",
    "PAGE",
    "RANGES",
    "VMEMMAP",
    "Cache",
    "Era",
    "FakeKernel",
    "Machine",
    "Memcg",
    "Slab",
    "add_types",
    "table",
]
