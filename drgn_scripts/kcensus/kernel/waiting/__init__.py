# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who waits for whom: a graph of tasks and of what they wait for, and its cycles."""
