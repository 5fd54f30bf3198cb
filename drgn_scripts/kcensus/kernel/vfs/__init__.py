# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dentries, super blocks, mounts and paths."""
