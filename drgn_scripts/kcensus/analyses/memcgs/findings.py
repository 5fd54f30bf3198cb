# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the census of memory cgroups means, and what to do about it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from kcensus.analyses.memcgs.figures import Figures
from kcensus.human import human_bytes, human_ratio
from kcensus.kernel.memcg.charges import ANON, FILE, KERNEL, SHMEM
from kcensus.kernel.memcg.pins import CHILD, SOCKET
from kcensus.kernel.mm.footprint import Tally
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.results import Figure, Finding, Remedy, Severity, Unit, ratio
from kcensus.results.thresholds import MIN_BYTES, severity_of
from kcensus.text import printable

PER_CPU = "percpu"
PAGE_CACHE, SHMEM_PAGES = "page cache", "shmem"
"""Places of memory outside slabs."""
_WORTHWHILE = 0.25
"""Share of what the best remedy returns: a safer one that returns less comes after it."""
_MAX_PATHS = 8
"""Files in one command."""
_MAX_MOUNTS = 3
"""Mounts to name; with more, they are what to remove, not single files."""
_DROP_CACHES = "/proc/sys/vm/drop_caches"


def findings(figures: Figures) -> list[Finding]:
    """Return what is worth acting on."""
    return [*_offline(figures), *_online(figures)]


def _of_ram(figures: Figures, size: int) -> str:
    return f"{human_bytes(size)} ({human_ratio(ratio(size, figures.kernel.ram_bytes))} of RAM)"


def _places(figures: Figures, tally: Tally) -> dict[str, int]:
    """Return the bytes of allocations by slab cache, or other place."""
    slab_map, places = figures.kernel.slab_map, Counter[str]()
    roots, _ = slab_map.lineage
    for (_, place), size in tally.bytes.items():
        in_cache = place >= 0
        name = f"slab:{slab_map.caches[roots[place]].name}" if in_cache else "memcg structures"
        places[name] += size
    return dict(places)


def _offline(figures: Figures) -> Iterator[Finding]:
    """Structures decide: the pages would be there without the memory cgroups as well."""
    structures, pins, offline = figures.structures, figures.pins, figures.offline
    own = figures.offline_sum(structures.bytes)
    severity = severity_of(own, figures.kernel.ram_bytes)
    if severity is None:
        return
    count, total = int(offline.sum()), int(figures.bytes.sum())
    per_cpu = figures.offline_sum(structures.per_cpu)
    maps = figures.offline_sum(structures.shrinker_maps)
    size = Unit.BYTES
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
        "structure_bytes": Figure(own - per_cpu - maps, size),
        "per_cpu_bytes": Figure(per_cpu, size),
        "shrinker_map_bytes": Figure(maps, size),
        "bytes_each": Figure(own // count, size),
        **{key: Figure(figures.pages_bytes(kind), size) for key, (kind, _) in pages.items()},
    }
    pinned = {kind: int((held > 0).sum()) for kind, held in pins.held.items()}
    pinned["references of unknown holders"] = int((pins.unexplained > 0).sum())
    anonymous = figures.pages_bytes(ANON)
    remedies = _best_first(_remedies(figures))
    yield Finding(
        id="memcgs-offline",
        severity=severity,
        title=(
            f"{count:,} of {len(offline):,} memory cgroups are offline (dying), and hold "
            f"{_of_ram(figures, total)}"
        ),
        evidence=_sentences(
            f"structures use {human_bytes(own - per_cpu - maps)}, per-CPU areas "
            f"{human_bytes(per_cpu)}, shrinker maps {human_bytes(maps)}: "
            f"{human_bytes(own // count)} for each memory cgroup",
            "charged to them: "
            + _list({name: figures.pages_bytes(kind) for kind, name in pages.values()})
            + (" (anonymous memory is not part of what they hold)" if anonymous else ""),
            "pinned by: "
            + ", ".join(
                f"{kind} ({number:,})"
                for kind, number in sorted(pinned.items(), key=_most)
                if number
            ),
            f"{figures.groups.newer:,} online memory cgroups are newer than the oldest offline one"
            if figures.groups.newer
            else "",
        ),
        figures=numbers
        | {
            f"pinned_by_{kind.replace(' ', '_')}": Figure(number)
            for kind, number in pinned.items()
            if number
        },
        memory={
            place: held
            for place, held in {
                **_places(figures, structures.tally),
                PER_CPU: per_cpu,
                PAGE_CACHE: figures.pages_bytes(FILE),
                SHMEM_PAGES: figures.pages_bytes(SHMEM),
            }.items()
            if held
        },
        remedies=remedies,
        no_remedy=_in_use(pinned, anonymous) or ("" if remedies else _why_none(pinned)),
    )


def _most(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _list(sizes: Mapping[str, int]) -> str:
    present = [f"{human_bytes(size)} of {name}" for name, size in sizes.items() if size]
    return ", ".join(present) or "no pages"


def _sentences(*sentences: str) -> str:
    return "; ".join(each for each in sentences if each)


def _in_use(pinned: Mapping[str, int], anonymous: int) -> str:
    """Return what goes only with the processes that use it; empty where there is no such thing."""
    uses = []
    if anonymous:
        uses.append(f"anonymous memory ({human_bytes(anonymous)})")
    if pinned[SOCKET]:
        uses.append(f"sockets (they pin {pinned[SOCKET]:,} of them)")
    if not uses:
        return ""
    return (
        f"{' and '.join(uses)} go with the processes that use them, which are in other memory "
        "cgroups now: restart these"
    )


def _why_none(pinned: Mapping[str, int]) -> str:
    kinds = [kind for kind, number in pinned.items() if number and kind != CHILD]
    return (
        "no page of theirs can be dropped now: they go with what pins them "
        f"({', '.join(kinds) or 'unknown'})"
    )


def _best_first(remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
    """Put remedies that return little behind the others; otherwise the order stays."""
    known = list(remedies)
    enough = _WORTHWHILE * max((each.returns or 0 for each in known), default=0)
    return tuple(sorted(known, key=lambda each: (each.returns or 0) < enough))


def _remedies(figures: Figures) -> Iterator[Remedy]:
    """Yield what releases them, the safest first."""
    dropped = figures.dropped_bytes(inodes=False)
    yield from _reclaim(figures)
    if dropped:
        yield Remedy(
            effect="Drop the clean page cache of all files, and with it what it alone pins",
            command=f"echo 1 > {_DROP_CACHES}",
            risk="all files are read from disk again, which slows the machine down for a while",
            returns=dropped,
            is_upper_bound=True,
            knobs=(_DROP_CACHES,),
        )
    if (with_inodes := figures.dropped_bytes(inodes=True)) > dropped:
        yield Remedy(
            effect=(
                "Drop unused dentries and inodes as well, which also releases structures of "
                "writeback that inodes keep"
            ),
            command=f"sync; echo 3 > {_DROP_CACHES}",
            risk=(
                "all files are read from disk again; with tens of millions of dentries it holds "
                "locks for minutes: see `kcensus dentries` first"
            ),
            returns=with_inodes,
            is_upper_bound=True,
            knobs=(_DROP_CACHES,),
        )
    yield from _removal(figures)


def _reclaim(figures: Figures) -> Iterator[Remedy]:
    """Reclaim below the online ancestor of most of them, unless that is the root."""
    ancestors = figures.ancestor[figures.offline]
    if not len(ancestors) or not _is_unified(figures):
        return
    rows, counts = np.unique(ancestors, return_counts=True)
    row = int(rows[counts.argmax()])
    path = figures.groups.path[row]
    below = figures.offline & (figures.ancestor == row)
    size = figures.dropped_bytes(inodes=False, below=below)
    if row <= 0 or not size:
        return
    blocks = super_blocks(figures.kernel)
    mounts = [
        mount
        for mount, type_ in zip(blocks.mount, blocks.type, strict=True)
        if type_ == "cgroup2" and mount
    ]
    file = f"{mounts[0] if mounts else '/sys/fs/cgroup'}{path}/memory.reclaim"
    if not _is_plain(file):
        return
    pages = int(figures.charges.clean[below].sum()) * figures.page_size
    yield Remedy(
        effect=f"Reclaim below the nearest online ancestor of {int(below.sum()):,} of them",
        command=f"echo {pages} > {shlex.quote(file)}",
        risk=(
            "takes page cache of its online memory cgroups as well, and swaps where there is "
            "swap; fails with EAGAIN when it could reclaim less; repeat it if offline ones remain"
        ),
        returns=size,
        is_upper_bound=True,
        knobs=(f"/sys/fs/cgroup{path}/memory.reclaim",),
    )


def _is_unified(figures: Figures) -> bool:
    """Return whether the memory controller is on the unified hierarchy (cgroup v2)."""
    prog = figures.kernel.prog
    try:
        root = int(prog["memory_cgrp_subsys"].root)
        return root == int(prog["cgrp_dfl_root"].address_of_())
    except LookupError:
        return False


def _is_plain(path: str) -> bool:
    """Return whether a name from the kernel can be pasted as it is."""
    return printable(path) == path and "\\x" not in path and "?" not in path


def _removal(figures: Figures) -> Iterator[Remedy]:
    removable = figures.removable
    returns = figures.removed_bytes(removable)
    if returns < MIN_BYTES:
        return
    files = figures.pins.files[removable]
    paths = list(dict.fromkeys(files.sort_values("pages", ascending=False)["path"]))
    mounts = Counter(files["mount"].tolist())
    command = ""
    if len(paths) <= _MAX_PATHS and all(map(_is_plain, paths)):
        command = f"rm -i -- {shlex.join(paths)}"
    yield Remedy(
        effect=(
            f"{_where(mounts, len(paths))} that no program needs any more; `kcensus memcgs "
            f"--table files` lists the files that pin memory cgroups ({len(paths):,})"
        ),
        command=command,
        risk="what is in the files is lost",
        returns=returns,
        is_upper_bound=True,
    )


def _where(mounts: Mapping[str, int], files: int) -> str:
    """Return what to remove: files of a few mounts, or the tmpfs mounts of former containers."""
    names = [printable(name) for name, _ in sorted(mounts.items(), key=_most)]
    if len(names) <= _MAX_MOUNTS:
        return f"Remove tmpfs files on {', '.join(names)}"
    if files <= _MAX_PATHS:
        return f"Remove tmpfs files on {len(names):,} mounts"
    return f"Unmount or empty those of {len(names):,} tmpfs mounts (such as {names[0]})"


def _online(figures: Figures) -> Iterator[Finding]:
    structures, online = figures.structures, figures.groups.online
    size, count = int(structures.bytes[online].sum()), int(online.sum())
    severity = severity_of(size, figures.kernel.ram_bytes)
    # They are in use, so that it takes many of them to be worth a look.
    if severity is None or severity < Severity.NOTICE:
        return
    per_cpu = int(structures.per_cpu[online].sum())
    maps = int(structures.shrinker_maps[online].sum())
    yield Finding(
        id="memcgs-online",
        severity=severity,
        title=f"structures of {count:,} online memory cgroups use {_of_ram(figures, size)}",
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
        memory={
            place: held
            for place, held in {
                **_places(figures, structures.online_tally),
                PER_CPU: per_cpu,
            }.items()
            if held
        },
        no_remedy=(
            "they are in use; fewer cgroups need less: `systemd-cgls --all` shows which are empty"
        ),
    )
