# SPDX-License-Identifier: LGPL-2.1-or-later
"""Words that the findings of a trace share."""

from __future__ import annotations

import numpy as np

from kcensus.analyses.iosched.trace.figures import CLASSES, Figures
from kcensus.human import human_seconds
from kcensus.text import printable
from kcensus.trace.bios import NEVER

_LATE = 10_000_000
"""Nanoseconds."""


def over(count: int, least: float, longest: float) -> str:
    """Return for how long several waited: at least, and the longest of them."""
    if count == 1:
        return human_seconds(longest)
    return f"over {least:.0f} s (one of them {human_seconds(longest)})"


def described(figures: Figures, row: int) -> str:
    """Return what there is to know about one request."""
    bios = figures.bios
    index, names = figures.tasks(np.array([row]))
    # When it was queued matters where it waited for its request, or has none.
    is_late = bios.inserted[row] == NEVER or bios.inserted[row] - bios.queued[row] >= _LATE
    moments = [
        f"{word} at {int(times[row]) / 1e9:.6f} s"
        for word, times in (
            *([("queued", bios.queued)] if is_late else []),
            ("inserted", bios.inserted),
            ("dispatched", bios.dispatched),
            ("completed", bios.completed),
        )
        if times[row] != NEVER
    ]
    return (
        f"{printable(names[int(index[0])])} (PID {int(bios.pid[row])}): "
        f"{CLASSES[int(figures.kind[row])]} of {int(bios.bytes[row]):,} bytes at sector "
        f"{int(bios.sector[row])}, {', '.join([*moments, *_end(figures, row)])}"
    )


def _end(figures: Figures, row: int) -> list[str]:
    """Return what the trace does not show any more of a request."""
    if figures.is_requeued[row]:
        return [
            f"taken back, not dispatched again since {int(figures.bios.returned[row]) / 1e9:.6f} s"
        ]
    if figures.is_without_request[row]:
        return ["without a request until the end"]
    if figures.is_waiting[row]:
        return ["not dispatched until the end"]
    return ["not completed until the end"] if figures.is_in_driver[row] else []
