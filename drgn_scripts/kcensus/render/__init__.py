# SPDX-License-Identifier: LGPL-2.1-or-later
"""The forms of output of a :class:`~kcensus.results.Result`, without kernel knowledge."""
