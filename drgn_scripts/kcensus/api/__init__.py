# SPDX-License-Identifier: LGPL-2.1-or-later
"""What people at a drgn prompt and in notebooks use; ``import kcensus`` offers all of it."""
