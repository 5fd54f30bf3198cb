# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finders of what device mapper keeps: suspended devices, copies of snapshots."""
