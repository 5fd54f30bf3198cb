# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why memory could not be read.

drgn tells the reasons apart only in its messages, so they are sorted here, once.
"""

from __future__ import annotations

FILTERED = "filtered out of the dump"
TRUNCATED = "beyond the end of a truncated dump"
ABSENT = "not in the dump"
UNMAPPED = "not mapped"
UNREADABLE = "unreadable"
UNRECORDED = "not in the capsule"

REASONS = (FILTERED, TRUNCATED, ABSENT, UNMAPPED, UNREADABLE, UNRECORDED)
"""All there are, in the words of somebody who did not write the reader. Append only: capsules
hold positions in this tuple."""

_SIGNS = (
    (UNRECORDED, (UNRECORDED,)),
    (FILTERED, ("excluded", "not saved", FILTERED)),
    (TRUNCATED, ("short read", "end of file", "truncated")),
    (ABSENT, ("memory segment", ABSENT)),
    (UNMAPPED, ("not mapped", "translat")),
)


def reason(error: Exception) -> str:
    """Which of :data:`REASONS` a failed read had."""
    text = str(error).lower()
    for name, signs in _SIGNS:
        if any(sign in text for sign in signs):
            return name
    return UNREADABLE
