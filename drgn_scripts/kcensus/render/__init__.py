# SPDX-License-Identifier: LGPL-2.1-or-later
"""The faces of a :class:`~kcensus.results.Result`: one file each, no kernel knowledge."""
