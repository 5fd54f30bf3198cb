# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why a target could not be read, as a fixed phrase without anything of the target."""

from __future__ import annotations

import os

from kcensus.analyses.failures import OTHER, kind_of

NO_ROOM = "the output cannot be written"
NO_FILE = "there is no such file"
_OF_SENTENCES = {
    "No such file": NO_FILE,
    "no such file": NO_FILE,
    "--max-memory": "exceeds the memory limit",
    "of memory available": "too little memory",
    "is a capsule with names": "a capsule with names, which cannot be redacted",
    "names cannot be redacted": "names cannot be redacted",
    "/proc/kcore": "/proc/kcore cannot be read",
    "root": "needs root",
    "ermission denied": "may not be read by this user",
    "runcated": "is truncated",
    "ncomplete": "is truncated",
    "debug info": "lacks debug info",
    "corrupt": "is corrupt",
    "is not a ": "is not a dump",
    "not recognized": "is not a dump",
    "cannot write the output": NO_ROOM,
}


def of_target(error: Exception, spec: str | None) -> str:
    """Return the class of an error that ended the work on a target."""
    known = kind_of(error)
    if known != OTHER:
        return known
    if spec and os.path.isfile(spec) and not os.path.getsize(spec):
        return "is empty"
    sentence = str(error)
    if spec:  # words of its path are none of ours
        sentence = sentence.replace(spec, "")
    return next((kind for words, kind in _OF_SENTENCES.items() if words in sentence), OTHER)
