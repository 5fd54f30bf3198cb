# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a census of dentries means, and what to do about it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import drgn
import numpy as np

from kcensus.analyses.dentries.census import BUSY, DEAD, DENTRY
from kcensus.analyses.dentries.figures import Figures
from kcensus.human import human_bytes, human_ratio, human_seconds
from kcensus.kernel.knobs import has_knob
from kcensus.kernel.vfs.super_blocks import MountState
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit, ratio
from kcensus.results.thresholds import MIN_BYTES, severity_of

MAIN = "dentries-negative"
_WALKS = {
    Severity.CRITICAL: 10_000_000,
    Severity.WARNING: 1_000_000,
    Severity.NOTICE: 100_000,
}
"""Children of a watched directory from which on a visit of all is this severe.

A visit takes 50 to 100 ns a child, under the spinlock of the directory: from 5 ms on lookups there
wait noticeably, from 50 ms on so do other CPUs, and from 0.5 s on soft lockups and RCU stalls come
into reach where several CPUs queue up for the lock.
"""
_CROWD = 0.25
"""Of all negative dentries in one directory, which is then a part of the finding."""
_MOST = 0.5
"""Of all unused negative dentries on one super block, or charged to one memory cgroup: the share
from which on it is worth a remedy of its own."""
_DROP_SECONDS = 0.5e-6, 1e-6
"""To free a dentry. Measured with rmdir of a directory with 0.5 to 2 million negative children on
6.18: 0.47 to 0.81 us each."""
_LIMIT_SHARE = 0.01
"""Of RAM: where to set a limit."""
_NOTABLE = 0.05
"""Of all negative dentries: less is not named in a sentence."""
_NAMED = 3
"""Directories, patterns and processes to name in a sentence."""


def findings(figures: Figures) -> list[Finding]:
    """Return what is worth acting on."""
    main = _negative(figures)
    if main is None:
        return list(_watches(figures, None))
    parts = _crowd(figures, main), _pinned(figures, main), _watches(figures, main)
    return [main, *(finding for part in parts for finding in part)]


def _count(value: int, label: str) -> Figure:
    return Figure(value, Unit.COUNT, label)


def _size(value: int, label: str) -> Figure:
    return Figure(value, Unit.BYTES, label)


def _share(value: float, label: str) -> Figure:
    return Figure(value, Unit.RATIO, label)


def _negative(figures: Figures) -> Finding | None:
    ram = figures.kernel.ram_bytes
    severity = severity_of(figures.negative_bytes, ram)
    if severity is None:
        return None
    share = ratio(figures.negative_bytes, ram)
    of_ram = f" ({human_ratio(share)} of RAM)" if ram else ""
    return Finding(
        id=MAIN,
        severity=severity,
        title=(
            f"{figures.negative:,} negative dentries hold {human_bytes(figures.negative_bytes)}"
            f"{of_ram}"
        ),
        evidence="; ".join(_evidence(figures)),
        figures={
            "negative": _count(figures.negative, "negative dentries"),
            "negative_unused": _count(figures.negative_unused, "negative and unused"),
            "negative_bytes": _size(figures.negative_bytes, "negatives, external names included"),
            "share_of_ram": _share(share, "share of RAM"),
        },
        memory=figures.memory,
        remedies=tuple(_remedies(figures)),
        no_remedy=(
            ""
            if _returned(figures)
            else "No safe way to free them: every slab also holds dentries that are in use"
        ),
        patch="negative-dentry-hash-limit",
    )


def _evidence(figures: Figures) -> Iterator[str]:
    """Say how many reclaim could free, where they are, what they are called, and who is there."""
    yield f"{figures.negative_unused:,} are unused: reclaim can free them"
    if (own := _super_block(figures)) is not None:
        blocks, share = figures.super_blocks, ratio(own.unused, figures.negative_unused)
        place = blocks.mount[own.row] or blocks.id[own.row]
        yield f"{human_ratio(share)} of these are on {place} ({blocks.type[own.row]})"
    if figures.most_negative is not None:
        listed = figures.most_negative[figures.most_negative["address"] != 0]
        if names := _named(figures, listed["directory"], listed["negative"]):
            yield f"most in {names}"
    known = figures.patterns
    if known is not None and (names := _named(figures, known.texts, known.sums[:, 0])):
        yield f"named {names}"
    if figures.processes is not None:
        if not len(figures.processes):
            yield "no process has a working directory or open files there"
        else:
            rows: Any = figures.processes.head(_NAMED).itertuples(index=False)
            who = ", ".join(f"{row.comm} (PID {row.pid}, {row.directory})" for row in rows)
            more = len(figures.processes) - _NAMED
            others = f" and {more:,} more" if more > 0 else ""
            yield f"working directory or open files there: {who}{others}"


def _named(figures: Figures, names: Iterable[str], counts: Iterable[int]) -> str:
    """Return the first names that have a notable share of all negative dentries."""
    pairs = islice(zip(names, counts, strict=True), _NAMED)
    least = _NOTABLE * figures.negative
    return ", ".join(f"{name} ({count:,})" for name, count in pairs if count >= least)


class _Share(NamedTuple):
    """The owner of most negative dentries."""

    row: int
    """Of the super block or memory cgroup."""
    dentries: int
    unused: int
    """Negative and unused ones."""


def _largest(rows: Any, sums: Any, size: int) -> _Share | None:
    """Return the owner of most unused negative dentries, or None if they have no known owner."""
    known = rows >= 0
    dentries, unused = (
        np.bincount(rows[known], column[known], size).astype(np.int64)
        for column in (sums.values[0], sums.values[2])
    )
    if not unused.any():
        return None
    row = int(np.argmax(unused))
    return _Share(row, int(dentries[row]), int(unused[row]))


def _super_block(figures: Figures) -> _Share | None:
    """Return the super block of most unused negative dentries, if it has :data:`_MOST` of them."""
    sums, blocks = figures.census.sums("super_block"), figures.super_blocks
    own = _largest(blocks.rows(sums.key.astype(np.uint64)), sums, len(blocks))
    return own if own and own.unused >= _MOST * figures.negative_unused else None


def _returned(figures: Figures) -> int:
    """Return the bytes of negative dentries whose slabs are freed with all unused dentries."""
    freed = (figures.negative_unused - figures.kept) * figures.slot_size
    return freed + figures.census.tally.unused_name_bytes if freed else 0


def _duration(dentries: int) -> str:
    low, high = (dentries * each for each in _DROP_SECONDS)
    return f"{human_seconds(low)} to {human_seconds(high)} of CPU time" if low >= 1 else ""


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _pasteable(path: str) -> str:
    """Return a path quoted for a shell; empty where its text may differ from its bytes."""
    # Bytes that are not UTF-8 are written with a backslash.
    safe = path.startswith("/") and path.isprintable() and "\\" not in path
    return shlex.quote(path) if safe else ""


def _remedies(figures: Figures) -> Iterator[Remedy]:
    """Return the remedies of the main finding, the most targeted first."""
    returns = _returned(figures)
    if returns:
        yield from _remount(figures, returns)
        yield from _reclaim(figures, returns)
        yield _drop(figures, returns)
    if figures.most_negative is not None:
        for path in figures.most_negative["directory"].head(1):
            yield from _who(figures, path)
    yield from _limits(figures)


def _remount(figures: Figures, returns: int) -> Iterator[Remedy]:
    own = _super_block(figures)
    if own is None or figures.super_blocks.state[own.row] is not MountState.MOUNTED:
        return
    mount = figures.super_blocks.mount[own.row]
    if path := _pasteable(mount):
        yield Remedy(
            effect=(
                f"Drop the unused dentries of {mount} alone ({own.unused:,} negative ones); inodes "
                "and page cache stay"
            ),
            command=f"mount -o remount {path}",
            risk=_joined(
                _duration(own.dentries),
                "sync and unmount of this file system wait meanwhile",
                "options of /etc/fstab that were changed since the mount take effect",
            ),
            until="the names are looked up again",
            returns=min(returns, _own_bytes(figures, own)),
            is_upper_bound=True,
        )


def _own_bytes(figures: Figures, own: _Share) -> int:
    """Return the bytes of the unused negative dentries of one owner; names in proportion."""
    names = figures.census.tally.unused_name_bytes * ratio(own.unused, figures.negative_unused)
    return own.unused * figures.slot_size + int(names)


def _reclaim(figures: Figures, returns: int) -> Iterator[Remedy]:
    """Return the way to free what is charged to one memory cgroup; the root is too much."""
    groups = figures.groups
    if groups is None:
        return
    own = _largest(figures.owner_rows, figures.census.sums("owner"), len(groups))
    if own is None or own.unused < _MOST * figures.negative_unused or own.row == 0:
        return
    blocks = zip(figures.super_blocks.type, figures.super_blocks.mount, strict=True)
    if ("cgroup2", "/sys/fs/cgroup") not in blocks or not groups.online[own.row]:
        return
    file = f"/sys/fs/cgroup{groups.path[own.row]}/memory.reclaim"
    size = _own_bytes(figures, own)
    if path := _pasteable(file):
        yield Remedy(
            effect=(
                f"Reclaim memory of the cgroup {groups.path[own.row]} alone: "
                f"{human_ratio(ratio(own.unused, figures.negative_unused))} of the negative "
                "dentries are charged to it"
            ),
            command=f"echo {size} > {path}",
            risk=(
                "reclaims page cache of the cgroup as well, and swaps if there is swap; fails with "
                "EAGAIN when it could reclaim less"
            ),
            until="the names are looked up again",
            returns=min(returns, size),
            is_upper_bound=True,
            knobs=(file,),
        )


def _drop(figures: Figures, returns: int) -> Remedy:
    unused = figures.census.count(DENTRY, BUSY | DEAD)
    return Remedy(
        effect=f"Drop all unused dentries ({unused:,}) and inodes of all file systems",
        command="echo 2 > /proc/sys/vm/drop_caches",
        risk=_joined(
            _duration(unused),
            "lookups and reclaim on other CPUs wait for LRU locks meanwhile",
            "directories and inodes are read from disk again",
            "page cache of dropped inodes is lost",
        ),
        until="the names are looked up again",
        returns=returns,
        is_upper_bound=figures.census.tally.unused_name_bytes > 0,
    )


def _limits(figures: Figures) -> Iterator[Remedy]:
    """Return the limits that the kernel has; they prevent, and free nothing at once."""
    values = dict(zip(figures.limits["setting"], figures.limits["value"], strict=True))
    most = int(_LIMIT_SHARE * figures.kernel.ram_bytes) // figures.slot_size
    if most and values.get("fs.dentry-fs-klimit") == 0:
        yield _setting(
            f"Limit the unused dentries of each file system and NUMA node to {most:,} (1 % of RAM)",
            "fs.dentry-fs-klimit",
            max(most // 1000, 1),
            0,
            "a workload with more files than that reads them from disk more often",
        )
    # Its variable is not known, so the table of limits lacks it.
    if has_knob(figures.kernel, "/proc/sys/fs/negative-dentry-limit"):
        yield _setting(
            "Limit negative dentries to 1 % of RAM",
            "fs.negative-dentry-limit",
            round(1000 * _LIMIT_SHARE),
            0,
            "names beyond the limit are looked up on disk again",
        )
    if values.get("fs.dentry-negative") == 0:
        yield _setting(
            "Free the dentry of a file that is removed instead of keeping a negative one; names "
            "that never existed are kept as before",
            "fs.dentry-negative",
            1,
            0,
            "slower where the same names are created again",
        )
    pressure = values.get("vm.vfs_cache_pressure")
    if pressure is not None and pressure <= 100:
        yield _setting(
            "Let reclaim prefer dentries and inodes over page cache; it does not start earlier",
            "vm.vfs_cache_pressure",
            200,
            pressure,
            "directories and inodes are read from disk more often",
        )


def _setting(effect: str, name: str, value: int, before: int, risk: str) -> Remedy:
    return Remedy(
        effect=effect,
        command=f"sysctl -w {name}={value}",
        risk=risk,
        undo=f"sysctl -w {name}={before}",
        until=f"reboot; to keep it, write {name} = {value} to /etc/sysctl.d/90-dentries.conf",
        knobs=(f"/proc/sys/{name.replace('.', '/')}",),
    )


def _who(figures: Figures, directory: str) -> Iterator[Remedy]:
    """Return the command that counts by program who adds names to a directory."""
    path = _pasteable(directory)
    if not path or directory == "/":
        return
    # A lookup of a name that is not cached calls d_alloc_parallel() since 4.7 (commit not
    # verified), as kernels with DCACHE_PAR_LOOKUP do; before, d_alloc().
    function = "d_alloc_parallel" if figures.census.flags.par_lookup else "d_alloc"
    yield Remedy(
        effect=(
            f"Count by program the lookups in {directory} that add a dentry, until Ctrl-C, on the "
            "running machine"
        ),
        command=(
            f"bpftrace -e 'kprobe:{function} "
            "/((struct dentry *)arg0)->d_inode->i_ino == $1/ { @[comm, pid] = count(); }' "
            f'"$(stat -c %i {path})"'
        ),
        risk=(
            "needs bpftrace and kernel BTF; costs below 1 us a lookup that is not cached; "
            "directories of other file systems with the same inode number count as well"
        ),
    )


def _crowd(figures: Figures, main: Finding) -> Iterator[Finding]:
    """Say that one directory has many of them, and how to empty it alone."""
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
            f"; an inotify watch on it would visit {children:,} children under a spinlock"
            if children >= _WALKS[Severity.WARNING]
            else ""
        )
        yield Finding(
            id=f"dentries-directory:{row.directory}",
            severity=min(main.severity, Severity.NOTICE),
            title=(
                f"{row.directory} has {row.negative:,} negative dentries "
                f"({human_ratio(row.share)} of all), which hold {human_bytes(row.negative_bytes)}"
            ),
            evidence=f"{row.others:,} other children are cached{walk}",
            figures={
                "negative": _count(row.negative, "negative dentries"),
                "others": _count(row.others, "other children"),
                "share": _share(row.share, "share of all negatives"),
                "negative_bytes": _size(row.negative_bytes, "negatives, external names included"),
            },
            memory={place: size for place, size in places.items() if size},
            remedies=tuple(_rmdir(figures, row)),
            part_of=MAIN,
        )


def _rmdir(figures: Figures, row: Any) -> Iterator[Remedy]:
    returns = min(_returned(figures), row.negative_bytes)
    path = _pasteable(row.directory)
    if path and returns and row.state == MountState.MOUNTED.value and not row.others:
        yield Remedy(
            effect="Remove the directory if no program needs it, which drops its cached children",
            command=f"rmdir {path}",
            risk=_joined(
                _duration(row.negative),
                "fails unless the directory is empty",
                "who creates it again has to restore its owner, mode and SELinux context",
            ),
            undo=f"mkdir {path}",
            returns=returns,
            is_upper_bound=True,
        )


def _pinned(figures: Figures, main: Finding) -> Iterator[Finding]:
    """Say that dropping them frees little, since other dentries are on the same slabs."""
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
        evidence="a slab page is freed with its last object, so dropping these returns no page",
        figures={
            "kept": _count(figures.kept, "negatives on shared slabs"),
            "negative_unused": _count(figures.negative_unused, "negative and unused"),
            "kept_bytes": _size(size, "negatives on shared slabs"),
        },
        memory={next(iter(main.memory)): size},
        no_remedy="No safe way to free these pages before the dentries in use are released",
        part_of=MAIN,
    )


def _clears_lazily(prog: drgn.Program) -> bool:
    """Return whether the kernel visits children only when a directory is first watched.

    Since Linux kernel commit 172e422ffea2 ("fsnotify: clear PARENT_WATCHED flags lazily")
    (in v6.11), the function that sets their flags has this name.
    """
    try:
        prog.symbol("fsnotify_set_children_dentry_flags")
    except LookupError:
        return False
    return True


def _watches(figures: Figures, main: Finding | None) -> Iterator[Finding]:
    """Say which watched directories have so many children that a visit stalls."""
    if figures.walk_cost is None:
        return
    frame = figures.walk_cost
    frame = frame[frame["watched"] & (frame["negative"] * 2 >= frame["children"])]
    seen: Counter[str] = Counter()
    row: Any
    for row in frame.itertuples(index=False):
        severity = next((each for each, least in _WALKS.items() if row.children >= least), None)
        if severity is None:
            continue
        seen[row.directory] += 1
        # The same path in two mount namespaces is two directories.
        again = f"@{seen[row.directory]}" if seen[row.directory] > 1 else ""
        lazily = _clears_lazily(figures.kernel.prog)
        yield Finding(
            id=f"dentries-watch:{row.directory}{again}",
            severity=severity,
            title=(
                f"{row.directory} is watched: {row.children:,} children ({row.negative:,} "
                "negative) are visited under a spinlock whenever "
                f"{'its first watch is added' if lazily else 'a watch is added or removed'}"
            ),
            evidence=_order(row),
            figures={
                "children": _count(row.children, "children"),
                "negative": _count(row.negative, "negative children"),
            },
            danger=Danger.STALL,
            remedies=tuple(_watchers(row.directory, lazily)),
            patch="" if lazily else "fsnotify-lazy-parent-watched",
            # A danger is not hidden under a finding that is less severe.
            part_of=MAIN if main is not None and main.severity >= severity else "",
        )


def _order(row: Any) -> str:
    if row.damaged:
        return "the list of children is damaged, so their order is unknown"
    if row.at_tail:
        return "all negative children are at the tail of the list"
    return f"{row.sweeps:,} runs of negative children precede positive ones"


def _watchers(directory: str, lazily: bool) -> Iterator[Remedy]:
    path = _pasteable(directory)
    if path:
        yield Remedy(
            effect=(
                "Find the processes that watch it (the number in the path is the PID), and stop "
                "them or let them watch another directory"
            ),
            command=(f'grep -s "ino:$(printf %x "$(stat -c %i {path})") " /proc/[0-9]*/fdinfo/*'),
            risk="" if lazily else "removing the watch is itself such a visit",
        )
    yield Remedy(
        effect=(
            "Drop the negative children before the next watch is added or removed, and move the "
            "lookups of missing names to another directory"
        ),
    )
