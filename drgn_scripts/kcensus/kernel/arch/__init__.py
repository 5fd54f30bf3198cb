# SPDX-License-Identifier: LGPL-2.1-or-later
"""Readers of memory of one architecture each: stacks, registers, and machine code."""
