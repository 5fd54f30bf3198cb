# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finders of waits for memory: of a memory cgroup, or of the machine."""
