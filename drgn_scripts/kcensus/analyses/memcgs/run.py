# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take the census of memory cgroups, and report it."""

from __future__ import annotations

from kcensus.analyses.memcgs.checks import checks, gaps
from kcensus.analyses.memcgs.figures import Figures
from kcensus.analyses.memcgs.findings import findings
from kcensus.analyses.memcgs.tables import TABLES
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.charges import ANON, FILE, KERNEL, SHMEM
from kcensus.results import Answer, Figure, Unit, ratio
from kcensus.results.tables import make_tables


def run(kernel: Kernel) -> Answer:
    """Take the census, and report it."""
    figures = Figures(kernel)
    return Answer(
        summary=summary(figures),
        tables=make_tables(TABLES, figures),
        checks=[*checks(figures)],
        findings=findings(figures),
        gaps=gaps(figures),
    )


def summary(figures: Figures) -> dict[str, Figure]:
    groups, structures, pins = figures.groups, figures.structures, figures.pins
    size, count = Unit.BYTES, Unit.COUNT
    offline, total = int(figures.offline.sum()), int(figures.bytes.sum())
    online_bytes = int(structures.bytes.sum()) - figures.offline_sum(structures.bytes)
    return {
        "memcgs_online": Figure(len(groups) - offline, count, "online memory cgroups"),
        "memcgs_offline": Figure(offline, count, "offline (dying) memory cgroups"),
        "memcgs_newer_than_offline": Figure(
            figures.groups.newer, count, "online, newer than oldest offline"
        ),
        "offline_bytes": Figure(total, size, "held by offline memcgs"),
        "share_of_ram": Figure(ratio(total, figures.kernel.ram_bytes), Unit.RATIO, "share of RAM"),
        "structure_bytes": Figure(
            figures.offline_sum(structures.slab), size, "structures of offline memcgs"
        ),
        "per_cpu_bytes": Figure(
            figures.offline_sum(structures.per_cpu), size, "per-CPU areas of offline memcgs"
        ),
        "shrinker_map_bytes": Figure(
            figures.offline_sum(structures.shrinker_maps), size, "shrinker maps of offline memcgs"
        ),
        "file_bytes": Figure(figures.pages_bytes(FILE), size, "page cache charged"),
        "shmem_bytes": Figure(figures.pages_bytes(SHMEM), size, "shmem charged"),
        "anon_bytes": Figure(figures.pages_bytes(ANON), size, "anonymous memory charged"),
        "kernel_bytes": Figure(figures.pages_bytes(KERNEL), size, "kernel pages charged"),
        "swapped_pages": Figure(int(pins.swapped.sum()), Unit.PAGES, "swapped pages charged"),
        "sockets": Figure(int(pins.held["sockets"].sum()), count, "sockets charged"),
        "references": Figure(
            int(pins.refs[figures.offline].clip(0).sum()), count, "references to offline memcgs"
        ),
        "references_unexplained": Figure(
            int(pins.unexplained.sum()), count, "references with unknown holder"
        ),
        "online_structure_bytes": Figure(online_bytes, size, "structures of online memcgs"),
    }
