# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands about series of results over time."""
