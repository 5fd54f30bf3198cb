# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why a target could not be read, as a fixed phrase without anything of the target."""

from __future__ import annotations

import os
import re

from kcensus.analyses.failures import OTHER, kind_of
from kcensus.commands.collect.files import NO_OUTPUT

NO_ROOM = "the output cannot be written"
NO_FILE = "there is no such file"
OTHER_KERNEL = "was given debug info of another kernel"
_PATH = re.compile(r"(?<!\S)(?!/proc/kcore\b)\S*/\S*")
_OF_SENTENCES = {
    "No such file": NO_FILE,
    "no such file": NO_FILE,
    "--max-memory": "exceeds the memory limit",
    "of memory available": "too little memory",
    "is a capsule with names": "a capsule with names, which cannot be redacted",
    "names cannot be redacted": "names cannot be redacted",
    "/proc/kcore": "/proc/kcore cannot be read",
    "ermission denied": "may not be read by this user",
    "not belong to": OTHER_KERNEL,
    "another kernel": OTHER_KERNEL,
    "runcated": "is truncated",
    "ncomplete": "is truncated",
    "debug info": "lacks debug info",
    "root": "needs root",
    "corrupt": "is corrupt",
    "is not a ": "is not a dump",
    "not recognized": "is not a dump",
    NO_OUTPUT: NO_ROOM,
}


def of_target(error: Exception, spec: str | None) -> str:
    """Return the class of an error that ended the work on a target."""
    known = kind_of(error)
    if known != OTHER:
        return known
    if spec and os.path.isfile(spec) and not os.path.getsize(spec):
        return "is empty"
    sentence = str(error)
    if spec:  # words of its path are none of ours, nor are those of debug info
        sentence = sentence.replace(spec, "")
    sentence = _PATH.sub("", sentence)
    return next((kind for words, kind in _OF_SENTENCES.items() if words in sentence), OTHER)
