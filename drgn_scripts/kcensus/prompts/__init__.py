# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcensus inside other tools: at the prompts of crash and drgn."""
