# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcensus: a census of kernel memory and I/O, on live kernels and vmcores.

>>> from kcensus import objects, open_target
>>> prog = open_target("vmcore").prog
>>> objects(prog, "struct dentry", ["d_inode", "d_flags", "d_parent"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcensus.engine.frame import objects
    from kcensus.sources import open_target

__all__ = ["objects", "open_target"]


def __getattr__(name: str) -> Any:
    # NumPy and pandas take a second to load, which `kcensus --help` need not wait for.
    if name == "objects":
        from kcensus.engine.frame import objects

        return objects
    if name == "open_target":
        from kcensus.sources import open_target

        return open_target
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
