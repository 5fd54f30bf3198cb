# SPDX-License-Identifier: LGPL-2.1-or-later
"""Phrases and figures of several findings."""

from __future__ import annotations

from collections.abc import Sequence

from kcensus.analyses.kcopyd.kept import Keeper
from kcensus.human import listed
from kcensus.results import Figure, Unit


def counts(**numbers: int | None) -> dict[str, Figure]:
    """Return numbers as figures."""
    return {name: Figure(value, Unit.COUNT) for name, value in numbers.items()}


def kept_phrase(kept: Sequence[Keeper]) -> str:
    """Return the end of a sentence about copies: what they wait for, if that is known."""
    names = listed([each.name for each in kept])
    return f"; the copies wait for what keeps their COW devices: {names}" if kept else ""


def number(value: int | None) -> str:
    """Return a number as text."""
    return "unknown" if value is None else f"{value:,}"
