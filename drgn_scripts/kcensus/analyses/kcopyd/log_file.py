# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel log in a file, as ``dmesg`` or a system log has it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kcensus.analyses import AnalysisError
from kcensus.kernel.log import Line
from kcensus.text import printable

_STAMP = re.compile(
    r"^(?:<\d+>)?(?:.{0,120}? kernel: )?\s*\[\s*(\d{1,12}\.\d{1,9})\]\s?(?:\[\s*[TC]\d+\]\s?)?"
)
_MAX_BYTES = 256 << 20
_SAMPLE_BYTES = 64 << 10
_MAX_BINARY = 0.3
"""Share of unprintable characters in the sample: a log may hold a few pages of zeros after a
crash."""


def lines(text: Iterable[str]) -> Iterator[Line]:
    """Yield the time stamp and the rest of each line."""
    for line in text:
        stamp = _STAMP.match(line)
        line = (line[stamp.end() :] if stamp else line).rstrip("\r\n")
        yield float(stamp[1]) if stamp else None, printable(line)


def log_file(path: str) -> Iterator[Line]:
    """Yield the lines of a file.

    :raises AnalysisError: it is unreadable, too large, or not a text
    """
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise AnalysisError(f"--log: cannot read {path}: {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise AnalysisError(
            f"--log: {path} is larger than {_MAX_BYTES >> 20} MiB; "
            "pass an excerpt around the time of the problem"
        )
    sample = raw[:_SAMPLE_BYTES].decode(errors="replace")
    binary = sum(not char.isprintable() and not char.isspace() for char in sample)
    if binary + sample.count("\ufffd") > len(sample) * _MAX_BINARY:
        raise AnalysisError(f"--log: {path} is not a text; pass the output of dmesg")
    return lines(line.decode(errors="backslashreplace") for line in io.BytesIO(raw))
