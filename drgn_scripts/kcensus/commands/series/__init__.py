# SPDX-License-Identifier: LGPL-2.1-or-later
"""Declarations of the commands about series of results over time."""
