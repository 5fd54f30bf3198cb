# SPDX-License-Identifier: LGPL-2.1-or-later
"""Graphs of many tasks that wait."""
