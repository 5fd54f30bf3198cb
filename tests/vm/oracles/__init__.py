# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slow, obvious walks with drgn objects, to hold the analyses against."""
