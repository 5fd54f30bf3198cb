# SPDX-License-Identifier: LGPL-2.1-or-later
"""Series of results over time, and their trends."""
