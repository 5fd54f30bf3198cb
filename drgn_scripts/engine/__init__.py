# SPDX-License-Identifier: LGPL-2.1-or-later
"""Columns, not loops: bulk access to kernel memory as NumPy columns.

Four primitives carry every analysis:

* :mod:`~drgn_scripts.engine.layout`: a struct and member paths become a NumPy dtype;
* :mod:`~drgn_scripts.engine.scan`: the ``struct page`` array becomes an index of slabs, and a
  slab cache becomes columns of its allocated objects;
* :mod:`~drgn_scripts.engine.gather`: many addresses become columns;
* :mod:`~drgn_scripts.engine.chase`: many linked lists are walked at once.

Nothing here knows a subsystem beyond pages and slabs.
"""
