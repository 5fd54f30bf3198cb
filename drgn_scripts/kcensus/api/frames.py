# SPDX-License-Identifier: LGPL-2.1-or-later
"""DataFrames that show kernel addresses in hexadecimal digits, and escape names."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from kcensus.arch import POINTERS
from kcensus.results import Unit
from kcensus.text import printable

MIN_ADDRESS = np.uint64(POINTERS)
"""Lowest address of a kernel object."""

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMALS = 2
"""Decimals of scaled values."""


class Frame(pd.DataFrame):
    """A DataFrame with its own form at prompts and in notebooks.

    The tables of a result have units and labels by column in ``attrs``; so do their excerpts.
    """

    def frame(self, *, labels: bool = False, scale: bool = False) -> pd.DataFrame:
        """Return a copy for people.

        :param labels: whether headings are labels instead of keys
        :param scale: whether bytes are in the binary unit that fits the largest value of the
            column, shares in percent, both rounded to two decimals, and addresses in hexadecimal
            digits; headings then have the units
        """
        shown = pd.DataFrame(self)
        units = {name: self.attrs.get("units", {}).get(name, "") for name in self.columns}
        if scale:
            for name, unit in units.items():
                shown[name], units[name] = _scaled(shown[name], unit)
        if labels or scale:
            _escape(shown)
        words = self.attrs.get("labels", {}) if labels else {}
        heads = [words.get(name) or name for name in self.columns]
        if labels:
            count = Counter(heads)
            names = zip(heads, self.columns, strict=True)
            heads = [f"{head} ({name})" if count[head] > 1 else head for head, name in names]
        if scale:
            names = zip(heads, self.columns, strict=True)
            heads = [f"{head} [{units[name]}]" if units[name] else head for head, name in names]
        shown.columns = pd.Index(heads, name=shown.columns.name)
        if labels or scale:
            shown.columns = _inert(shown.columns)
        shown.attrs = {"title": self.attrs.get("title", "")}
        return shown

    @property
    def _constructor(self) -> type[Frame]:
        return Frame

    def __finalize__(self, other: Any, method: str | None = None, **options: Any) -> Frame:
        """Keep the types that hold for the result; pandas drops attributes that differ."""
        made: Frame = super().__finalize__(other, method=method, **options)  # type: ignore[misc]
        frames = (other.left, other.right) if method == "merge" else getattr(other, "objs", ())
        if frames:
            made.attrs["types"] = _types_of(made, frames, side_by_side=method == "merge")
        return made

    def __repr__(self) -> str:
        rows, columns = self.shape
        excerpt, hidden = self.excerpt(), self._hidden()
        if len(excerpt) == rows and not hidden:
            return repr(excerpt)
        size = f"[{rows} rows x {columns} columns]"
        with pd.option_context("display.show_dimensions", False):
            if not hidden:
                return f"{excerpt!r}\n\n{size}"
            # The others do not give way to an ellipsis in the middle: they go on below.
            width = shutil.get_terminal_size((100, 0)).columns
            with pd.option_context("display.max_columns", None, "display.width", width):
                shown = repr(excerpt.drop(columns=hidden))
        return f"{shown}\n\n{size}; not shown: {', '.join(hidden)}"

    def _hidden(self) -> list[str]:
        """Return the columns of a whole table that no screen has, except the row's address."""
        is_whole = [*self.columns] == [*self.attrs.get("labels", ())]
        return self.attrs.get("data_only", []) if is_whole else []

    def _repr_html_(self) -> str:
        rows, columns = self.shape
        excerpt = self.excerpt()
        declared = [self.attrs.get("units", {}).get(name, "") for name in self.columns]
        units = ["" if unit == Unit.TEXT.value else unit for unit in declared]
        if any(units) and excerpt.columns.nlevels == 1:
            excerpt.columns = pd.MultiIndex.from_arrays([excerpt.columns, units])
        most = pd.get_option("display.max_columns") or columns
        with pd.option_context("display.show_dimensions", False):
            html = excerpt._repr_html_() or ""  # type: ignore[operator]  # not in the stubs
        whole = len(excerpt) == rows and columns <= most
        return html if whole else f"{html}\n<p>{rows:,} rows × {columns} columns</p>"

    def excerpt(self) -> pd.DataFrame:
        """Return more first and last rows than pandas shows, or all, in the form to be shown."""
        half = (pd.get_option("display.max_rows") or len(self)) // 2 + 1
        rows = np.arange(len(self))
        if len(rows) > 2 * half:
            rows = np.concatenate([rows[:half], rows[-half:]])
        shown = pd.DataFrame(self.iloc[rows])
        for place in range(shown.shape[1]):
            values = shown.iloc[:, place]
            if _is_address(values):
                shown.isetitem(place, [f"0x{value:x}" for value in values])
        if _is_address(shown.index):
            shown.index = shown.index.map("0x{:x}".format)
        _escape(shown)
        return shown


class AddressedSeries(pd.Series):
    """A Series by address with its own form at prompts."""

    @property
    def _constructor(self) -> type[AddressedSeries]:
        return AddressedSeries

    @property
    def _constructor_expanddim(self) -> type[Frame]:
        return Frame

    def __repr__(self) -> str:
        excerpt = Frame({"": self}).excerpt().iloc[:, 0]
        if self.dtype == object:
            excerpt = excerpt.astype(object)  # which escaping can change to that of strings
        excerpt.name = self.name
        if len(excerpt) == len(self):
            return repr(excerpt)
        with pd.option_context("display.show_dimensions", False):
            return f"{excerpt!r}\nLength: {len(self)}"


def _types_of(made: Frame, frames: Sequence[Any], *, side_by_side: bool) -> dict[str, str]:
    """Return the known types at the addresses in joined frames.

    :param side_by_side: whether each column comes from one frame; otherwise all must agree
    """
    known = [frame.attrs.get("types", {}) for frame in frames]
    types = {}
    for name in {name for each in known for name in each}.intersection(made.columns):
        found = {
            each.get(name)
            for each, frame in zip(known, frames, strict=True)
            if name in frame.columns or not side_by_side
        }
        if len(found) == 1 and None not in found:
            types[name] = found.pop()
    if "address" not in made.columns:
        # Rows of the index of one frame, such as that of objects() joined with follow().
        owners = [
            frame
            for each, frame in zip(known, frames, strict=True)
            if "address" in each and "address" not in frame.columns
        ]
        found = {frame.attrs["types"]["address"] for frame in owners}
        if len(found) == 1 and (
            len(owners) == len(frames)
            or (side_by_side and any(made.index.isin(frame.index).all() for frame in owners))
        ):
            types["address"] = found.pop()
    return types


def _is_address(values: pd.Series[int] | pd.Index[int]) -> bool:
    """Return whether all values are kernel addresses, or 0."""
    if values.dtype != np.uint64 or not len(values):
        return False
    numbers = values.to_numpy()
    return bool(numbers.any() and ((numbers == 0) | (numbers >= MIN_ADDRESS)).all())


def _escape(shown: pd.DataFrame) -> None:
    """Escape all texts of a frame, of its index and of its headings."""
    for place in range(shown.shape[1]):
        values = shown.iloc[:, place]
        if _has_texts(values.dtype):
            shown.isetitem(place, _escaped(values).array)
    shown.index, shown.columns = _inert(shown.index), _inert(shown.columns)


def _has_texts(dtype: object) -> bool:
    return isinstance(dtype, pd.CategoricalDtype) or (
        pd.api.types.is_object_dtype(dtype) or pd.api.types.is_string_dtype(dtype)  # type: ignore[arg-type]
    )


def _inert(index: pd.Index[Any]) -> pd.Index[Any]:
    """Return an index with its texts and its names escaped."""
    texts: pd.Index[Any] = index
    if isinstance(index, pd.MultiIndex):
        rows = [tuple(map(_text, row)) for row in index]
        texts = pd.MultiIndex.from_tuples(rows) if rows else index
    elif _has_texts(index.dtype):
        values = [_text(value) for value in index]
        texts = index if values == list(index) else pd.Index(values, dtype=object)
    return texts.set_names([_text(name) for name in index.names])


def _text(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value


def _escaped(values: pd.Series[Any]) -> pd.Series[Any]:
    return pd.Series([_text(value) for value in values], values.index, dtype=object)


def _scaled(values: pd.Series[Any], unit: str) -> tuple[pd.Series[Any], str]:
    """Return a column for people, and the unit for its heading."""
    if unit == Unit.ADDRESS.value:
        texts = [None if pd.isna(value) else f"0x{value:x}" for value in values]
        return pd.Series(texts, values.index, dtype=object), ""
    if unit == Unit.TEXT.value:
        return _escaped(values), ""
    if unit == Unit.BYTES.value:
        numbers = pd.to_numeric(values)
        largest = numbers.abs().max()
        power = 0 if pd.isna(largest) or largest < 1 else min(int(np.log2(largest) // 10), 6)
        scaled = numbers / 1024.0**power if power else numbers
        return (scaled.round(_DECIMALS) if power else scaled), _BYTES[power]
    if unit == Unit.RATIO.value:
        return (pd.to_numeric(values) * 100).round(_DECIMALS), "%"
    return values, {Unit.SECONDS.value: "s"}.get(unit, "")
