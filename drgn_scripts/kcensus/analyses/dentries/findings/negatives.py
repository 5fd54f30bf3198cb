# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about the memory of negative dentries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from kcensus.analyses.dentries.figures import Figures
from kcensus.analyses.dentries.findings.owners import returned, super_block
from kcensus.analyses.dentries.findings.remedies import remedies, rmdir
from kcensus.analyses.dentries.findings.watched import WALKS
from kcensus.human import counted, human_bytes, human_ratio, listed
from kcensus.results import Figure, Finding, Severity, Unit, ratio
from kcensus.results.severity import MIN_BYTES, severity_of
from kcensus.text import task_name

MAIN = "dentries-negative"
_CROWD = 0.25
"""Share of all negative dentries from which on a directory has a finding of its own."""
_LABEL = "negatives, external names included"
_NOTABLE = 0.05
"""Least share of all negative dentries to name in a sentence."""
_NAMED = 3


def negative(figures: Figures) -> Finding | None:
    """Return the main finding; None if negative dentries hold little memory."""
    ram = figures.kernel.ram_bytes
    if (severity := severity_of(figures.negative_bytes, ram)) is None:
        return None
    share = ratio(figures.negative_bytes, ram)
    return Finding(
        id=MAIN,
        severity=severity,
        title=(
            f"{figures.negative:,} negative dentries hold {human_bytes(figures.negative_bytes)}"
            + (f" ({human_ratio(share)} of RAM)" if ram else "")
        ),
        evidence="; ".join(_evidence(figures)),
        figures={
            "negative": Figure(figures.negative, label="negative dentries"),
            "negative_unused": Figure(figures.negative_unused, label="negative and unused"),
            "negative_bytes": Figure(figures.negative_bytes, Unit.BYTES, _LABEL),
            "share_of_ram": Figure(share, Unit.RATIO, "share of RAM"),
        },
        memory=figures.memory,
        remedies=tuple(remedies(figures)),
        no_remedy=(
            ""
            if returned(figures)
            else "No page can be freed now: every slab also holds dentries in use. Prevent new "
            "negative dentries: find the programs that look up missing names"
        ),
        patch="negative-dentry-hash-limit",
    )


def _evidence(figures: Figures) -> Iterator[str]:
    yield f"{figures.negative_unused:,} are unused: reclaim can free them"
    if (own := super_block(figures)) is not None:
        blocks, share = figures.super_blocks, ratio(own.unused, figures.negative_unused)
        place = blocks.mount[own.row] or blocks.id[own.row]
        yield f"{human_ratio(share)} of the unused dentries are on {place} ({blocks.type[own.row]})"
    if figures.most_negative is not None:
        rest = figures.most_negative
        rest = rest[rest["address"] != 0]
        if names := _named(figures, rest["directory"], rest["negative"]):
            yield f"most in {names}"
    known = figures.patterns
    if known is not None and (names := _named(figures, known.texts, known.sums[:, 0])):
        yield f"most frequent names: {names}"
    if figures.processes is not None:
        if not len(figures.processes):
            yield "no process has a working directory or open files in these directories"
        else:
            rows: Any = figures.processes.itertuples(index=False)
            who = [f"{task_name(row.comm, row.pid)} in {row.directory}" for row in rows]
            yield f"processes with a working directory or open files there: {listed(who, _NAMED)}"


def _named(figures: Figures, names: Iterable[str], counts: Iterable[int]) -> str:
    pairs = islice(zip(names, counts, strict=True), _NAMED)
    least = _NOTABLE * figures.negative
    return ", ".join(f"{name} ({count:,})" for name, count in pairs if count >= least)


def crowd(figures: Figures, main: Finding) -> Iterator[Finding]:
    """Yield a finding for a directory with a large share of all negative dentries."""
    if figures.most_negative is None:
        return
    row: Any
    for row in figures.most_negative.head(1).itertuples(index=False):
        # The row of a remainder has no address.
        if not row.address or row.negative < _CROWD * figures.negative:
            continue
        slots = row.negative * figures.slot_size
        places = {next(iter(main.memory)): slots, "external names": row.negative_bytes - slots}
        children = row.negative + row.others
        walk = (
            f"; adding an inotify watch on the directory would visit {children:,} children under a "
            "spinlock"
            if children >= WALKS[Severity.WARNING]
            else ""
        )
        yield Finding(
            id=f"dentries-directory:{row.directory}",
            severity=min(main.severity, Severity.NOTICE),
            title=(
                f"{row.directory} has {row.negative:,} negative dentries "
                f"({human_ratio(row.share)} of all), which hold {human_bytes(row.negative_bytes)}"
            ),
            evidence=f"{_cached(row.others)}{walk}",
            figures={
                "negative": Figure(row.negative, label="negative dentries"),
                "others": Figure(row.others, label="other children"),
                "share": Figure(row.share, Unit.RATIO, "share of all negatives"),
                "negative_bytes": Figure(row.negative_bytes, Unit.BYTES, _LABEL),
            },
            memory={place: size for place, size in places.items() if size},
            remedies=tuple(rmdir(figures, row)),
            part_of=MAIN,
        )


def _cached(others: int) -> str:
    if not others:
        return "no other children are cached"
    children = counted(others, "other child", plural="other children")
    return f"{children} {'is' if others == 1 else 'are'} cached"


def pinned(figures: Figures, main: Finding) -> Iterator[Finding]:
    """Yield a finding if most slabs with negative dentries cannot be freed."""
    size = figures.kept * figures.slot_size
    if figures.kept * 2 < figures.negative_unused or size < MIN_BYTES:
        return
    yield Finding(
        id="dentries-pinned",
        severity=min(main.severity, Severity.NOTICE),
        title=(
            f"{figures.kept:,} of {figures.negative_unused:,} unused negative dentries "
            f"({human_bytes(size)}) share their slabs with dentries in use"
        ),
        evidence=(
            "a slab page is freed with its last object: dropping these dentries returns no page"
        ),
        figures={
            "kept": Figure(figures.kept, label="negatives on shared slabs"),
            "negative_unused": Figure(figures.negative_unused, label="negative and unused"),
            "kept_bytes": Figure(size, Unit.BYTES, "negatives on shared slabs"),
        },
        memory={next(iter(main.memory)): size},
        no_remedy="The pages return when the dentries in use are released: close their files, or "
        "end the processes with a working directory there (`lsof` lists both)",
        part_of=MAIN,
    )
