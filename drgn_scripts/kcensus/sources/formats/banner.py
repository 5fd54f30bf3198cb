# SPDX-License-Identifier: LGPL-2.1-or-later
"""The banner of a kernel: its release, its builder, its tools and its version."""

from __future__ import annotations

import re

BUILDER = re.compile(
    rb"(?:Linux|%s) version [\x21-\x7e]{1,64} \(([^\0\n]{1,128}?@[^\0\n]{0,128}?)\) \("
)
"""Begin of ``linux_banner``, of its copy in the log, or of ``linux_proc_banner``. The group is the
user and the host that built the kernel: the only names in it."""


def same_build(banner: bytes, other: bytes) -> bool:
    """Return whether two banners are equal but for the builder, which redaction replaces.

    Other bytes are the same only if they are equal.
    """
    found = BUILDER.match(banner)
    if found is None or len(banner) != len(other):
        return banner == other
    start, end = found.span(1)
    return banner[:start] == other[:start] and banner[end:] == other[end:]
