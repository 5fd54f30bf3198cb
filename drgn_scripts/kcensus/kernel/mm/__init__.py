# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slab counters, list_lrus, page counters, and the real size of allocations."""
