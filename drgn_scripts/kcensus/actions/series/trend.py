# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus trend``."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from kcensus.actions import Exit, Reading, Showing
from kcensus.actions.shared.output import check_output, check_tables, show, stdout
from kcensus.actions.shared.target import progress_bars
from kcensus.store import require_arrow, require_scipy


def run(
    store: Path,
    metrics: Sequence[str],
    hosts: Sequence[str],
    since: datetime.datetime | None,
    reading: Reading,
    showing: Showing,
) -> Exit:
    """Show what grows in a store."""
    require_arrow()
    require_scipy()
    from kcensus.store.growth import BLOCKS, FIRST_TABLES, LETTERS, TABLES, growth
    from kcensus.store.selection import present, select

    check_output(showing)
    check_tables(showing, [spec.name for spec in TABLES])
    is_screen = not any((showing.json, showing.csv, showing.parquet, showing.html))
    is_unicode = (stdout().encoding or "").lower().startswith("utf") or not is_screen
    with progress_bars(reading.no_progress) as progress:
        with progress.step("reading the store", 0):
            rows, context = select(store, metrics=metrics, hosts=hosts, since=since)
        levels = BLOCKS if is_unicode else LETTERS
        result = growth(
            rows, str(store), context=context, now=present(store), levels=levels, progress=progress
        )
    # Whoever asks for one metric wants its trend whichever way it goes.
    return show(result, showing, () if metrics else FIRST_TABLES)
