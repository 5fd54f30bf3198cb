# SPDX-License-Identifier: LGPL-2.1-or-later
"""An extension of IPython: what outputs of a notebook look like on its page.

The text of a plot, for those who cannot see it, is its title. Tables have words on the left, digits
in groups, and a dash for what is unknown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment
from matplotlib.figure import Figure

from kcensus.api.frames import Frame
from kcensus.results import Unit

_MAX_DECIMALS = 6
_TABLE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
{% macro line(tag, cells, first) %}
{% for cell in cells %}
<{{ tag }}{% if is_words[loop.index0 + first] %} class="words"{% endif %}>{{ cell }}</{{ tag }}>
{% endfor %}
{% endmacro %}
<table class="dataframe">
<thead>
{% for cells in headings %}
<tr>{{ line("th", cells, 0) }}</tr>
{% endfor %}
</thead>
<tbody>
{% for names, cells in rows %}
<tr>{{ line("th", names, 0) }}{{ line("td", cells, names|length) }}</tr>
{% endfor %}
</tbody>
</table>
{% if note %}<p>{{ note }}</p>{% endif %}""")


def load_ipython_extension(shell: Any) -> None:
    """Set the forms of figures and tables; IPython calls this before the first cell runs."""
    # Matplotlib's backend for notebooks removes the formatters of figures from the shell.
    Figure._repr_pretty_ = _write  # type: ignore[attr-defined]  # IPython looks for it
    shell.display_formatter.formatters["text/html"].for_type(pd.DataFrame, table)


def _write(figure: Figure, printer: Any, cycle: bool) -> None:
    printer.text(titles(figure) or "plot without a title")


def titles(figure: Figure) -> str:
    """Return the titles of a figure and of its axes."""
    texts = [figure.get_suptitle()]
    for axes in figure.axes:
        texts += [axes.get_title(loc=place) for place in ("left", "center", "right")]
    # Without the backslash that keeps Matplotlib from taking names for formulas.
    return "; ".join(filter(None, texts)).replace(r"\$", "$")


def table(frame: pd.DataFrame) -> str:
    """Return a table as HTML, its names escaped; as many rows as pandas shows."""
    places, most = np.arange(len(frame)), pd.get_option("display.max_rows") or len(frame)
    half = (pd.get_option("display.min_rows") or most) // 2
    is_cut = len(frame) > most
    if is_cut:
        places = np.concatenate([places[:half], places[-half:]])
    shown = Frame(frame.iloc[places]).excerpt()
    levels = shown.index.nlevels
    names = [_column(shown.index.get_level_values(level)) for level in range(levels)]
    columns = [_column(shown.iloc[:, place]) for place in range(shown.shape[1])]
    cells = [list(row) for row in zip(*(texts for texts, _ in names + columns), strict=True)]
    if is_cut:
        cells.insert(half, ["…"] * len(names + columns))
    corner = [name or "" for name in shown.index.names]
    if not any(corner):
        corner[0] = shown.columns.name or ""
    above = [shown.columns.get_level_values(level) for level in range(shown.columns.nlevels)]
    headings = [[*corner, *level] for level in above]
    units = [frame.attrs.get("units", {}).get(name, "") for name in frame.columns]
    if any(unit not in ("", Unit.TEXT.value) for unit in units):
        words = ["" if unit == Unit.TEXT.value else unit for unit in units]
        headings.append([""] * levels + words)
    return _TABLE.render(
        headings=headings,
        rows=[(row[:levels], row[levels:]) for row in cells],
        is_words=[False] * levels + [is_words for _, is_words in columns],
        note=f"{len(frame):,} rows × {len(units)} columns" if is_cut else "",
    )


def _column(values: Iterable[Any]) -> tuple[list[str], bool]:
    """Return the cells of a column, and whether they are words rather than numbers."""
    longest = pd.get_option("display.max_colwidth") or sys.maxsize
    numbers = [value for value in values if isinstance(value, float) and np.isfinite(value)]
    places = (
        decimals
        for decimals in range(_MAX_DECIMALS)
        if all(round(value, decimals) == round(value, _MAX_DECIMALS) for value in numbers)
    )
    decimals = next(places, _MAX_DECIMALS)
    texts, is_words = [], False
    for value in values:
        if pd.isna(value):
            texts.append("–")
        elif isinstance(value, (float, np.floating)):
            texts.append(f"{value:,.{decimals}f}")
        elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            texts.append(f"{value:,}")
        else:
            is_words, text = True, str(value)
            texts.append(text if len(text) <= longest else f"{text[: longest - 3]}...")
    return texts, is_words
