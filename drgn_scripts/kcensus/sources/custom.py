# SPDX-License-Identifier: LGPL-2.1-or-later
"""A drgn program of a Linux kernel that reads memory with a function, by physical address."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import drgn

from kcensus.arch import MAX_MEMORY_BYTES

Read = Callable[[int, int], bytes | bytearray]
"""Function that returns physical memory: (address, size); raises :class:`drgn.FaultError`."""


def program_of(
    arch: drgn.Architecture,
    vmcoreinfo: bytes,
    read: Read,
    *,
    memory_bytes: int = MAX_MEMORY_BYTES,
    live: bool = False,
) -> drgn.Program:
    """Return a program that translates virtual addresses with the page tables in its memory."""
    prog = drgn.Program(drgn.Platform(arch), vmcoreinfo=vmcoreinfo)
    prog.set_linux_kernel_custom(vmcoreinfo, is_live=live)
    prog.add_memory_segment(0, memory_bytes, _segment(read), physical=True)
    return prog


def read_page_tables(prog: drgn.Program) -> None:
    """Have drgn read the VMCOREINFO of page tables, as it does at the first virtual access.

    It may raise any exception if VMCOREINFO does not describe a Linux kernel.
    """
    with contextlib.suppress(drgn.FaultError):
        prog.read((1 << 64) - 8, 8)


def add_direct_map(prog: drgn.Program, address: int, memory_bytes: int, read: Read) -> None:
    """Read the direct map, where physical address 0 is at ``address``, without page tables."""
    prog.add_memory_segment(address, memory_bytes, _segment(read), physical=False)


def _segment(read: Read) -> Any:
    return lambda address, count, offset, physical: read(offset, count)
