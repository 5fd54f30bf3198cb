# SPDX-License-Identifier: LGPL-2.1-or-later
"""Can this target be read, how well, and what is missing?"""

from __future__ import annotations

from kcensus.commands.shared import options

COMMAND = options.command(
    "doctor",
    "kcensus.commands.doctor.examination:run",
    [options.target(), *options.showing(), *options.reading()],
    "Check whether a target can be read.\n\nShows the kind of target, the share of memory it "
    "holds, the debug info found, and the gaps of each analysis.",
    (
        ("kcensus doctor vmcore", "which debug info does this dump need, and is it installed?"),
        ("kcensus doctor vmcore -s vmlinux", "which analyses will work?"),
        ("kcensus doctor case.capsule", "what was it recorded for, and is it intact?"),
    ),
)
