# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a census of dentries means, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import drgn

from kcensus.human import human_bytes, human_ratio
from kcensus.kernel.vfs.dcache import Limit
from kcensus.results import Answer, Finding, Severity

_NOTABLE_SHARE = 0.05
"""Of RAM in negative dentries."""
_LARGE_SHARE = 0.25
_LONG_WALK = 100_000
"""Children from which on a walk with a spinlock held is felt; at 50 ns each it takes 5 ms."""
_LOCKUP = 10_000_000
"""From here on it takes longer than any other CPU should wait; the watchdog's limit is 20 s."""
_NOTABLE_BYTES = 1 << 20
_CROWD = 0.25
"""Of all negatives in one directory."""


@dataclass(frozen=True)
class Cost:
    """What the sentences are about."""

    negative: int
    negative_unused: int
    negative_bytes: int
    """Slots of negative dentries, and of their names."""
    unused_bytes: int
    """The same of unused ones."""
    ram: int
    limits: list[Limit]


def dentry_findings(prog: drgn.Program, result: Answer, cost: Cost) -> list[Finding]:
    """Sentences about a result whose figures and tables are complete."""
    found = [
        *_size(result, cost),
        *_walks(prog, result),
        *_crowd(result, cost),
        *_pinned(result, cost),
    ]
    return sorted(found, key=lambda finding: -finding.severity)


def _value(result: Answer, name: str) -> Any:
    figure = result.summary.get(name)
    return figure.value if figure else None


def _size(result: Answer, cost: Cost) -> Iterator[Finding]:
    share = cost.negative_bytes / max(cost.ram, 1)
    if share < _NOTABLE_SHARE:
        return
    left, left_bytes = _value(result, "patched_negative"), _value(result, "patched_bytes")
    evidence = f"{cost.negative_unused:,} of them are unused"
    saved = None
    if left is not None:
        evidence += (
            f"; at most three unreferenced in a row in each of {_value(result, 'buckets'):,} "
            f"hash buckets would leave {left:,} of {human_bytes(left_bytes)}"
        )
        saved = cost.negative_bytes - left_bytes
    yield Finding(
        Severity.WARNING if share >= _LARGE_SHARE else Severity.NOTICE,
        f"{cost.negative:,} negative dentries hold {human_bytes(cost.negative_bytes)}, "
        f"{human_ratio(share)} of RAM",
        evidence,
        "the tables of directories and patterns tell which program makes them; writing 2 to "
        "/proc/sys/vm/drop_caches drops them once, with all other unused dentries and inodes",
        "negative-dentry-hash-limit",
        saved,
    )
    bounds = [limit for limit in cost.limits if limit.bounds]
    if not any(limit.value for limit in bounds):
        # No cost: it is that of the finding before.
        yield Finding(
            Severity.INFO,
            f"no limit that kcensus knows of bounds these {cost.negative:,} negative dentries",
            f"this kernel has {', '.join(limit.name for limit in bounds)}, which is off"
            if bounds
            else "this kernel has no fs.dentry-fs-klimit; whether it has fs.negative-dentry-limit, "
            "as RHEL 7.8 and Oracle UEK do, no debug information tells",
            "set fs.negative-dentry-limit where /proc/sys/fs has it; vm.vfs_cache_pressure above "
            "100 makes reclaim prefer dentries and inodes, but does not start it",
            "negative-dentry-sysctl-limit",
        )


def _clears_lazily(prog: drgn.Program) -> bool:
    """Whether children are walked only when a directory is first watched: 172e422ffea2."""
    try:
        prog.symbol("fsnotify_set_children_dentry_flags")
    except LookupError:
        return False
    return True


def _walks(prog: drgn.Program, result: Answer) -> Iterator[Finding]:
    table = result.tables.get("walk_cost")
    if table is None:
        return
    rows: Iterator[Any] = table.frame.itertuples(index=False)
    for row in rows:
        if row.children < _LONG_WALK or row.negative * 2 < row.children:
            continue
        if row.watched:
            when = "its first watch comes" if _clears_lazily(prog) else "a watch comes or goes"
            if row.damaged:
                order = "its list of children is damaged, so their order is not known"
            elif row.at_tail:
                order = "all negatives stand at the tail, where a walk could stop"
            else:
                order = f"negatives stand before others in {row.sweeps:,} stretches"
            yield Finding(
                Severity.CRITICAL if row.children >= _LOCKUP else Severity.WARNING,
                f"{row.directory} is watched, and its {row.children:,} children, "
                f"{row.negative:,} of them negative, are walked with a lock held whenever {when}",
                order,
                "remove the watch, or move what looks up missing names elsewhere",
                "negative-dentry-sibling-tail",
            )
        elif row.children >= _LOCKUP:
            yield Finding(
                Severity.NOTICE,
                f"watching {row.directory} would walk {row.children:,} children with a lock held",
                f"{row.negative:,} of them are negative",
                "have its negative dentries dropped before anything watches it",
                "negative-dentry-dir-limit",
            )


def _crowd(result: Answer, cost: Cost) -> Iterator[Finding]:
    table = result.tables.get("directories")
    if table is None or cost.negative_bytes < _NOTABLE_BYTES:
        return
    rows: Iterator[Any] = table.frame.head(1).itertuples(index=False)
    for row in rows:
        # A row of a remainder has no address.
        if not row.address or row.negative < _CROWD * cost.negative:
            return
        yield Finding(
            Severity.INFO,
            f"{human_ratio(row.negative / cost.negative)} of all negative dentries, "
            f"{row.negative:,}, are in {row.directory}",
            f"they hold {human_bytes(row.negative_bytes)}",
            "find out who looks up names there that do not exist",
        )


def _pinned(result: Answer, cost: Cost) -> Iterator[Finding]:
    freeable = _value(result, "freeable_bytes")
    table = result.tables.get("fragmentation")
    if freeable is None or table is None:
        return
    pinned = table.frame[table.frame["pinned_by"] > 0]
    kept = int(pinned["negative_unused"].sum())
    if kept * 2 < cost.negative_unused or cost.unused_bytes < _NOTABLE_BYTES:
        return
    yield Finding(
        Severity.NOTICE,
        f"{kept:,} of {cost.negative_unused:,} unused negative dentries lie on pages that others "
        f"pin: dropping all would give back only {human_bytes(freeable)}",
        f"{human_bytes(int(pinned['bytes'].sum()))} of slab pages hold a dentry that stays",
        "the pages come back when those dentries go, too",
        "negative-dentry-hash-limit",
    )
