# SPDX-License-Identifier: LGPL-2.1-or-later
"""A writer of kallsyms in the forms of all eras, and memory that has them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import drgn

BASE = 0xFFFF_FFFF_8100_0000
"""Address of ``_stext``."""
TABLES = BASE + 0x20_0000
ERAS = ("3.10", "4.6", "5.10", "6.1", "6.2", "6.4", "7.0")
_LETTERS = "_etaoinsrhldcumfpgwybvkxjqz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ.$?"
_PAIRS = [a + b for a in "_etaoinsr" for b in "_etaoinsrhldcumf"]
_OTHERS = iter(_PAIRS)
_TOKENS = [chr(n) if chr(n) in _LETTERS else next(_OTHERS, "") for n in range(256)]
_CODES = {token: code for code, token in enumerate(_TOKENS) if token}


@dataclass
class Written:
    """The bytes of the tables at :data:`TABLES`, and the places of each."""

    data: bytearray
    places: dict[str, int] = field(default_factory=dict)

    def vmcoreinfo(self, symbols: Sequence[tuple[str, str, int]], *, named: bool = True) -> bytes:
        """Return a VMCOREINFO with two symbols, and the places of the tables if ``named``."""
        known = {name: at for _, name, at in symbols if name in ("_stext", "init_uts_ns")}
        known["swapper_pg_dir"] = BASE + 0x10_0000
        if named:
            hidden = ("kallsyms_markers", "kallsyms_seqs_of_names")
            known |= {name: at for name, at in self.places.items() if name not in hidden}
        lines = [f"SYMBOL({name})={address:x}" for name, address in known.items()]
        start = [
            *("OSRELEASE=0.0.0", "PAGESIZE=4096", "KERNELOFFSET=0"),
            *("NUMBER(pgtable_l5_enabled)=0", "NUMBER(phys_base)=0"),
        ]
        return "\n".join([*start, *lines, ""]).encode()


def many(count: int, *, percpu: bool = False) -> list[tuple[str, str, int]]:
    """Return (type, name, address) of so many symbols."""
    start = [("A", "__per_cpu_start", 0), ("A", "current_task", 64)] if percpu else []
    start += [("T", "_stext", BASE), ("T", "_text", BASE)]
    text = [("t", f"function_{n}", BASE + 16 + n * 48) for n in range(count - len(start) - 3)]
    last = text[-1][2]
    data = [("D", "init_uts_ns", last + 64), ("d", "twice", last + 128), ("d", "twice", last + 256)]
    return [*start, *text, *data]


def _compressed(name: str) -> bytes:
    codes, place = [], 0
    while place < len(name):
        token = name[place : place + 2]
        token = token if token in _CODES else name[place]
        codes.append(_CODES[token])
        place += len(token)
    if len(codes) < 128:
        return bytes([len(codes), *codes])
    return bytes([len(codes) & 127 | 128, len(codes) >> 7, *codes])


def write(symbols: Sequence[tuple[str, str, int]], era: str, *, percpu: bool = False) -> Written:
    """Return the tables.

    :param symbols: (type, name, address), by address
    :param percpu: CONFIG_KALLSYMS_ABSOLUTE_PERCPU: low addresses are kept as they are
    """
    align = 4 if era == "7.0" else 8
    word = "<Q" if era in ("3.10", "4.6") else "<I"
    written = Written(bytearray())

    def put(name: str, data: bytes) -> None:
        written.data.extend(bytes(-len(written.data) % align))
        written.places["kallsyms_" + name] = TABLES + len(written.data)
        written.data.extend(data)

    def names() -> None:
        put("num_syms", struct.pack(word, len(symbols)))
        parts = [_compressed(type_ + name) for type_, name, _ in symbols]
        put("names", b"".join(parts))
        marks = list(itertools.accumulate(map(len, parts), initial=0))[:-1:256]
        put("markers", b"".join(struct.pack(word, mark) for mark in marks))

    def sequence() -> None:
        order = sorted(range(len(symbols)), key=lambda row: symbols[row][1])
        put("seqs_of_names", b"".join(row.to_bytes(3, "big") for row in order))

    def tokens() -> None:
        put("token_table", b"".join(token.encode() + b"\0" for token in _TOKENS))
        starts = itertools.accumulate((len(token) + 1 for token in _TOKENS), initial=0)
        put("token_index", struct.pack("<256H", *list(starts)[:-1]))

    def addresses() -> None:
        values = [address for _, _, address in symbols]
        if era == "3.10":
            put("addresses", struct.pack(f"<{len(values)}Q", *values))
            return
        if era == "7.0":
            written.data.extend(bytes(-len(written.data) % align))
            at = TABLES + len(written.data)
            offsets = [value - at - 4 * row for row, value in enumerate(values)]
            put("offsets", struct.pack(f"<{len(values)}i", *offsets))
            return
        if percpu:
            low = [value if value < BASE else BASE - 1 - value for value in values]
            put("offsets", struct.pack(f"<{len(values)}i", *low))
        else:
            put("offsets", struct.pack(f"<{len(values)}I", *(value - BASE for value in values)))
        put("relative_base", struct.pack("<Q", BASE))

    if era in ("6.4", "7.0"):
        parts = [names, tokens, addresses, sequence]
    else:
        parts = [addresses, names, *([sequence] if era == "6.2" else []), tokens]
    for part in parts:
        part()
    return written


def program(vmcoreinfo: bytes, data: bytes | bytearray, *, start: int = TABLES) -> drgn.Program:
    """Return a program of a kernel with this VMCOREINFO, and ``data`` at ``start``."""
    platform = drgn.Platform(drgn.Architecture.X86_64)
    prog = drgn.Program(platform, vmcoreinfo=vmcoreinfo)
    prog.set_linux_kernel_custom(vmcoreinfo, is_live=False)

    def read(address: int, count: int, offset: int, physical: bool) -> bytes:
        return bytes(data[offset : offset + count])

    prog.add_memory_segment(start, len(data), read, physical=False)
    return prog
