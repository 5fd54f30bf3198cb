# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guests with Debian, Python and kcensus, which look at the kernel that they run on."""

from .guest import Done, Running, running

__all__ = ["Done", "Running", "running"]
