# SPDX-License-Identifier: LGPL-2.1-or-later
"""DataFrames that show kernel addresses in hexadecimal digits."""

from __future__ import annotations

import numpy as np
import pandas as pd

MIN_ADDRESS = np.uint64(0xFFFF << 48)
"""Kernel addresses of the supported architectures are not below this."""


class Frame(pd.DataFrame):
    """A DataFrame; only what a prompt and a notebook show of it differs."""

    @property
    def _constructor(self) -> type[Frame]:
        return Frame

    def __repr__(self) -> str:
        rows, columns = self.shape
        excerpt = self._excerpt()
        if len(excerpt) == rows:
            return repr(excerpt)
        with pd.option_context("display.show_dimensions", False):
            return f"{excerpt!r}\n\n[{rows} rows x {columns} columns]"

    def _repr_html_(self) -> str:
        rows, columns = self.shape
        excerpt = self._excerpt()
        if len(excerpt) == rows:
            return excerpt.to_html()
        with pd.option_context("display.show_dimensions", False):
            html = excerpt.to_html(max_rows=pd.get_option("display.min_rows"))
            return f"{html}\n<p>{rows} rows × {columns} columns</p>"

    def _excerpt(self) -> pd.DataFrame:
        """Return more first and last rows than pandas shows, or all, with addresses as text."""
        half = (pd.get_option("display.max_rows") or len(self)) // 2 + 1
        rows = np.arange(len(self))
        if len(rows) > 2 * half:
            rows = np.concatenate([rows[:half], rows[-half:]])
        shown = pd.DataFrame(self.iloc[rows])
        for place, name in enumerate(shown.columns):
            if _is_address(shown.iloc[:, place]):
                shown[name] = [f"0x{value:x}" for value in shown.iloc[:, place]]
        if _is_address(shown.index):
            index = [f"0x{value:x}" for value in shown.index]
            shown.index = pd.Index(index, name=shown.index.name)
        return shown


def _is_address(values: pd.Series[int] | pd.Index[int]) -> bool:
    """Return whether all values are kernel addresses, or 0."""
    if values.dtype != np.uint64 or not len(values):
        return False
    numbers = values.to_numpy()
    return bool(numbers.any() and ((numbers == 0) | (numbers >= MIN_ADDRESS)).all())
