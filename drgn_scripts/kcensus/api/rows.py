# SPDX-License-Identifier: LGPL-2.1-or-later
"""From a row to a drgn object, from an object to its row, and along pointers for all rows."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import drgn
import numpy as np
import pandas as pd

from kcensus.api.addresses import MADE_FLOATS, Place, address_of, addresses_of
from kcensus.api.frames import MIN_ADDRESS, Frame
from kcensus.api.objects import IncompleteWarning, columns_of, type_of
from kcensus.api.source import Readable, context_of
from kcensus.engine.gather import gather
from kcensus.engine.layout import pointee_names
from kcensus.engine.memory import Faults
from kcensus.sources import Target


def as_object(source: Readable, row: pd.Series[Any] | int, type_name: str = "") -> drgn.Object:
    """Return the drgn object that a row describes, of a table or of :func:`objects`.

    >>> import kcensus
    >>> target = kcensus.open_target("sample")
    >>> dentries = kcensus.objects(target, "struct dentry", ["d_flags"])
    >>> dentry = kcensus.as_object(target, dentries.iloc[0])
    >>> bool(dentry.d_flags.value_() == dentries["d_flags"].iloc[0])
    True
    >>> mounts = kcensus.dentries(target).tables["super_blocks"]
    >>> kcensus.as_object(target, mounts.iloc[0]).type_.type_name()
    'struct super_block'

    :param source: the drgn program or target that the row was read from
    :param row: a row of the DataFrame, or an address
    :param type_name: such as ``struct dentry``. By default what ``attrs["types"]`` of the row says,
        which it has from its DataFrame
    :raises LookupError: there is no such type
    :raises NotRecorded: the type is not in the capsule that is read
    :raises ValueError: the row has neither address nor type, or pandas made a float of the address
    """
    if isinstance(row, pd.Series):
        type_name = type_name or _types(row).get("address", "")
        address = _address(row)
    else:
        address = address_of(row)
    if not type_name:
        raise ValueError("the type of the object is unknown; pass its name, such as 'struct inode'")
    prog = source.prog if isinstance(source, Target) else source
    return drgn.Object(prog, type_of(prog, type_name), address=address)


def rows(frame: pd.DataFrame, objects: Place | Iterable[Place]) -> pd.DataFrame:
    """Return the rows that describe some drgn objects, in the order of ``frame``.

    It is the way back from :func:`as_object`.

    >>> import kcensus
    >>> target = kcensus.open_target("sample")
    >>> dentries = kcensus.objects(target, "struct dentry", ["d_parent"])
    >>> dentry = kcensus.as_object(target, dentries.iloc[7])
    >>> kcensus.rows(dentries, dentry).index.equals(dentries.index[[7]])
    True

    :param frame: a table of a :class:`Result`, or what :func:`objects` returned
    :param objects: a drgn object, a pointer to one or an address, or several of these
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
    """Read members of what the pointers in a column point to, in bulk.

    >>> import kcensus
    >>> target = kcensus.open_target("sample")
    >>> dentries = kcensus.objects(target, "struct dentry", "d_parent")
    >>> parents = kcensus.follow(target, dentries["d_parent"], ["d_inode"])
    >>> parents.index.equals(dentries.index), list(parents)
    (True, ['d_inode'])

    :param source: the drgn program or target that the pointers were read from
    :param pointers: a column of what :func:`objects` or this function returned, or column
        ``address`` of a table; any addresses
    :param members: member paths, as :func:`objects` takes them
    :param type_name: of what is there. By default what ``attrs["types"]`` of the column says, which
        it has from its DataFrame: the type that a pointer is declared with
    :return: one row per pointer, with the index of ``pointers`` (the addresses themselves if these
        are not a Series). ``frame.join(…, how="inner")`` puts both together. Rows of null pointers
        are left out, and of those that are unreadable (:class:`IncompleteWarning`): any other join
        fills them with NaN, for which pandas makes floats of the other addresses
    :raises LookupError: there is no such type or member
    :raises NotRecorded: the type or member is not in the capsule that is read
    :raises ValueError: the type is unknown: it is neither passed, nor does the pointer have one. Or
        pandas made floats of the addresses
    """
    if not isinstance(pointers, pd.Series):
        listed = addresses_of(pointers)
        pointers = pd.Series(listed, pd.Index(listed, name="address"), name="address")
    type_name = type_name or _types(pointers).get(pointers.name, "")
    if not type_name:
        raise ValueError(
            f"what {pointers.name!r} points to is unknown; pass its type, such as 'struct inode'"
        )
    kernel = context_of(source).kernel
    type_ = type_of(kernel.prog, type_name)
    columns = columns_of(kernel.prog, type_, members)
    known = pointers[pointers.notna() & (pointers != 0)]
    faults = Faults()
    read = gather(kernel.memory, addresses_of(known), columns, faults)
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


def _types(values: pd.Series[Any]) -> Mapping[Hashable, str]:
    """Return what a row or column knows of types, by column: those of what is at the addresses."""
    types: Mapping[Hashable, str] = values.attrs.get("types", {})
    return types


def _address(row: pd.Series[Any]) -> int:
    """Return the address of the object that a row describes.

    :raises ValueError: it has none
    """
    value: Any = row["address"] if "address" in row.index else row.name
    if isinstance(value, float):
        raise ValueError(
            f"{MADE_FLOATS}; pass the address, frame['address'].iloc[…], and the name of the type"
        )
    if not isinstance(value, (int, np.integer)) or value < MIN_ADDRESS:
        raise ValueError(f"the row has no address of an object: {value}")
    return int(value)
