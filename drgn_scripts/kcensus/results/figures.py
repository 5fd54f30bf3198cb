# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures with their units and bounds."""

from __future__ import annotations

import enum
from dataclasses import dataclass

Scalar = int | float | str | bool | None


class Unit(enum.Enum):
    """Unit of a number. Data stays in the unit; only a screen scales it."""

    NONE = ""
    BYTES = "bytes"
    COUNT = "count"
    PAGES = "pages"
    RATIO = "ratio"
    """0.0 … 1.0; shown as a percentage."""
    SECONDS = "seconds"
    ADDRESS = "address"
    TEXT = "text"


class Bound(enum.Enum):
    """Relation of a figure to the true value, if unreadable memory or a model affects it."""

    EXACT = ""
    AT_MOST = "at most"
    AT_LEAST = "at least"
    ABOUT = "about"
    """Some items are not counted, and others too often."""

    @staticmethod
    def of(*, over: bool, under: bool) -> Bound:
        """Return the bound of a count that may be too high (``over``) or too low (``under``)."""
        if over:
            return Bound.ABOUT if under else Bound.AT_MOST
        return Bound.AT_LEAST if under else Bound.EXACT


@dataclass(frozen=True)
class Figure:
    """One scalar of a summary."""

    value: Scalar
    unit: Unit = Unit.COUNT
    label: str = ""
    """Name on screen, at most five words."""
    bound: Bound = Bound.EXACT
    """Effect of a gap or of a model on the figure; shown before the value."""


def ratio(part: float, whole: float) -> float:
    """Return ``part / whole``, or 0 if ``whole`` is 0."""
    return part / whole if whole else 0.0
