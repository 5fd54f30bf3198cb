# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts of memory cgroups, and the memory that it accounts for."""

from __future__ import annotations

from collections.abc import Iterator

from kcensus.results import Result
from kcensus.results.charts import ChartSpec, RamUse

CHARTS = (
    ChartSpec(
        "pins",
        "pins",
        "Offline (dying) memory cgroups by what pins them",
        ("memcgs",),
        "kind",
    ),
)


def ram(result: Result) -> Iterator[RamUse]:
    """Yield pages and per-CPU areas of offline memory cgroups.

    Their structures are in slabs that they share, shrinker maps are among those of list_lrus.
    """
    charged = ("file_bytes", "shmem_bytes", "anon_bytes", "kernel_bytes")
    pages = sum(map(result.amount, charged))
    yield RamUse("offline memory cgroups", pages, in_slabs=False)
    per_cpu = result.amount("per_cpu_bytes")
    yield RamUse("offline memory cgroups", per_cpu, in_slabs=False)
