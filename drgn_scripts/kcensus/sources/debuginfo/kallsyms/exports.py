# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare symbols with the exported symbols of the kernel.

__ksymtab has names and addresses of 9,000 to 13,000 symbols in strings and numbers of their own:
kallsyms has no checksum, but they share most tokens of names and every page of addresses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kcensus.sources.debuginfo.kallsyms.decode import Read
from kcensus.sources.debuginfo.kallsyms.symbol_names import WEIGHTS, BadKallsyms
from kcensus.sources.debuginfo.kallsyms.symbols import Symbols

Array = npt.NDArray[Any]

_TABLES = (
    ("__start___ksymtab", "__stop___ksymtab"),
    ("__start___ksymtab_gpl", "__stop___ksymtab_gpl"),
)
_MAX_TABLE_BYTES = 1 << 21
_MAX_STRINGS_BYTES = 1 << 22
_MAX_NAME_BYTES = 1 << 10
_MAX_ALIASES = 512
# More differences than a few lost bits make.
_MAX_DIFFERENCES = 16


class _Form(NamedTuple):
    """A form of ``struct kernel_symbol``, which begins with the address and the name.

    Since Linux kernel commit 7290d5809571 ("module: use relative references for __ksymtab
    entries") (in v4.19), both are offsets from their own places. Since commit 8651ec01daed
    ("module: add support for symbol namespaces.") (in v5.4), the namespace follows.
    """

    words: int
    is_relative: bool


# The upper halves of two addresses would be good as offsets.
_FORMS = _Form(2, False), _Form(3, False), _Form(3, True), _Form(2, True)


class Exports(NamedTuple):
    """Result of a comparison."""

    rows: Array
    """Rows of the exported symbols, ascending."""
    doubts: dict[str, str]
    """By name of an exported symbol that differs, a clause."""


_NOTHING = Exports(np.zeros(0, np.int64), {})


def compare(read: Read, table: Symbols) -> Exports:
    """Compare all exported symbols with a table.

    Nothing is compared where the exported symbols are not found or not in the dump.

    :raises BadKallsyms: many symbols differ
    """
    values, names = _read_tables(read, table)
    if not len(values):
        return _NOTHING
    first, last = int(names.min()), int(names.max())
    # Both tables have their names in one section.
    if last - first > _MAX_STRINGS_BYTES:
        return _NOTHING
    try:
        data = read(first, last - first + 1)
        data += read(last + 1, _MAX_NAME_BYTES)
    except BadKallsyms:
        return _NOTHING
    starts = (names - np.uint64(first)).astype(np.int64)
    text = np.frombuffer(data, np.uint8)
    zeros = np.flatnonzero(text == 0)
    if not len(zeros) or starts.max() > zeros[-1]:
        return _NOTHING
    ends = zeros[np.searchsorted(zeros, starts)]
    # The end of a name may be another name, so that they overlap.
    sums = np.append(np.uint32(0), np.cumsum(WEIGHTS.take(text), dtype=np.uint32))
    rows = _rows(table, values, sums[ends] - sums[starts])
    differ = np.flatnonzero(rows < 0)
    if len(differ) > _MAX_DIFFERENCES:
        raise BadKallsyms(f"{len(differ)} exported symbols (__ksymtab) differ from kallsyms")
    doubts = {}
    for nth in differ.tolist():
        name = data[starts[nth] : ends[nth]].decode("ascii", "replace")
        doubts[name] = f"it differs from the exported symbols, which have it at 0x{values[nth]:x}"
    return Exports(np.sort(rows[rows >= 0]), doubts)


def doubtful(table: Symbols) -> str:
    """Return a symbol that says where the exported symbols are, and is in doubt; or nothing."""
    limits = [name for each in _TABLES for name in each]
    return next((n for n in limits if table.address(n) is None and n in table.doubts), "")


def _read_tables(read: Read, table: Symbols) -> tuple[Array, Array]:
    """Return the addresses of all exported symbols, and of their names, uint64."""
    values, names = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    for start_name, stop_name in _TABLES:
        start, stop = table.address(start_name), table.address(stop_name)
        if start is None or stop is None or not 0 < stop - start <= _MAX_TABLE_BYTES:
            continue
        try:
            data = read(start, stop - start)
        except BadKallsyms:
            continue
        for form in _FORMS:
            found = _parsed(data, start, form)
            if found is not None:
                values.append(found[0])
                names.append(found[1])
                break
    return np.concatenate(values), np.concatenate(names)


def _parsed(data: bytes, start: int, form: _Form) -> tuple[Array, Array] | None:
    """Return the columns of a table, or None if it has another form."""
    dtype = np.dtype("<i4" if form.is_relative else "<u8")
    if len(data) % (form.words * dtype.itemsize):
        return None
    words = np.frombuffer(data, dtype).reshape(-1, form.words)
    columns = words[:, :2].astype(np.uint64)
    if form.is_relative:
        places = np.arange(len(words), dtype=np.uint64) * np.uint64(4 * form.words)
        columns += (np.uint64(start) + places)[:, None]
        columns[:, 1] += np.uint64(4)
    names = columns[:, 1]
    # With another form, most numbers are not addresses of names.
    middle = np.sort(names)[len(names) // 2]
    near = names - middle + np.uint64(_MAX_STRINGS_BYTES // 2) < _MAX_STRINGS_BYTES
    if np.count_nonzero(~near) > _MAX_DIFFERENCES:
        return None
    return columns[near, 0], columns[near, 1]


def _rows(table: Symbols, values: Array, keys: Array) -> Array:
    """Return the rows of the symbols with these addresses and keys of names, or -1."""
    addresses, known = table.address_column, table.name_column.keys
    result = np.full(len(values), -1)
    left = np.arange(len(values))
    rows = np.searchsorted(addresses, values)
    for _ in range(_MAX_ALIASES):
        is_there = rows < len(addresses)
        is_there[is_there] = addresses[rows[is_there]] == values[left[is_there]]
        left, rows = left[is_there], rows[is_there]
        is_same = known[rows] == keys[left]
        result[left[is_same]] = rows[is_same]
        left, rows = left[~is_same], rows[~is_same] + 1
        if not len(left):
            break
    return result
