# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalogue of kernel patches: what each brought, and whether a kernel has it.

Everything about a patch stands in one file of ``catalogue/``; the code here knows none by name.
"""

from kernel_patches.catalogue import Catalogue, load
from kernel_patches.detect import ask_everything, detect, modules
from kernel_patches.model import Detected, Patch, PublishedFigure, Stage, State, Status
from kernel_patches.probes import Prober
from kernel_patches.schema import CatalogueError

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
