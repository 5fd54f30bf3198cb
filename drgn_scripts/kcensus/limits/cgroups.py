# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory that the cgroups of this process leave it: those of systemd, and of containers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_RECLAIMABLE = {
    "memory.max": ("memory.current", r"^(?:active_file|inactive_file|slab_reclaimable) (\d+)$"),
    "memory.limit_in_bytes": (
        "memory.usage_in_bytes",
        r"^(?:total_active_file|total_inactive_file) (\d+)$",
    ),
}
"""Files of a limit: that of the usage, and what of ``memory.stat`` the kernel takes back for
others, as ``MemAvailable`` of the machine counts it."""


def available_bytes(
    own: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the least that a cgroup of this process has left; None without a limit.

    In a container, the path may be that of the host: then only the mount itself is found.
    """
    left = [
        room
        for folder in _folders(own, mounts)
        for limit in _RECLAIMABLE
        if (room := _room(folder, limit)) is not None
    ]
    return min(left, default=None)


def _folders(own: Path, mounts: Path) -> Iterator[Path]:
    for line in (_text(own) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        root = mounts / "memory" if "memory" in controllers.split(",") else mounts
        if controllers and root == mounts:
            continue
        inside = PurePosixPath(path).relative_to("/")
        for each in (inside, *inside.parents):
            if ".." not in each.parts:
                yield root / each


def _room(folder: Path, limit: str) -> int | None:
    usage, reclaimable = _RECLAIMABLE[limit]
    most, used = _text(folder / limit), _text(folder / usage)
    if not most or not used or not most.strip().isdigit():  # "max"
        return None
    found = re.findall(reclaimable, _text(folder / "memory.stat") or "", re.MULTILINE)
    return max(int(most) - max(int(used) - sum(map(int, found)), 0), 0)


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
