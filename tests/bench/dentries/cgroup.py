# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands with a limit of memory, page cache included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")
_LIMITS = ((_ROOT / "memory", "memory.limit_in_bytes"), (_ROOT, "memory.max"))
"""Directories of cgroup v1 and v2, and the file of the limit."""


@contextmanager
def limited(most: int) -> Iterator[Path]:
    """Make a memory cgroup for at most so many bytes, and return its file of processes."""
    for root, limit in _LIMITS:
        group = root / f"kcensus-bench-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / limit).exists():
                (group / limit).write_text(str(most))
                yield group / "cgroup.procs"
                return
        finally:
            group.rmdir()
    pytest.skip("needs root, and a memory cgroup in /sys/fs/cgroup")


def forget(path: Path) -> None:
    """Drop a file from the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
