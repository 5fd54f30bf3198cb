# SPDX-License-Identifier: LGPL-2.1-or-later
"""arm64: frame records, and machine code."""
