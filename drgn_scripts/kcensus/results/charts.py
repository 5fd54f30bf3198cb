# SPDX-License-Identifier: LGPL-2.1-or-later
"""Declarations of charts: which columns of which table they show, and what uses RAM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChartSpec:
    """Horizontal bars, one for each row of a table."""

    name: str
    """Key of the chart; unique in the analysis."""
    table: str
    title: str
    values: tuple[str, ...]
    """Columns to stack, of one unit; those that the table lacks are left out."""
    names: str
    """Column with the names of the bars."""
    is_ordered: bool = False
    """Whether all rows are shown, zeros too: steps of a scale."""
    first_color: int = 0
    """Index of the color of the first column; a column has the same color in all charts."""
    measure: str = ""
    """What is counted, where the label of the first column does not say it alone."""
    parts: str = ""
    """Column whose values are the parts of a bar, each as long as the only one of ``values``; rows
    of one bar follow one another."""
    offset: str = ""
    """Column with the start of each bar, of the same unit: bars lie on a common line of time."""


@dataclass(frozen=True)
class RamUse:
    """Memory that an analysis accounts for; no two uses count the same bytes."""

    name: str
    """Uses of an analysis with the same name are one part of the bar."""
    bytes: int
    in_slabs: bool
    """Whether it is a part of the slab pages."""
    is_total: bool = False
    """Whether it is all slab pages: the parts are taken out of it."""
