# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take the census of the dentries, and report it."""

from __future__ import annotations

from kcensus.analyses import ParamError
from kcensus.analyses.dentries import PARTS
from kcensus.analyses.dentries.checks import checks, gaps
from kcensus.analyses.dentries.columns.bits import (
    BUSY,
    CURSOR,
    DEAD,
    DENTRY,
    LOOKUP,
    ON_LRU,
    ON_SHRINK,
    REFERENCED,
)
from kcensus.analyses.dentries.figures import Figures
from kcensus.analyses.dentries.findings import findings
from kcensus.analyses.dentries.tables import TABLES
from kcensus.analyses.dentries.walks import FEWER, IN_A_ROW
from kcensus.kernel.kernel import Kernel
from kcensus.results import Answer, Figure, Unit
from kcensus.results.tables import make_tables


def run(kernel: Kernel, only: str | None = None, limit: int = 1000) -> Answer:
    """Take the census and report it.

    :param only: names of :data:`PARTS` (and ``totals``), separated by commas; all by default
    :param limit: rows of the tables of directories and patterns; the others are added up in a row
    :raises ParamError: a part is unknown, or the limit is below 1
    """
    known = ("totals", *PARTS)
    wanted = known if only is None else [name.strip().replace("-", "_") for name in only.split(",")]
    for part in wanted:
        if part not in known:
            raise ParamError(f"--only: unknown part '{part}' (choose from {', '.join(known)})")
    if limit < 1:
        raise ParamError(f"--limit: '{limit}' is not an integer >= 1")
    if "processes" in wanted:
        wanted = [*wanted, "directories"]  # processes are shown by directory
    figures = Figures(kernel, frozenset(wanted), limit)
    return Answer(
        summary=summary(figures),
        tables=make_tables(TABLES, figures),
        checks=checks(figures),
        findings=findings(figures),
        gaps=gaps(figures),
    )


def summary(figures: Figures) -> dict[str, Figure]:
    """Return the totals; figures of hash chains are None if the hash table was not found."""
    size, count, share, census = Unit.BYTES, Unit.COUNT, Unit.RATIO, figures.census
    reclaimable, pages = "share of reclaimable slab pages", figures.pages_freeable
    shift = figures.kernel.memory.page_shift
    rows: dict[str, tuple[float | None, Unit, str]] = {
        "dentries": (census.count(DENTRY), count, "dentries"),
        "negative": (figures.negative, count, "negative dentries"),
        "negative_unused": (figures.negative_unused, count, "negative and unused"),
        "negative_bytes": (figures.negative_bytes, size, "negatives, external names included"),
        "slab_bytes": (figures.slab_bytes, size, "slab pages of dentries"),
        "external_name_bytes": (figures.name_bytes, size, "external names"),
        "share_of_ram": (figures.share_of_ram, share, "dentry slabs, share of RAM"),
        "share_of_reclaimable": (figures.share_of_reclaimable, share, reclaimable),
        "pages_freeable": (pages, Unit.PAGES, "slabs of unused negatives only"),
        "freeable_bytes": (pages << shift, size, "freeable by dropping unused negatives"),
    }
    chains, limit = figures.chains, f"{IN_A_ROW}-per-bucket run limit"
    if "chains" in figures.wanted:
        values: tuple[int | None, ...] = (None,) * 6
        if chains is not None:
            values = (
                figures.negative - chains.trimmed,
                figures.negative_bytes - figures.trimmed_bytes,
                figures.negative - chains.trimmed_fewer,
                chains.buckets,
                chains.longest_chain,
                chains.longest_run,
            )
        fewer = f"negatives, run limit, 1/{FEWER} buckets"
        rows |= {
            "patched_negative": (values[0], count, f"negatives, {limit}"),
            "patched_bytes": (values[1], size, f"bytes, {limit}"),
            "patched_negative_fewer_buckets": (values[2], count, fewer),
            "buckets": (values[3], count, "hash buckets"),
            "longest_chain": (values[4], count, "longest hash chain"),
            "longest_negative_run": (values[5], count, "longest unreferenced negative run"),
        }
    rows |= {
        "unused": (census.count(DENTRY, BUSY | DEAD), count, "unused (refcount 0)"),
        "referenced": (census.count(REFERENCED), count, "referenced (DCACHE_REFERENCED)"),
        "on_lru": (census.count(ON_LRU, ON_SHRINK), count, "on LRU lists"),
        "on_shrink_lists": (census.count(ON_SHRINK), count, "on shrink lists"),
        "in_lookup": (census.count(LOOKUP), count, "in lookup"),
        "cursors": (census.count(CURSOR), count, "readdir cursors"),
        "dead": (census.count(DEAD), count, "killed, not yet freed"),
    }
    return {name: Figure(*row) for name, row in rows.items()}
