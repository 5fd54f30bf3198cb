# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finders of objects and their holders: each module here that defines ``FINDER``."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from kcensus.kernel.waiting.finder import Finder


@functools.cache
def finders() -> tuple[type[Finder], ...]:
    """Return the finders of all modules of this folder, in the order of their names."""
    names = sorted(info.name for info in pkgutil.walk_packages(__path__, f"{__name__}."))
    modules = map(importlib.import_module, names)
    return tuple(module.FINDER for module in modules if hasattr(module, "FINDER"))


def modules() -> tuple[str, ...]:
    """Return the kernel modules whose debug info finders use."""
    return tuple(dict.fromkeys(name for finder in finders() for name in finder.modules))
