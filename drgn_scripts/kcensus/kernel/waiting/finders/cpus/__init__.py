# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finders of busy CPUs: tasks that do not get a CPU, and tasks that spin for a lock."""
