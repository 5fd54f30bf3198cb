# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where things are in this kernel, and how to read them: one file per subsystem.

Every branch on a layout is taken by the presence of a type, member or symbol, and cites the
commit and the release that made it.
"""
