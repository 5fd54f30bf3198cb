# SPDX-License-Identifier: LGPL-2.1-or-later
"""ORC: unwind tables in the memory of an x86-64 kernel and its modules.

Since Linux kernel commit ee9f8fce9964 ("x86/unwind: Add the ORC unwinder") (in v4.14), with
CONFIG_UNWINDER_ORC.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.module import address_to_module

from kcensus.engine.gather import gather, gather_arrays
from kcensus.engine.layout import layout, number_dtype
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.kernel.names import ABSENT

_BLOCK_BYTES = 256
"""LOOKUP_BLOCK_SIZE: bytes of code per element of ``orc_lookup``."""
_MAX_BLOCKS = 1 << 22
"""A gigabyte of code."""
_MAX_ENTRIES = 1 << 24

UNDEFINED, PREVIOUS_SP, BP, SP, BP_INDIRECT, SP_INDIRECT, OTHER = range(7)
"""Base registers of rules."""

_OLD_REGISTERS = {0: UNDEFINED, 1: PREVIOUS_SP, 4: BP, 5: SP, 8: BP_INDIRECT, 9: SP_INDIRECT}
_NEW_REGISTERS = {0: UNDEFINED, 3: SP, 4: BP, 8: PREVIOUS_SP, 9: SP_INDIRECT, 10: BP_INDIRECT}
"""ORC_REG_…, renumbered by Linux kernel commit 1735858caa4b ("objtool/x86: Reorder ORC register
numbering") (in v7.1). They are macros, which debug info lacks; but most rules of any kernel start
from the stack pointer."""
_SAMPLE = 4096
"""Rules to sample for the number of the stack pointer: 24 KiB."""

CALL, REGS, REGS_PARTIAL, END, NONE = range(5)
"""Contents below a frame: a return address, registers, a part of them, nothing, or unknown."""


@dataclass(frozen=True)
class Rules:
    """Rules for finding the callers at places in code."""

    kind: Numbers
    """:data:`CALL`, :data:`REGS`, :data:`REGS_PARTIAL`, :data:`END` or :data:`NONE`."""
    sp_register: Numbers
    sp_offset: Numbers
    bp_register: Numbers
    bp_offset: Numbers


def has_tables(prog: drgn.Program) -> bool:
    """Return whether the kernel was built with tables."""
    try:
        prog.symbol("__start_orc_unwind_ip")
    except LookupError:
        return False
    return True


class OrcTables:
    """The tables of the kernel and its modules.

    :raises LookupError: the kernel has none, or they are damaged
    """

    def __init__(self, memory: Memory, faults: Faults) -> None:
        self.memory, self.faults = memory, faults
        prog = memory.prog
        addresses, entries, lookup, start = (
            int(prog.symbol(name).address)
            for name in ("__start_orc_unwind_ip", "__start_orc_unwind", "orc_lookup", "_stext")
        )
        self._kernel = addresses, entries
        self._lookup, self._start = lookup, start
        try:
            self._blocks = int(prog["lookup_num_blocks"])
        except drgn.FaultError as error:
            raise LookupError("lookup_num_blocks is unreadable") from error
        if not 1 < self._blocks <= _MAX_BLOCKS:
            raise LookupError(f"lookup_num_blocks is damaged: {self._blocks} is impossible")
        numbers = ("sp_offset", "bp_offset", "sp_reg", "bp_reg", "type")
        self._entry = layout(
            prog, "struct orc_entry", [*numbers], {"end": "end", "signal": "signal"}
        )
        sample = np.uint64(entries) + np.arange(_SAMPLE, dtype=np.uint64) * np.uint64(
            self._entry.size
        )
        used = np.bincount(gather(memory, sample, self._entry, faults)["sp_reg"], minlength=16)
        numbering = _NEW_REGISTERS if used[3] > used[5] else _OLD_REGISTERS
        named = sum(used[number] for number, name in numbering.items() if name in (SP, BP))
        if named < _SAMPLE // 2:
            raise LookupError("the table of ORC is unreadable or damaged")
        self._registers = np.array([numbering.get(each, OTHER) for each in range(16)])
        self._modules: dict[int, tuple[int, int, int]] = {}
        self._number = number_dtype(prog, "i4")

    @property
    def mark_ends(self) -> bool:
        """Whether the tables tell the end of a stack from an unknown one: since v4.18."""
        return "end" in self._entry or "signal" in self._entry

    def rules(self, places: Words) -> Rules:
        """Return the rule for each place in code.

        For a return address, pass the place before it: after a call that never returns, another
        function may begin.
        """
        code, row = np.unique(places, return_inverse=True)
        addresses, entries, low, high = self._tables(code)
        low, found = self._search(code, addresses, low, high)
        where = np.where(found, entries + low.astype(np.uint64) * np.uint64(self._entry.size), 0)
        read = gather(self.memory, where.astype(np.uint64), self._entry, self.faults)
        kind = self._kinds(read.columns, found & read.readable)
        return Rules(
            kind=kind[row],
            sp_register=self._registers[read["sp_reg"]][row],
            sp_offset=read["sp_offset"].astype(np.int64)[row],
            bp_register=self._registers[read["bp_reg"]][row],
            bp_offset=read["bp_offset"].astype(np.int64)[row],
        )

    def _kinds(self, columns: Mapping[str, npt.NDArray[Any]], found: Mask) -> Numbers:
        kind = columns["type"].astype(np.int64)
        # Since Linux kernel commit fb799447ae29 ("x86,objtool: Split UNWIND_HINT_EMPTY in two") (in
        # v6.4), 0 is undefined and 1 the end of a stack; `end` is gone. Since commit ffb1b4a41016
        # ("x86/unwind/orc: Add 'signal' field to ORC metadata") (in v6.3), there is `signal`.
        if "signal" in columns and "end" not in columns:
            names = np.array([NONE, END, CALL, REGS, REGS_PARTIAL])
        else:
            names = np.array([CALL, REGS, REGS_PARTIAL])
        known = found & (kind < len(names))
        kind = np.where(known, names[np.where(known, kind, 0)], NONE)
        ends = (columns["sp_reg"] == UNDEFINED) & known & (kind != END)
        if "end" in columns:
            # Since "x86/unwind/orc: Detect the end of the stack" (hash not verified) (in v4.18), an
            # entry without a stack pointer says whether the stack ends there.
            kind[ends & (columns["end"] != 0)] = END
            ends &= columns["end"] == 0
        kind[ends] = NONE
        return kind

    def _tables(self, code: Words) -> tuple[Words, Words, Numbers, Numbers]:
        """Return for each place its two tables, and the range of rows in them."""
        addresses, entries = np.zeros(len(code), np.uint64), np.zeros(len(code), np.uint64)
        low, high = np.zeros(len(code), np.int64), np.zeros(len(code), np.int64)
        block = ((code - np.uint64(self._start)) // np.uint64(_BLOCK_BYTES)).astype(np.int64)
        core = (code >= np.uint64(self._start)) & (block < self._blocks - 1)
        block = np.where(core, block, 0)
        first, last = (
            self._numbers(np.uint64(self._lookup) + np.uint64(4) * (block + more).astype(np.uint64))
            for more in (0, 1)
        )
        addresses[core], entries[core] = self._kernel
        # Only the first code has row 0: elsewhere, a page of the table is lost.
        known = core & ((last > 0) | (block == 0))
        low[known], high[known] = first[known], last[known] + 1
        for row in np.flatnonzero(~core).tolist():
            high[row], addresses[row], entries[row] = self._module(int(code[row]))
        return addresses, entries, low, high

    def _module(self, place: int) -> tuple[int, int, int]:
        """Return length and addresses of the two tables of the module at a place; 0 without one."""
        # Modules begin on pages of their own.
        page = place // self.memory.page_size
        if page not in self._modules:
            self._modules[page] = 0, 0, 0
            with contextlib.suppress(*ABSENT, AttributeError):
                module = address_to_module(self.memory.prog, place)
                count = int(module.arch.num_orcs) if module else 0
                if 0 < count <= _MAX_ENTRIES:
                    tables = int(module.arch.orc_unwind_ip), int(module.arch.orc_unwind)
                    self._modules[page] = count, *tables
        return self._modules[page]

    def _search(
        self, code: Words, addresses: Words, low: Numbers, high: Numbers
    ) -> tuple[Numbers, Mask]:
        """Return the last row in [low, high) that is at or before each place in code."""
        found = (addresses != 0) & (high > low)
        first, end, low, high = low, high, low.copy(), high.copy()
        while (active := np.flatnonzero(found & (high - low > 1))).size:
            middle = (low[active] + high[active]) // 2
            at = addresses[active] + np.uint64(4) * middle.astype(np.uint64)
            distance = self._numbers(at).astype(np.int64).view(np.uint64)
            before = at + distance <= code[active]
            low[active] = np.where(before, middle, low[active])
            high[active] = np.where(before, high[active], middle)
        # No place in code is where its own row is: a page of zeros has led the search astray. The
        # first row and the end were not looked at.
        for row, is_read in ((low, low != first), (high, high != end)):
            looked = np.flatnonzero(found & is_read)
            at = addresses[looked] + np.uint64(4) * row[looked].astype(np.uint64)
            found[looked] = self._numbers(at) != 0
        return low, found

    def _numbers(self, addresses: Words) -> npt.NDArray[np.int32]:
        # A module's table may begin at an odd address.
        return gather_arrays(self.memory, addresses, 1, self._number, self.faults)[0][:, 0]
