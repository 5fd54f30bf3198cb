# SPDX-License-Identifier: LGPL-2.1-or-later
"""What comes with kcensus: patches, and what ``tests/lab/samples.py`` records."""

from __future__ import annotations

import os
from pathlib import Path

DIRECTORY = Path(__file__).parent
CAPSULES = {
    "sample": "a capsule of a real kernel that comes with kcensus",
    "sample-after": "the same workload on a kernel with the patches",
    "sample-io": "a kernel whose I/O scheduler starves writes",
    "sample-waits": "a kernel with a deadlock of four tasks",
    "sample-arm64": "the same deadlock on arm64",
}
"""Contents of each capsule, by name."""


def packaged_directory(package: Path) -> Path:
    """Return the directory of the bundled patches, given that of :mod:`kcensus.catalogue`."""
    installed = package / "patches"
    # A wheel has the files beside the code; a checkout keeps them in a top-level directory.
    return installed if installed.is_dir() else package.parents[2] / "kernel_patches/catalogue"


PATCHES = packaged_directory(DIRECTORY.parent / "catalogue")
"""The catalogue: a file ``ID.toml`` for each patch."""
DISTRIBUTIONS = PATCHES.with_name("distributions.toml")
"""The kernels of distributions that the catalogue names packages of."""


def capsule(name: str) -> Path | None:
    """Return the file of a bundled capsule; None without one of that name."""
    if "/" in name:
        return None
    path = DIRECTORY / f"{name}.capsule"
    # Not Path.is_file(), which raises an error if the name is too long.
    return path if os.path.isfile(path) else None


LOG = "_delta_log"
"""Directory in a store of ``kcensus record``."""


def is_store(path: str | Path) -> bool:
    """Return whether a directory, or a bundled one of that name, is a store of records."""
    name = os.fspath(path)
    places = [name] if os.path.lexists(name) or "/" in name else [os.path.join(DIRECTORY, name)]
    return any(
        os.path.isdir(os.path.join(place, *below, LOG))
        for place in places
        for below in ((), ("figures",))
    )
