# SPDX-License-Identifier: LGPL-2.1-or-later
"""Chains of waits to a root, by its kind."""
