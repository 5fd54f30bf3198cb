# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finders of those who stop the holders of objects: debuggers, and freezers of cgroups."""
