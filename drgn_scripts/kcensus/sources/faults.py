# SPDX-License-Identifier: LGPL-2.1-or-later
"""Classify why memory could not be read. drgn distinguishes the reasons only in its messages."""

from __future__ import annotations

FILTERED = "filtered out of the dump"
TRUNCATED = "beyond the end of a truncated dump"
ABSENT = "not in the dump"
UNMAPPED = "not mapped"
UNREADABLE = "unreadable"
UNRECORDED = "not in the capsule"

REASONS = (FILTERED, TRUNCATED, ABSENT, UNMAPPED, UNREADABLE, UNRECORDED)
"""All reasons. Append only: capsules store positions in this tuple."""

_PHRASES = (
    (UNRECORDED, (UNRECORDED,)),
    (FILTERED, ("excluded", "not saved", FILTERED)),
    (TRUNCATED, ("short read", "end of file", "truncated")),
    (ABSENT, ("memory segment", ABSENT)),
    (UNMAPPED, ("not mapped", "translat")),
)


def reason(error: Exception) -> str:
    """Return which of :data:`REASONS` made a read fail."""
    text = str(error).lower()
    for name, phrases in _PHRASES:
        if any(phrase in text for phrase in phrases):
            return name
    return UNREADABLE
