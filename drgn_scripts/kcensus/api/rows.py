# SPDX-License-Identifier: LGPL-2.1-or-later
"""Turn rows into drgn objects and back, follow pointers of all rows, and resolve paths."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import drgn
import numpy as np
import pandas as pd

from kcensus.api.frames import MIN_ADDRESS, AddressedSeries, Frame
from kcensus.api.objects import IncompleteWarning, columns_of, type_of
from kcensus.api.source import Readable, context_of, program_of
from kcensus.engine.gather import gather
from kcensus.engine.layout import pointee_names
from kcensus.engine.memory import Faults, Words
from kcensus.kernel.vfs.paths import ancestry, resolve
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.text import printable

Place: TypeAlias = drgn.Object | int
"""An object of a :class:`drgn.Program`, a pointer to one, or an address."""

_MADE_FLOATS = "pandas made floats of these numbers, and addresses do not fit into them"
_STRUCTURES = (drgn.TypeKind.STRUCT, drgn.TypeKind.UNION, drgn.TypeKind.CLASS)


def address_of(place: Any) -> int:
    """Return the address of an object, in a pointer, or given as a number.

    :raises ValueError: the object is a value without an address, or the number is a float, which
        has 53 bits for the 64 of an address
    :raises TypeError: the place is neither object, pointer nor number
    """
    if isinstance(place, (float, np.floating)):
        raise ValueError(f"{_MADE_FLOATS}; if a join did, use join(how='inner')")
    if isinstance(place, str):
        text = printable(place)
        raise TypeError(f"'{text}' is a text, not an address: pass a column of addresses")
    if not isinstance(place, drgn.Object):
        return operator.index(place)
    is_structure = place.type_.unaliased_kind() in _STRUCTURES
    if is_structure and place.address_ is None:
        raise ValueError("the object is a value without an address; pass the original or a pointer")
    return int(place.address_) if is_structure else int(place)


def addresses_of(places: Place | Iterable[Any]) -> Words:
    """Return the addresses of one or several places as an array.

    :raises ValueError: an object is a value, or the numbers are floats
    :raises TypeError: they are neither objects nor numbers
    """
    if isinstance(places, (drgn.Object, int, np.integer)):
        places = [places]
    elif isinstance(places, (pd.Series, pd.Index, np.ndarray)):
        array = np.asarray(places)
        if array.dtype.kind in "ui":
            return array.astype(np.uint64, copy=False)
        places = array.tolist()
    # A list of uint64 and int becomes an array of floats, so NumPy does not choose the type.
    return np.fromiter(map(address_of, places), np.uint64)


def as_object(source: Readable, row: pd.Series[Any] | Place, type_name: str = "") -> drgn.Object:
    """Return a drgn pointer to the object of a row, of a table or of :func:`objects`.

    drgn's helpers take pointers, and ``pointer.member`` is the object's member; ``pointer[0]`` is
    the object itself.

    >>> import kcensus
    >>> target = kcensus.open_target("sample")
    >>> dentries = kcensus.objects(target, "struct dentry", ["d_flags"])
    >>> dentry = kcensus.as_object(target, dentries.iloc[0])
    >>> bool(dentry.d_flags.value_() == dentries["d_flags"].iloc[0])
    True
    >>> mounts = kcensus.dentries(target).tables["super_blocks"]
    >>> kcensus.as_object(target, mounts.iloc[0]).type_.type_name()
    'struct super_block *'

    :param source: the drgn program or target of the row
    :param row: a row of the DataFrame, an address, or a drgn object or pointer
    :param type_name: such as ``struct dentry``; by default the type in ``attrs["types"]`` of the
        row, which it has from its DataFrame, or that of the object
    :raises LookupError: there is no such type
    :raises NotRecorded: the type is missing from the capsule
    :raises ValueError: the row has neither address nor type, or pandas made a float of the address
    """
    if isinstance(row, pd.Series):
        type_name = type_name or _types(row).get("address", "")
        address = _address(row)
    else:
        address = address_of(row)
    if isinstance(row, drgn.Object) and not type_name:
        type_ = row.type_.unaliased()
        if type_.kind in _STRUCTURES:
            return row.address_of_()
        type_name = type_.type.type_name() if type_.kind is drgn.TypeKind.POINTER else ""
    if not type_name:
        raise ValueError("the type of the object is unknown; pass its name, such as 'struct inode'")
    prog = program_of(source)
    return drgn.Object(prog, prog.pointer_type(type_of(prog, type_name)), value=address)


def rows(frame: pd.DataFrame, objects: Place | Iterable[Place]) -> pd.DataFrame:
    """Return the rows of some drgn objects, in the order of ``frame``.

    It is the inverse of :func:`as_object`.

    >>> import kcensus
    >>> target = kcensus.open_target("sample")
    >>> dentries = kcensus.objects(target, "struct dentry", ["d_parent"])
    >>> dentry = kcensus.as_object(target, dentries.iloc[7])
    >>> kcensus.rows(dentries, dentry).index.equals(dentries.index[[7]])
    True

    :param frame: a table of a :class:`Result`, or a result of :func:`objects`
    :param objects: a drgn object, a pointer to one, an address, or several
    :raises ValueError: the rows of ``frame`` have no addresses, or pandas made floats of them
    """
    if "address" in frame.columns:
        addresses: Any = frame["address"]
    elif frame.index.name == "address":
        addresses = frame.index
    else:
        raise ValueError("the rows have no addresses: there is neither column nor index 'address'")
    return frame[np.isin(addresses_of(addresses), addresses_of(objects))]


def follow(
    source: Readable,
    pointers: pd.Series[Any] | Place | Iterable[Place],
    members: str | Sequence[str],
    type_name: str = "",
) -> pd.DataFrame:
    """Read members of the targets of a column of pointers, in bulk.

    >>> import kcensus
    >>> target = kcensus.open_target("sample")
    >>> dentries = kcensus.objects(target, "struct dentry", "d_parent")
    >>> parents = kcensus.follow(target, dentries["d_parent"], ["d_inode"])
    >>> parents.index.equals(dentries.index), list(parents)
    (True, ['d_inode'])

    :param source: the drgn program or target of the pointers
    :param pointers: a column of a result of :func:`objects` or of this function, or column
        ``address`` of a table; any addresses
    :param members: member paths, as in :func:`objects`
    :param type_name: type of the targets; by default the declared type of the pointers in
        ``attrs["types"]`` of the column, which it has from its DataFrame
    :return: one row per pointer, with the index of ``pointers`` (the addresses themselves if these
        are not a Series). ``frame.join(…, how="inner")`` puts both together. Rows of null and of
        unreadable pointers (:class:`IncompleteWarning`) are left out: any other join fills them
        with NaN, for which pandas makes floats of the other addresses
    :raises LookupError: there is no such type or member
    :raises NotRecorded: the type or member is missing from the capsule
    :raises ValueError: the type is neither passed nor known from the column, or pandas made floats
        of the addresses
    """
    if not isinstance(pointers, pd.Series):
        listed = addresses_of(pointers)
        pointers = pd.Series(listed, pd.Index(listed, name="address"), name="address")
    type_name = type_name or _types(pointers).get(pointers.name, "")
    if not type_name:
        raise ValueError(
            f"the target of {pointers.name!r} is unknown; pass its type, such as 'struct inode'"
        )
    kernel = context_of(source).kernel
    type_ = type_of(kernel.prog, type_name)
    columns = columns_of(kernel.prog, type_, members)
    known = pointers[pointers.notna() & (pointers != 0)]
    read = gather(kernel.memory, addresses_of(known), columns, Faults())
    frame = Frame(dict(read.columns), index=known.index)
    if not read.readable.all():
        lost = np.count_nonzero(~read.readable)
        warnings.warn(
            f"rows left out because their pointers lead to unreadable memory: {lost}",
            IncompleteWarning,
            stacklevel=2,
        )
        frame = Frame(frame[read.readable])
    frame.attrs["types"] = pointee_names(type_, frame.columns)
    return frame


def paths(source: Readable, addresses: Place | Iterable[Place]) -> pd.Series[str]:
    """Return the path of each dentry in init's namespace, through mounts.

    >>> import kcensus
    >>> target = kcensus.open_target("sample")
    >>> dentries = kcensus.objects(target, "struct dentry", "d_parent")
    >>> busiest = dentries["d_parent"].value_counts().index[0]
    >>> kcensus.paths(target, [busiest]).tolist()
    ['/srv/spool/tmp']

    :param source: a drgn program or a target
    :param addresses: one dentry or several, in any order, repeated or not: objects, pointers or
        addresses, such as the index of a DataFrame of :func:`kcensus.objects`
    :return: paths by address. ``?`` begins a path with an unreadable upper end, and replaces an
        unreadable name. Special characters are escaped, so paths are safe to print
    :raises LookupError: the debug info lacks a type
    :raises NotRecorded: the capsule lacks a type
    :raises ValueError: pandas made floats of the addresses
    """
    kernel = context_of(source).kernel
    dentries = addresses_of(addresses)
    chain = ancestry(kernel.memory, dentries, Faults())
    found = resolve(chain, dentries, super_blocks(kernel).mount_roots)
    texts = [printable(path.text) for path in found]
    return AddressedSeries(texts, pd.Index(dentries, name="address"), dtype=object, name="path")


def _types(values: pd.Series[Any]) -> Mapping[Hashable, str]:
    """Return the types at the addresses of a row or column, by column."""
    types: Mapping[Hashable, str] = values.attrs.get("types", {})
    return types


def _address(row: pd.Series[Any]) -> int:
    value: Any = row["address"] if "address" in row.index else row.name
    if isinstance(value, float):
        raise ValueError(
            f"{_MADE_FLOATS}; pass the address, frame['address'].iloc[…], and the name of the type"
        )
    if not isinstance(value, (int, np.integer)) or value < MIN_ADDRESS:
        raise ValueError(f"the row has no address of an object: {value}")
    return int(value)
