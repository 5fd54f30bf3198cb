# SPDX-License-Identifier: LGPL-2.1-or-later
"""x86-64: stacks, registers and machine code."""
