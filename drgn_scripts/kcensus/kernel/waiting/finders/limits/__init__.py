# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits of cgroups that keep I/O from a disk."""
