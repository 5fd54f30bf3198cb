# SPDX-License-Identifier: LGPL-2.1-or-later
"""Layouts of a kernel's structures, and readers for them: one file per subsystem.

Every branch on a layout is taken by the presence of a type, member or symbol, and cites the commit
and the release of the change.
"""
