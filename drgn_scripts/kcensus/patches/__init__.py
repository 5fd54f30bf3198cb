# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalogue of kernel patches: what each brought, and whether a kernel has it.

Everything about a patch stands in one file of ``catalogue/``; the code here knows none by name.
"""

from kcensus.patches.catalogue import Catalogue, load
from kcensus.patches.detect import ask_everything, detect, modules
from kcensus.patches.model import Detected, Patch, PublishedFigure, Stage, State, Status
from kcensus.patches.probes import Prober
from kcensus.patches.schema import CatalogueError

__all__ = [
    "Catalogue",
    "CatalogueError",
    "Detected",
    "Patch",
    "Prober",
    "PublishedFigure",
    "Stage",
    "State",
    "Status",
    "ask_everything",
    "detect",
    "load",
    "modules",
]
