# SPDX-License-Identifier: LGPL-2.1-or-later
"""Columns, not loops: bulk access to kernel memory as NumPy columns.

Four primitives carry every analysis:

* :mod:`~kcensus.engine.layout`: a struct and member paths become a NumPy dtype;
* :mod:`~kcensus.engine.slub.scan`: the ``struct page`` array becomes an index of slabs, and a
  slab cache becomes columns of its allocated objects;
* :mod:`~kcensus.engine.gather`: many addresses become columns;
* :mod:`~kcensus.engine.chase`: many linked lists are walked at once.

Nothing here knows a subsystem beyond pages and slabs.
"""
