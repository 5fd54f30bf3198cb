# SPDX-License-Identifier: LGPL-2.1-or-later
"""The public API, for drgn prompts and notebooks; ``import kcensus`` offers all of it."""
