# SPDX-License-Identifier: LGPL-2.1-or-later
"""Remedies of several findings, and the patches that findings name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import drgn

from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.kept import Keeper
from kcensus.analyses.remedies import sysctl, together, written
from kcensus.human import human_bytes
from kcensus.results import Remedy
from kcensus.sources.capsule import NotRecorded

LIMIT_PATCH, CALLBACK_PATCH = "dm-snapshot-cow-in-progress", "dm-kcopyd-callback-list"
PARAMETER = "/sys/module/dm_snapshot/parameters/snapshot_cow_threshold"
NO_FEWER = (
    "Remove unneeded snapshots, since a written chunk is copied once per snapshot: the limit of "
    "dirty pages is already low, or unknown"
)
_MIB = 1 << 20
_MAX_DIRTY, _MIN_DIRTY = 256 * _MIB, 4 * _MIB


def set_limit(figures: Figures, limit: int, effect: str, risk: str, **more: Any) -> Remedy:
    """Return the remedy that sets the limit of copies of a snapshot."""
    return written(
        effect,
        PARAMETER,
        limit,
        figures.census.threshold,
        risk=risk,
        until="reboot, or dm_snapshot is loaded again",
        knobs=(PARAMETER,),
        **more,
    )


def released_first(kept: Sequence[Keeper], returns: int | None = None) -> Iterator[Remedy]:
    """Yield the remedies that let the copies in flight complete, before any limit."""
    for each in together([each.finding.remedies[:1] for each in kept]):
        effect = f"First {each.effect[0].lower()}{each.effect[1:]}"
        yield replace(
            each,
            effect=f"{effect}; a limit that is set before makes writers wait for these copies",
            returns=returns,
            is_upper_bound=returns is not None,
        )


def write_less(figures: Figures) -> Iterator[Remedy]:
    """Yield the remedy that lowers the limit of dirty pages to a quarter, if the limit is known."""
    limit = None
    with contextlib.suppress(LookupError, TypeError, drgn.FaultError, NotRecorded):
        prog = figures.kernel.prog
        dirty, ratio = int(prog["vm_dirty_bytes"]), int(prog["vm_dirty_ratio"])
        limit = dirty or figures.kernel.ram_bytes * ratio // 100
        undo = f"vm.dirty_bytes={dirty}" if dirty else f"vm.dirty_ratio={ratio}"
    if limit is None or limit // 4 < _MIN_DIRTY:
        return
    lower = min(limit // 4 // _MIB * _MIB, _MAX_DIRTY)
    yield sysctl(
        f"Lower the limit of dirty pages from about {human_bytes(limit)} to {human_bytes(lower)}: "
        "fewer copies start at once",
        "vm.dirty_bytes",
        lower,
        undo,
        risk="buffered writes of all programs on this machine are throttled earlier",
        until="reboot",
    )
