# SPDX-License-Identifier: LGPL-2.1-or-later
"""Type packs: what kcensus uses of a kernel's debug info, in a file of less than a megabyte.

FORMAT.md specifies the file.
"""
