# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcensus: a census of kernel memory and I/O, on live kernels and vmcores.

>>> import kcensus
>>> target = kcensus.open_target("sample")  # a vmcore, a capsule, None for the running kernel
>>> kcensus.slab(target).tables["caches"]["cache"].iloc[0]
'kcopyd_job'
>>> kcensus.objects(target, "struct dentry", ["d_flags"], where="d_flags == 0").empty
True

There is one function per analysis, named like its command: ``kcensus.slab``, ``kcensus.dentries``,
``kcensus.list_lru``, ``kcensus.kcopyd``, ``kcensus.memcgs``. Each takes a target or any
:class:`drgn.Program`, and returns a :class:`kcensus.Result`. ``kcensus.report`` runs all of them.
"""

from __future__ import annotations

import importlib
from typing import Any

_PLACES = {
    "AnalysisError": "analyses",
    "CatalogueError": "catalogue",
    "FleetError": "fleets",
    "Frame": "api.frames",
    "IncompleteWarning": "api.objects",
    "MergedCacheWarning": "api.objects",
    "NotRecorded": "sources.capsule",
    "Report": "api.answers",
    "Result": "api.answers",
    "StoreError": "store",
    "TargetError": "sources",
    "as_object": "api.rows",
    "diff": "api.pairs",
    "fleet": "api.fleet",
    "follow": "api.rows",
    "history": "api.history",
    "last": "api.answers",
    "objects": "api.objects",
    "open_target": "sources",
    "patches": "api.answers",
    "patch_ids": "api.answers",
    "paths": "api.rows",
    "report": "api.answers",
    "rows": "api.rows",
    "shown": "api.answers",
    "stacks": "api.stacks",
    "trend": "api.history",
    "validate": "api.pairs",
}
"""Where each public name is defined. It is imported when it is first used: NumPy and pandas take a
second to load, which ``kcensus --help`` does not need."""


__all__ = sorted(_PLACES)


def _analyses() -> dict[str, Any]:
    """Return the analyses by the names of their functions."""
    from kcensus.analyses import analyses

    return {name.replace("-", "_"): analysis for name, analysis in analyses().items()}


def _alias(name: str) -> str:
    """Return the function that has another name, too, as in crash; empty if ``name`` is none."""
    from kcensus.analyses import ALIASES

    return ALIASES.get(name, "").replace("-", "_")


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        value = getattr(importlib.import_module(f"kcensus.{_PLACES[name]}"), name)
    elif not name.startswith("_") and (analysis := _analyses().get(name)):
        value = importlib.import_module("kcensus.api.answers").analysis_function(analysis)
    elif not name.startswith("_") and (other := _alias(name)):
        value = getattr(importlib.import_module(__name__), other)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    special = {name for name in globals() if name.startswith("__")}
    return sorted({*special, *_PLACES, *_analyses()})
