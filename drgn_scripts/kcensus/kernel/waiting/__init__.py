# SPDX-License-Identifier: LGPL-2.1-or-later
"""The graph of waits: tasks, the objects that they wait for, holders, and their cycles."""
