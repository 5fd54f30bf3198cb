# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about memory cgroups, with remedies."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from kcensus.analyses.memcgs.figures import Figures
from kcensus.human import counted, human_bytes, of_ram
from kcensus.kernel.memcg.cgroup_mounts import cgroup_mount
from kcensus.kernel.memcg.charges import ANON, FILE, KERNEL, SHMEM
from kcensus.kernel.memcg.limits import is_unified
from kcensus.kernel.memcg.pins import CHILD, SOCKET
from kcensus.kernel.mm.footprint import Tally
from kcensus.results import Figure, Finding, Remedy, Severity, Unit, ratio
from kcensus.results.severity import MIN_BYTES, severity_of
from kcensus.text import pasteable, printable

_WORTHWHILE = 0.25
"""A safer remedy with a smaller share of the best remedy's effect comes after it."""
_MAX_PATHS = 8
_MAX_MOUNTS = 3
"""Most mounts to name; with more, the remedy names mounts instead of files."""
_DROP_CACHES = "/proc/sys/vm/drop_caches"


def findings(figures: Figures) -> list[Finding]:
    return [*_offline(figures), *_online(figures)]


def _places(figures: Figures, tally: Tally, outside: dict[str, int]) -> dict[str, int]:
    """Return the bytes of structures and of memory outside of slabs, by place."""
    return dict(+Counter(tally.places(figures.kernel.slab_map, "memcg structures") | outside))


def _offline(figures: Figures) -> Iterator[Finding]:
    """Yield a finding about offline memory cgroups.

    Its severity depends on their structures: their pages would exist without them as well.
    """
    structures, pins, offline = figures.structures, figures.pins, figures.offline
    own = figures.offline_sum(structures.bytes)
    if (severity := severity_of(own, figures.kernel.ram_bytes)) is None:
        return
    count, total = int(offline.sum()), int(figures.bytes.sum())
    cached = figures.pages_bytes(FILE)
    per_cpu = figures.offline_sum(structures.per_cpu)
    maps = figures.offline_sum(structures.shrinker_maps)
    size, pages_bytes = Unit.BYTES, figures.pages_bytes
    pages = {
        "file_bytes": (FILE, "page cache"),
        "shmem_bytes": (SHMEM, "shmem"),
        "anon_bytes": (ANON, "anonymous memory"),
        "kernel_bytes": (KERNEL, "kernel pages"),
    }
    numbers = {
        "memcgs_offline": Figure(count),
        "memcgs": Figure(len(offline)),
        "bytes": Figure(total, size),
        "kept_bytes": Figure(total - cached, size),
        "kept_share_of_ram": Figure(ratio(total - cached, figures.kernel.ram_bytes), Unit.RATIO),
        "structure_bytes": Figure(own - per_cpu - maps, size),
        "per_cpu_bytes": Figure(per_cpu, size),
        "shrinker_map_bytes": Figure(maps, size),
        "bytes_each": Figure(own // count, size),
        **{key: Figure(pages_bytes(kind), size) for key, (kind, _) in pages.items()},
    }
    held = {**pins.held, "references of unknown holders": pins.unexplained}
    pinned = +Counter({kind: int((each > 0).sum()) for kind, each in held.items()})
    anonymous = pages_bytes(ANON)
    remedies = _best_first(_remedies(figures))
    kinds = [f"{kind} ({number:,})" for kind, number in sorted(pinned.items(), key=_most)]
    evidence = [
        f"structures use {human_bytes(own - per_cpu - maps)}, per-CPU areas "
        f"{human_bytes(per_cpu)}, shrinker maps {human_bytes(maps)}: "
        f"{human_bytes(own // count)} for each memory cgroup",
        "charged pages: "
        + _list({name: pages_bytes(kind) for kind, name in pages.values()})
        + (" (anonymous memory is not part of the total)" if anonymous else ""),
        f"pinned by: {', '.join(kinds)}",
    ]
    if newer := figures.groups.newer:
        evidence.append(f"{newer:,} online memory cgroups are newer than the oldest offline one")
    yield Finding(
        id="memcgs-offline",
        severity=severity,
        title=(
            f"{count:,} of {len(offline):,} memory cgroups are offline (dying), and keep "
            f"{of_ram(total - cached, figures.kernel.ram_bytes)}"
            + (f", besides {human_bytes(cached)} of page cache for reclaim" if cached else "")
        ),
        evidence="; ".join(evidence),
        figures=numbers
        | {
            f"pinned_by_{kind.replace(' ', '_')}": Figure(number) for kind, number in pinned.items()
        },
        memory=_places(
            figures,
            structures.tally,
            {"percpu": per_cpu, "page cache": pages_bytes(FILE), "shmem": pages_bytes(SHMEM)},
        ),
        remedies=remedies,
        no_remedy=_in_use(pinned, anonymous) or ("" if remedies else _why_none(pinned)),
    )


def _most(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _list(sizes: Mapping[str, int]) -> str:
    present = [f"{human_bytes(size)} of {name}" for name, size in sizes.items() if size]
    return ", ".join(present) or "no pages"


def _in_use(pinned: Mapping[str, int], anonymous: int) -> str:
    uses = []
    if anonymous:
        uses.append(f"anonymous memory ({human_bytes(anonymous)})")
    if pinned[SOCKET]:
        uses.append(f"sockets ({counted(pinned[SOCKET], 'memory cgroup')} pinned)")
    if not uses:
        return ""
    return (
        f"Restart the processes that use {' and '.join(uses)}: these processes now run in other "
        "memory cgroups"
    )


def _why_none(pinned: Mapping[str, int]) -> str:
    kinds = [kind for kind in pinned if kind != CHILD]
    return (
        "Find the objects that pin the memory cgroups: `kcensus memcgs TARGET --table pins`. No "
        f"charged page can be dropped now (pinned by: {', '.join(kinds) or 'unknown'})"
    )


def _best_first(remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
    known = list(remedies)
    enough = _WORTHWHILE * max((each.returns or 0 for each in known), default=0)
    return tuple(sorted(known, key=lambda each: (each.returns or 0) < enough))


def _remedies(figures: Figures) -> Iterator[Remedy]:
    dropped = figures.dropped_bytes(inodes=False)
    yield from _reclaim(figures)
    if dropped:
        yield Remedy(
            effect="Drop the clean page cache of all files, which releases the memory cgroups "
            "pinned by page cache alone",
            command=f"echo 1 > {_DROP_CACHES}",
            risk="all files are read from disk again, which slows the machine down for a while",
            returns=dropped,
            is_upper_bound=True,
            knobs=(_DROP_CACHES,),
        )
    if (with_inodes := figures.dropped_bytes(inodes=True)) > dropped:
        yield Remedy(
            effect=(
                "Drop unused dentries and inodes as well, which also releases writeback structures"
            ),
            command=f"sync; echo 3 > {_DROP_CACHES}",
            risk=(
                "all files are read from disk again; with tens of millions of dentries the command "
                "holds locks for minutes: `kcensus dentries TARGET --table super_blocks` counts "
                "the dentries"
            ),
            returns=with_inodes,
            is_upper_bound=True,
            knobs=(_DROP_CACHES,),
        )
    yield from _removal(figures)


def _reclaim(figures: Figures) -> Iterator[Remedy]:
    """Yield the remedy that reclaims below the online ancestor of most offline memcgs.

    The root is left out: reclaim below it is of the whole machine.
    """
    ancestors = figures.ancestor[figures.offline]
    if not len(ancestors) or not is_unified(figures.kernel.prog):
        return
    rows, counts = np.unique(ancestors, return_counts=True)
    row = int(rows[counts.argmax()])
    path = figures.groups.path[row]
    below = figures.offline & (figures.ancestor == row)
    size = figures.dropped_bytes(inodes=False, below=below)
    if row <= 0 or not size:
        return
    mount = cgroup_mount(figures.kernel, int(figures.groups.cgroup[row]), "memory").path
    file = pasteable(f"{mount}{path}/memory.reclaim")
    if not file:
        return
    pages = int(figures.charges.clean[below].sum()) * figures.page_size
    yield Remedy(
        effect="Reclaim memory below the nearest online ancestor of "
        f"{counted(int(below.sum()), 'offline memory cgroup')}",
        command=f"echo {pages} > {file}",
        risk=(
            "also reclaims page cache of online memory cgroups, and swaps if there is swap; fails "
            "with EAGAIN if less can be reclaimed; repeat the command if offline memory cgroups "
            "remain"
        ),
        returns=size,
        is_upper_bound=True,
        knobs=(f"/sys/fs/cgroup{path}/memory.reclaim",),
    )


def _removal(figures: Figures) -> Iterator[Remedy]:
    removable = figures.removable
    returns = figures.removed_bytes(removable)
    if returns < MIN_BYTES:
        return
    files = figures.pins.files[removable]
    paths = list(dict.fromkeys(files.sort_values("pages", ascending=False)["path"]))
    mounts = Counter(files["mount"].tolist())
    command = ""
    if len(paths) <= _MAX_PATHS and all(map(pasteable, paths)):
        command = f"rm -i -- {shlex.join(paths)}"
    yield Remedy(
        effect=(
            f"{_where(mounts, len(paths))}; `kcensus memcgs TARGET --table files` lists the files"
        ),
        command=command,
        risk="the content of the files is lost",
        returns=returns,
        is_upper_bound=True,
    )


def _where(mounts: Mapping[str, int], files: int) -> str:
    names = [printable(name) for name, _ in sorted(mounts.items(), key=_most)]
    pinning = f"{counted(files, 'file', 'pin')} memory cgroups"
    if len(names) <= _MAX_MOUNTS:
        return f"Remove unneeded tmpfs files on {', '.join(names)}: {pinning}"
    if files <= _MAX_PATHS:
        return f"Remove unneeded tmpfs files on {len(names):,} mounts: {pinning}"
    return (
        f"Unmount or empty unneeded tmpfs mounts, such as {names[0]}: {pinning}, on "
        f"{len(names):,} mounts"
    )


def _online(figures: Figures) -> Iterator[Finding]:
    structures, online = figures.structures, figures.groups.online
    size, count = int(structures.bytes[online].sum()), int(online.sum())
    ram = figures.kernel.ram_bytes
    severity = severity_of(size, ram)
    # Online memcgs are in use, so only many of them are notable.
    if severity is None or severity < Severity.NOTICE:
        return
    per_cpu = int(structures.per_cpu[online].sum())
    maps = int(structures.shrinker_maps[online].sum())
    yield Finding(
        id="memcgs-online",
        severity=severity,
        title=f"structures of {count:,} online memory cgroups use {of_ram(size, ram)}",
        evidence=(
            f"per-CPU areas use {human_bytes(per_cpu)}, shrinker maps {human_bytes(maps)}: "
            f"{human_bytes(size // count)} for each memory cgroup"
        ),
        figures={
            "memcgs_online": Figure(count),
            "bytes": Figure(size, Unit.BYTES),
            "per_cpu_bytes": Figure(per_cpu, Unit.BYTES),
            "shrinker_map_bytes": Figure(maps, Unit.BYTES),
            "bytes_each": Figure(size // count, Unit.BYTES),
        },
        memory=_places(figures, structures.online_tally, {"percpu": per_cpu}),
        no_remedy=(
            "Remove empty memory cgroups; the others are in use: `systemd-cgls --all` shows the "
            "empty ones, too"
        ),
    )
