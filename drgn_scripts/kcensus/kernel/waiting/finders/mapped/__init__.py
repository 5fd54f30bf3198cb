# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finders of what device mapper keeps: I/O of suspended devices, multipath maps and thin pools."""
