# SPDX-License-Identifier: LGPL-2.1-or-later
"""Versions of kcensus, its libraries and the machine that runs it, without the name of the host."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib import metadata

_LIBRARIES = (
    "drgn", "numpy", "pandas", "zstandard", "networkx", "msgspec", "rich", "jinja2", "click"
)  # fmt: skip


def versions() -> dict[str, str]:
    """Return versions by name; ``kernel`` and ``distribution`` are of the machine here."""
    system = os.uname()
    distribution = {}
    with suppress(OSError):
        distribution = platform.freedesktop_os_release()
    return {
        **{name: _installed(name) for name in ("kcensus", *_LIBRARIES)},
        "python": platform.python_version(),
        "kernel": f"{system.sysname} {system.release} {system.version} {system.machine}",
        "distribution": distribution.get("PRETTY_NAME", "unknown"),
    }


def _installed(name: str) -> str:
    # kcensus.render.plain does this, too, but imports pandas: seconds on a busy machine.
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return "unknown"
