# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that runs, sampled again and again.

:mod:`kcensus.watch.sampler` takes samples, :mod:`kcensus.watch.samples` is what they hold, and
:mod:`kcensus.watch.history` what is kept of them: a bounded number of values per figure. None of
these prints or waits.

:mod:`kcensus.watch.screen` shows them on a terminal or as lines, :mod:`kcensus.watch.documents` as
JSON, :mod:`kcensus.watch.metrics` as metrics, which :mod:`kcensus.watch.exposition` writes to a
file or serves.
"""

MAX_ROWS = 20
"""Of each table that a sample keeps, and that is exported; the largest."""
