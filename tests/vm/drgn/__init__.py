# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcensus inside drgn's own command line."""
