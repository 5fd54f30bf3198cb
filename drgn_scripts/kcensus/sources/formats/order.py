# SPDX-License-Identifier: LGPL-2.1-or-later
"""Byte order of a file's structures."""

from __future__ import annotations

import functools
import struct


@functools.cache
def ordered(structure: struct.Struct, *, is_little: bool) -> struct.Struct:
    """Return a little-endian structure (``<``) in the byte order of a file."""
    return structure if is_little else struct.Struct(f">{structure.format[1:]}")
