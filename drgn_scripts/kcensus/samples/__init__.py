# SPDX-License-Identifier: LGPL-2.1-or-later
"""The capsules and series that come with kcensus; ``tests/lab/samples.py`` records them."""

from __future__ import annotations

import os
from pathlib import Path

DIRECTORY = Path(__file__).parent
CAPSULES = {
    "sample": "a capsule of a real kernel that comes with kcensus",
    "sample-after": "the same workload on a kernel with the patches",
    "sample-io": "a kernel whose I/O scheduler starves writes",
    "sample-waits": "a kernel with a deadlock of four tasks",
}
"""Contents of each capsule, by name."""


def capsule(name: str) -> Path | None:
    """Return the file of a bundled capsule; None without one of that name."""
    if "/" in name:
        return None
    path = DIRECTORY / f"{name}.capsule"
    # Not Path.is_file(), which raises an error if the name is too long.
    return path if os.path.isfile(path) else None
