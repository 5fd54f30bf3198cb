# SPDX-License-Identifier: LGPL-2.1-or-later
"""A drgn program of a Linux kernel whose memory a function reads, by physical address."""

from __future__ import annotations

from collections.abc import Callable

import drgn

Read = Callable[[int, int], bytes | bytearray]
"""Returns physical memory: (address, size); raises :class:`drgn.FaultError`."""

MAX_MEMORY_BYTES = 1 << 52
"""No physical address of x86_64 or aarch64 is as high."""


def program_of(
    arch: drgn.Architecture,
    vmcoreinfo: bytes,
    read: Read,
    *,
    memory_bytes: int = MAX_MEMORY_BYTES,
    live: bool = False,
) -> drgn.Program:
    """Return a program that translates virtual addresses with the page tables that it reads.

    :param memory_bytes: end of physical memory
    :param live: whether memory may change while it is read
    """
    prog = drgn.Program(drgn.Platform(arch), vmcoreinfo=vmcoreinfo)
    prog.set_linux_kernel_custom(vmcoreinfo, is_live=live)
    _add_segment(prog, 0, memory_bytes, read, physical=True)
    return prog


def add_direct_map(prog: drgn.Program, address: int, memory_bytes: int, read: Read) -> None:
    """Read the direct map without page tables.

    :param address: virtual address of physical address 0
    """
    _add_segment(prog, address, memory_bytes, read, physical=False)


def _add_segment(
    prog: drgn.Program, address: int, size: int, read: Read, *, physical: bool
) -> None:
    def read_segment(address: int, count: int, offset: int, physical: bool) -> bytes | bytearray:
        return read(offset, count)

    prog.add_memory_segment(address, size, read_segment, physical=physical)
