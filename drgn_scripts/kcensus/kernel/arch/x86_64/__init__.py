# SPDX-License-Identifier: LGPL-2.1-or-later
"""x86-64: ORC tables and machine code."""
