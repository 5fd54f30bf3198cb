# SPDX-License-Identifier: LGPL-2.1-or-later
"""A running kernel, sampled again and again.

:mod:`kcensus.watch.sampler` takes samples, and :mod:`kcensus.watch.history` keeps a bounded number
of values per figure; :mod:`kcensus.watch.screen`, ``lines`` and ``metrics`` show them.
"""

MAX_ROWS = 20
"""Largest rows of each table to keep in a sample and to export."""
