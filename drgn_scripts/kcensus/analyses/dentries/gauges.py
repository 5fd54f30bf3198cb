# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the dentry cache counts itself."""

from __future__ import annotations

from collections.abc import Iterator

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.vfs.dcache import counter
from kcensus.results import Gauge

_LABELS = {
    "nr_dentry": "dentries",
    "nr_dentry_unused": "unused, on LRU lists",
    "nr_dentry_negative": "negative, on LRU lists",
}


def gauges(kernel: Kernel) -> Iterator[Gauge]:
    """Yield the counters behind /proc/sys/fs/dentry-state."""
    for name, label in _LABELS.items():
        value = counter(kernel.prog, name)
        if value is not None:
            yield Gauge(name, value, label=label, source=name)
