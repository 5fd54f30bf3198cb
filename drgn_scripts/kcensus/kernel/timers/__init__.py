# SPDX-License-Identifier: LGPL-2.1-or-later
"""Timers, and the tasks that they wake up."""
