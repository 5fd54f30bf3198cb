# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bars, axes and names on Matplotlib.

Names come from a dump. They are drawn printable, short, and without formulas: dollar signs are
escaped, because Matplotlib takes text between two of them for a formula.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kcensus.charts import COLORS, MAX_NAME, Chart, shortened, shortened_names
from kcensus.human import human
from kcensus.results import Unit
from kcensus.text import how_to_install, printable

try:
    import matplotlib as mpl
    import matplotlib.pyplot as plt
except ModuleNotFoundError as error:
    if error.name != "matplotlib":
        raise
    raise ImportError(
        f"kcensus.plots needs Matplotlib: {how_to_install('notebook')}", name="matplotlib"
    ) from None
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

_Floats: TypeAlias = npt.NDArray[np.float64]
HATCHES = dict(zip(COLORS, ("", "////", "----", "\\\\\\\\", "xxxx"), strict=True))
"""Hatch of each color, so that the parts of a bar differ on paper without colors."""
_WIDTH, _HEIGHT, _BAR = 8.0, 1.0, 0.36
"""Inches: a figure's width, its height without bars, and the height per bar."""
_LINE = 15
"""Points of a line of a legend."""
_MAX_LINE, _MAX_ENTRY = 60, 110
"""Characters of a title, and of an entry of a legend."""
_AXES = 0.775
"""Width of the axes of a new figure, as a part of it."""
_ROOM, _HANDLE, _NAME = 18.5, 7, 1.25
"""Characters of a legend: per inch of axes, including names beside them; per entry in addition to
its text; and the width of a character of the names."""
_PAPER, _INK = ("#ffffff", "#16181c"), ("#22252a", "#e4e7eb")
"""Background and text, light and dark."""


def style(*, dark: bool = False) -> AbstractContextManager[None]:
    """Return a context in which figures are made for a light or a dark page.

    Without it, plots follow Matplotlib's settings: by default, dark text on white, which can be
    read on any page and on paper. The background is never transparent.
    """
    paper, ink = _PAPER[dark], _INK[dark]
    colors = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), paper)
    colors |= dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), ink
    )
    # A backend that is loaded inside of the context would lose its settings at the end of it, and a
    # notebook would show no more plots.
    plt.draw_if_interactive()  # type: ignore[no-untyped-call]
    return mpl.rc_context(colors)  # type: ignore[arg-type]


def axes_for(ax: Axes | None, title: str, *, bars: float, lines: int = 0) -> Axes:
    """Return the axes to draw on: of a new figure that is as high as its contents where None.

    :param lines: of the legend
    """
    if ax is None:
        height = _HEIGHT + _BAR * bars + lines * _LINE / 72
        _, ax = plt.subplots(figsize=(_WIDTH, height), layout="constrained")
    _set_title(ax, shown(title, _MAX_LINE), lines)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def _set_title(ax: Axes, title: str, lines: int) -> None:
    ax.set_title(title, loc="left", fontsize="medium", fontweight="bold", pad=6 + _LINE * lines)


def nothing(ax: Axes) -> Axes:
    """Say that there is nothing to show."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, "nothing to show", transform=ax.transAxes, ha="center", va="center")
    return ax


def draw(chart: Chart, ax: Axes | None, *, together: int = 1) -> Axes:
    """Draw a chart of bars, the first one on top.

    :param together: how many bars are about the same thing; only the first of them has a name
    """
    rows = np.arange(len(chart.bars))
    places = rows + 0.5 * (rows // together) * (together > 1)
    names = [*map(_literal, shortened_names(_drawable(bar.name) for bar in chart.bars))]
    entries = [shown(name, _MAX_ENTRY) for name in chart.legend]
    beside = _NAME * max(map(len, names), default=0)
    lines = _arranged(entries, _ROOM * _AXES * _WIDTH - beside)[2]
    ax = axes_for(ax, chart.title, bars=1 + max(places, default=0), lines=lines)
    if not chart.bars:
        return nothing(ax)
    lengths = np.array([bar.parts for bar in chart.bars])
    begins = np.array([bar.start for bar in chart.bars])
    handles = _stack(ax, places, lengths, chart.colors, begins)
    middle = places.reshape(-1, together).mean(axis=1)
    ax.set_yticks(middle, names[::together])
    ax.set_ylim(places[-1] + 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    _write_values(ax, places, begins + lengths.sum(axis=1), [bar.value for bar in chart.bars])
    scale(ax.xaxis, chart.unit)
    ax.set_xlabel(" · ".join(filter(None, (chart.measure, chart.note))))
    if chart.legend:
        add_legend(ax, handles, entries, beside)
    return ax


def _stack(
    ax: Axes, places: _Floats, lengths: _Floats, colors: Sequence[str], begins: _Floats
) -> list[Artist]:
    """Draw horizontal bars with the parts ``lengths``, shape (bars, parts); return one of each."""
    starts = begins[:, None] + np.cumsum(lengths, axis=1) - lengths
    parts = (
        ax.barh(
            places, length, left=start, height=0.68, color=color, hatch=HATCHES.get(color),
            edgecolor=ax.get_facecolor(), linewidth=0.8,
        )
        for length, start, color in zip(lengths.T, starts.T, colors, strict=False)
    )  # fmt: skip
    return [part[0] for part in parts]


def _write_values(ax: Axes, places: _Floats, ends: _Floats, values: Sequence[str]) -> None:
    """Write a value at the end of each bar, and make room for the longest one."""
    for place, end, value in zip(places, ends, values, strict=True):
        ax.annotate(
            shown(value), (end, place), (4, 0), textcoords="offset points", va="center",
            fontsize="small",
        )  # fmt: skip
    # Characters of the small font are about a hundredth of the axes wide.
    ax.set_xlim(0, (max(ends) or 1) * (1.04 + 0.013 * max(map(len, values))))


def _arranged(names: Sequence[str], room: float) -> tuple[int, list[str], int]:
    """Return columns, entries and lines of a legend with room for so many characters a line."""
    for columns in range(len(names), 1, -1):
        longest = [max(map(len, names[start::columns])) for start in range(columns)]
        if sum(longest) + _HANDLE * columns <= room:
            return columns, list(names), -(-len(names) // columns)
    width = max(int(room) - _HANDLE, _HANDLE)
    wrapped = [textwrap.fill(name, width, break_long_words=False) for name in names]
    return 1, wrapped, sum(1 + name.count("\n") for name in wrapped)


def add_legend(
    ax: Axes, handles: Sequence[Artist] = (), names: Sequence[str] = (), beside: float = 0
) -> None:
    """Add a legend between title and axes; by default of all that is drawn.

    :param names: as :func:`shown` has them
    :param beside: characters of the names to the left of the axes
    """
    if not handles:
        handles, labels = ax.get_legend_handles_labels()
        names = [shown(name, _MAX_ENTRY) for name in labels]
    inches = ax.get_window_extent().width / ax.figure.dpi
    columns, names, lines = _arranged(names, _ROOM * inches - beside)
    _set_title(ax, ax.get_title(loc="left"), lines)
    # Matplotlib fills one column after the other.
    order = [entry for start in range(columns) for entry in range(start, len(names), columns)]
    ax.legend(
        handles=[handles[entry] for entry in order], labels=[names[entry] for entry in order],
        loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False,
        fontsize="small", borderaxespad=0.2, borderpad=0, handlelength=1.4, columnspacing=1.5,
    )  # fmt: skip


_STEPS = [1, 2, 2.5, 5, 10]
_UNITS: dict[Unit, Sequence[float]] = {
    Unit.BYTES: [1024.0**power for power in range(7)],
    Unit.SECONDS: (1e-6, 1e-3, 1, 60, 3600, 86400),
}
"""Units of ticks."""


class _UnitLocator(MaxNLocator):
    """Round numbers of the largest unit that fits."""

    def __init__(self, units: Sequence[float], steps: Sequence[float]) -> None:
        super().__init__(5, steps=steps)
        self._units = units

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        longest = max(abs(vmin), abs(vmax))
        unit = max((unit for unit in self._units if unit <= longest), default=self._units[0])
        return [tick * unit for tick in super().tick_values(vmin / unit, vmax / unit)]


def scale(axis: Axis, unit: Unit) -> None:
    """Give an axis ticks with units."""
    if unit is Unit.RATIO:
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
        return
    if units := _UNITS.get(unit):
        axis.set_major_locator(_UnitLocator(units, _STEPS))
    else:
        is_whole = unit in (Unit.PAGES, Unit.COUNT)
        axis.set_major_locator(MaxNLocator(5, steps=_STEPS, integer=is_whole))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, unit)))


def _tick(value: float, unit: Unit) -> str:
    if unit is Unit.PAGES:
        return human(round(value), unit)
    if unit not in _UNITS:
        return f"{value:,.6g}"
    # 2 d 0 h is 2 d, and 5.0 s is 5 s.
    return re.sub(r" 0 (h|min|s)$", "", human(value, unit).replace(".0 ", " "))


def scale_time(axis: Axis) -> None:
    """Give an axis of times ticks that are as short as they can be."""
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]  # Matplotlib lacks the type
    axis.set_major_locator(locator)
    axis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def shown(name: str, longest: int = MAX_NAME) -> str:
    """Return a name to draw: printable, short, with glyphs of the font."""
    return _literal(shortened(_drawable(name), longest))


def shown_text(text: str) -> str:
    """Return lines to draw, with glyphs of the font."""
    return "\n".join(_literal(_drawable(line)) for line in text.splitlines())


def _literal(text: str) -> str:
    return text.replace("$", r"\$")


def _drawable(name: str) -> str:
    """Return a name with control characters, and characters missing from the fonts, escaped."""
    text = printable(name)
    fonts = [findfont(FontProperties(family=[name])) for name in mpl.rcParams["font.family"]]
    glyphs = frozenset().union(*map(_glyphs, fonts))
    return "".join(char if ord(char) in glyphs else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


@functools.cache
def _glyphs(font: str) -> frozenset[int]:
    return frozenset(get_font(font).get_charmap())
