# SPDX-License-Identifier: LGPL-2.1-or-later
"""An extension of IPython: the text of a plot, for those who cannot see it, is its title."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure


def load_ipython_extension(shell: object) -> None:
    """Set the text of figures; IPython calls this before the first cell runs."""
    # Matplotlib's backend for notebooks removes what is registered in the shell for figures.
    Figure._repr_pretty_ = _write  # type: ignore[attr-defined]  # IPython looks for it


def _write(figure: Figure, printer: Any, cycle: bool) -> None:
    printer.text(titles(figure) or "plot without a title")


def titles(figure: Figure) -> str:
    """Return the titles of a figure and of its axes."""
    texts = [figure.get_suptitle()]
    for axes in figure.axes:
        texts += [axes.get_title(loc=place) for place in ("left", "center", "right")]
    # Without the backslash that keeps Matplotlib from taking names for formulas.
    return "; ".join(filter(None, texts)).replace(r"\$", "$")
