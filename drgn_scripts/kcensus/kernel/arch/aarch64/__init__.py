# SPDX-License-Identifier: LGPL-2.1-or-later
"""arm64: stacks, registers and machine code."""
