# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take the census of the dentries, and say what it means."""

from __future__ import annotations

from kcensus.analyses import ParamError
from kcensus.analyses.dentries import PARTS
from kcensus.analyses.dentries.census import (
    BUSY,
    CURSOR,
    DEAD,
    DENTRY,
    LOOKUP,
    ON_LRU,
    ON_SHRINK,
    REFERENCED,
)
from kcensus.analyses.dentries.chains import FEWER, IN_A_ROW
from kcensus.analyses.dentries.checks import checks, gaps
from kcensus.analyses.dentries.figures import Figures
from kcensus.analyses.dentries.findings import findings
from kcensus.analyses.dentries.tables import tables
from kcensus.kernel.kernel import Kernel
from kcensus.results import Answer, Figure, Unit


def run(kernel: Kernel, only: str | None = None, limit: int = 1000) -> Answer:
    """Take the census and say what it means.

    :param only: names of :data:`PARTS` (and ``totals``), separated by commas; all by default
    :param limit: rows of the tables of directories and patterns; the others are added up in a row
    :raises ParamError: a part is unknown, or the limit is below 1
    :raises UnsupportedAllocator: the kernel does not use SLUB
    :raises LookupError: the debug info or the memory model lacks what is needed
    """
    wanted = frozenset(PARTS if only is None else _parts(only))
    if limit < 1:
        raise ParamError(f"--limit: '{limit}' is not an integer >= 1")
    figures = Figures(kernel, wanted, limit)
    return Answer(
        summary=summary(figures),
        tables=tables(figures),
        checks=checks(figures),
        findings=findings(figures),
        gaps=gaps(figures),
    )


def _parts(only: str) -> list[str]:
    """Return the parts named in ``only``."""
    known = ("totals", *PARTS)
    parts = [name.strip().replace("-", "_") for name in only.split(",")]
    for part in parts:
        if part not in known:
            raise ParamError(f"--only: unknown part '{part}' (choose from {', '.join(known)})")
    return parts


def summary(figures: Figures) -> dict[str, Figure]:
    """Return the totals."""
    return _totals(figures) | _freeable(figures) | _limited(figures) | _states(figures)


def _totals(figures: Figures) -> dict[str, Figure]:
    size, count, share = Unit.BYTES, Unit.COUNT, Unit.RATIO
    return {
        "dentries": Figure(figures.census.count(DENTRY), count, "dentries"),
        "negative": Figure(figures.negative, count, "negative dentries"),
        "negative_unused": Figure(figures.negative_unused, count, "negative and unused"),
        "negative_bytes": Figure(figures.negative_bytes, size, "negative, with external names"),
        "slab_bytes": Figure(figures.slab_bytes, size, "slab pages of dentries"),
        "external_name_bytes": Figure(figures.name_bytes, size, "external names"),
        "share_of_ram": Figure(figures.share_of_ram, share, "share of RAM"),
        "share_of_reclaimable": Figure(
            figures.share_of_reclaimable, share, "share of reclaimable slab pages"
        ),
    }


def _freeable(figures: Figures) -> dict[str, Figure]:
    pages = figures.pages_freeable
    if pages is None:
        return {}
    size = pages << figures.kernel.memory.page_shift
    return {
        "pages_freeable": Figure(pages, Unit.PAGES, "slabs of unused negatives only"),
        "freeable_bytes": Figure(size, Unit.BYTES, "freeable by dropping unused negatives"),
    }


def _limited(figures: Figures) -> dict[str, Figure]:
    """Return figures of hash chains; their values are None if the hash table was not found."""
    if "chains" not in figures.wanted:
        return {}
    chains = figures.chains
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
    limit = f"{IN_A_ROW}-per-bucket run limit"
    labels = {
        "patched_negative": f"negatives, {limit}",
        "patched_bytes": f"bytes, {limit}",
        "patched_negative_fewer_buckets": f"negatives, limit, 1/{FEWER} buckets",
        "buckets": "hash buckets",
        "longest_chain": "longest hash chain",
        "longest_negative_run": "longest unreferenced negative run",
    }
    return {
        name: Figure(value, Unit.BYTES if name == "patched_bytes" else Unit.COUNT, labels[name])
        for name, value in zip(labels, values, strict=True)
    }


def _states(figures: Figures) -> dict[str, Figure]:
    return {
        name: Figure(figures.census.count(having, lacking), Unit.COUNT, label)
        for name, having, lacking, label in (
            ("unused", DENTRY, BUSY | DEAD, "unused (refcount 0)"),
            ("referenced", REFERENCED, 0, "referenced (DCACHE_REFERENCED)"),
            ("on_lru", ON_LRU, ON_SHRINK, "on LRU lists"),
            ("on_shrink_lists", ON_SHRINK, 0, "on shrink lists"),
            ("in_lookup", LOOKUP, 0, "in lookup"),
            ("cursors", CURSOR, 0, "readdir cursors"),
            ("dead", DEAD, 0, "killed, not yet freed"),
        )
    }
