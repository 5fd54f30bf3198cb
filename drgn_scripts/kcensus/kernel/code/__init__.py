# SPDX-License-Identifier: LGPL-2.1-or-later
"""Machine code of the kernel: instructions, and the ways through a function."""
