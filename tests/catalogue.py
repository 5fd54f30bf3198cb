# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalogue of patches that comes with kcensus, read once."""

from kcensus.catalogue import load

CATALOGUE = load(entry_points=False)
PATCHES = CATALOGUE.patches
