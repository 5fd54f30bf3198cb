# SPDX-License-Identifier: LGPL-2.1-or-later
"""SLUB: the index of slabs, and the allocated objects of a cache as columns."""
