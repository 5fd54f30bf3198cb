# SPDX-License-Identifier: LGPL-2.1-or-later
"""Operation and flags of requests and bios."""

from __future__ import annotations

from typing import Any

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Mask, Numbers

_READ, _FLUSH, _DISCARD = 0, 2, 3
_MAX_OPERATION = 7
"""Largest operation in the highest three bits."""


class Operations:
    """Decoder of ``request.cmd_flags`` and ``bio.bi_opf``.

    :raises LookupError: the debug info lacks the flags
    """

    def __init__(self, prog: drgn.Program) -> None:
        # Since Linux kernel commit ef295ecf090d ("block: better op and flags encoding") (in v4.10),
        # the operation is the lowest byte; before, the highest three bits. The commit renamed
        # enum rq_flag_bits.
        flags = _enumerators(prog, "enum req_flag_bits")
        self._in_low_byte = bool(flags)
        if not flags:
            flags = _enumerators(prog, "enum rq_flag_bits")
        if not flags:
            raise LookupError("could not find the flags of requests")
        self.flags = {
            name.removeprefix("__REQ_").lower(): value
            for name, value in flags.items()
            if not name.endswith("NR_BITS")
        }
        """Bit of each flag, by name."""
        # Since Linux kernel commit ff07a02e9e8e ("treewide: Rename enum req_opf into enum req_op")
        # (in v6.0); enum req_op was the name before v4.10, too.
        operations = _enumerators(prog, "enum req_op") or _enumerators(prog, "enum req_opf")
        # Until v4.7 (commit not verified), flags tell the operation; Red Hat's kernel 3.10 has an
        # enum of their masks.
        if not self._in_low_byte and max(operations.values(), default=0) > _MAX_OPERATION:
            operations = {}
        self._has_operations = bool(operations)
        self.names = {
            value: name.removeprefix("REQ_OP_").lower()
            for name, value in operations.items()
            if name != "REQ_OP_LAST"
        } or {_READ: "read", 1: "write", _FLUSH: "flush", _DISCARD: "discard"}
        """Name of each operation."""

    def _is(self, operation: Numbers, *starts: str) -> Mask:
        values = [value for value, name in self.names.items() if name.startswith(starts)]
        return np.isin(operation, np.array(values, np.int64))

    def has_pages(self, operation: Numbers) -> Mask:
        """Return which operations have data of their size in memory."""
        names = "discard", "secure_erase", "write_same", "write_zeroes", "zone_"
        # Data is appended to a zone.
        return ~self._is(operation, *names) | self._is(operation, "zone_append")

    def is_flush(self, operation: Numbers) -> Mask:
        """Return which operations flush a disk's cache."""
        return self._is(operation, "flush")

    def operation(self, flags: npt.NDArray[Any]) -> Numbers:
        """Return the operation of requests."""
        words = flags.astype(np.uint64)
        if self._in_low_byte:
            return (words & np.uint64(0xFF)).astype(np.int64)
        if self._has_operations:
            return (words >> np.uint64(8 * flags.dtype.itemsize - 3)).astype(np.int64)
        found = self.has(flags, "write").astype(np.int64)
        found[self.has(flags, "discard")] = _DISCARD
        return found

    def has(self, flags: npt.NDArray[Any], name: str) -> Mask:
        """Return which requests have a flag; none if this kernel lacks it."""
        if name not in self.flags:
            return np.zeros(len(flags), np.bool_)
        bit = np.uint64(1 << self.flags[name])
        return np.asarray((flags.astype(np.uint64) & bit) != 0)

    def is_write(self, operation: Numbers) -> Mask:
        """Return which operations count as writes."""
        # Since Linux kernel commit 87374179c535 ("block: add a proper block layer data direction
        # encoding") (in v4.10), the lowest bit marks writes.
        return np.asarray((operation & 1) != 0 if self._in_low_byte else operation != _READ)

    def is_scheduled(self, operation: Numbers, flags: npt.NDArray[Any]) -> Mask:
        """Return which requests pass through the scheduler.

        Flushes, their parts, and passthrough bypass the scheduler.
        """
        return self.is_accounted(operation) & ~self.has(flags, "flush_seq")

    def is_accounted(self, operation: Numbers) -> Mask:
        """Return which operations disks account: no flushes, no passthrough of drivers."""
        return ~self._is(operation, "flush", "drv", "scsi")

    def is_sync(self, flags: npt.NDArray[Any]) -> Mask:
        """Return which requests are synchronous: reads, and writes that a task waits for."""
        waits = self.has(flags, "sync")
        if self._in_low_byte:
            waits = waits | self.has(flags, "fua") | self.has(flags, "preflush")
        return np.asarray((self.operation(flags) == _READ) | waits)

    def name(self, operation: int) -> str:
        """Return the name of an operation."""
        return self.names.get(operation, f"operation {operation}")

    def flag_text(self, flags: int) -> str:
        """Return the names of set flags, in the order of their bits: ``sync|meta``."""
        known = sorted(self.flags.items(), key=lambda item: item[1])
        return "|".join(name for name, bit in known if flags >> bit & 1)


def _enumerators(prog: drgn.Program, name: str) -> dict[str, int]:
    try:
        return {each.name: each.value for each in prog.type(name).enumerators or ()}
    except LookupError:
        return {}
