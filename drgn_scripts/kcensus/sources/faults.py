# SPDX-License-Identifier: LGPL-2.1-or-later
"""Classify the reasons of unreadable memory. drgn distinguishes them only in its messages."""

from __future__ import annotations

import traceback

import drgn

from kcensus.arch import MAX_MEMORY_BYTES

FILTERED = "filtered out of the dump"
TRUNCATED = "beyond the end of a truncated dump"
ABSENT = "not in the dump"
UNMAPPED = "not mapped"
UNREADABLE = "unreadable"
UNRECORDED = "not in the capsule"
ZEROED = "all zero, though an object must be there"
"""Of a page of zeros to which a pointer leads."""

REASONS = (FILTERED, TRUNCATED, ABSENT, UNMAPPED, UNREADABLE, UNRECORDED)
"""All reasons. Append only: capsules store positions in this tuple."""

_PHRASES = (
    (ZEROED, (ZEROED,)),
    (UNRECORDED, (UNRECORDED,)),
    (FILTERED, ("excluded", "not saved", FILTERED)),
    (TRUNCATED, ("short read", "end of file", "truncated")),
    (ABSENT, ("memory segment", ABSENT)),
    (UNMAPPED, ("not mapped", "translat")),
)
_REMEDIES = {
    FILTERED: "dump with a lower level (makedumpfile -d 1)",
    TRUNCATED: "copy the dump again",
    ABSENT: "`kcensus doctor` shows how much of the memory the dump holds",
    UNMAPPED: "the dump is damaged there; the other analyses may not need it",
    UNREADABLE: "the dump is damaged there; copy it again",
    UNRECORDED: "record the capsule again from its vmcore",
    ZEROED: "the dump is damaged there; copy it again",
}
_LIVE_REMEDY = (
    "the kernel probably changed while it was read: run it again, or take a vmcore and pass it"
)


def reason(error: Exception) -> str:
    """Return the reason of a failed read, one of :data:`REASONS`."""
    text = str(error).lower()
    for name, phrases in _PHRASES:
        if any(phrase in text for phrase in phrases):
            return name
    return UNREADABLE


def sentence(error: drgn.FaultError, reader: str, live: bool = False) -> str:
    """Return a sentence about unreadable memory: its place, the reason, and the next step.

    :param reader: the part that needs the memory
    :param live: whether it belongs to a running kernel, which may have freed it meanwhile
    """
    # The functions of kcensus.kernel have the names of the kernel's structures that they read.
    modules = ("kcensus.kernel.", "kcensus.engine.slub.")
    functions = [
        frame.f_code.co_name.strip("_")
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").startswith(modules)
        and not frame.f_code.co_name.startswith("<")  # <lambda>, <listcomp>
    ]
    structure = f" (while reading {functions[-1]})" if functions else ""
    why, place = reason(error), f"{error.address:#x}"
    # drgn translates an address before it looks for it in the dump.
    if why != UNMAPPED and error.address < MAX_MEMORY_BYTES:
        place = f"physical address {place}"
    remedy = _REMEDIES[why]
    if live:
        why, remedy = why if why == UNMAPPED else UNREADABLE, _LIVE_REMEDY
    return f"{reader} needs memory at {place}{structure}, which is {why}; {remedy}"
