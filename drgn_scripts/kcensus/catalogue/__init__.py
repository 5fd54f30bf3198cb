# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalogue of kernel patches: their effects, and their state on a kernel.

One file of ``kernel_patches/catalogue/`` describes each patch; the code does not know any patch by
name.
"""

from kcensus.catalogue.detect import Prober, ask_everything, detect, modules
from kcensus.catalogue.files import Catalogue, load
from kcensus.catalogue.model import Detected, Kind, Patch, PublishedFigure, Stage, State, Status
from kcensus.catalogue.schema import CatalogueError

__all__ = [
    "Catalogue",
    "CatalogueError",
    "Detected",
    "Kind",
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
