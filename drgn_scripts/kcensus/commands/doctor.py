# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus doctor``: what a target is, and what is missing to read it."""

from __future__ import annotations

from kcensus.actions import action
from kcensus.commands.shared.options import command, showing_options, target_argument

COMMAND = command(
    "doctor",
    action("kcensus.actions.doctor:run"),
    [target_argument(), *showing_options()],
    "can this target be read, how well, and what is missing?",
    "Check whether a target can be read.\n\nShows what the target is, how much of the memory"
    " it holds, where debug info was found, and what each analysis lacks.",
    (
        ("kcensus doctor vmcore", "which debug info does this dump need, and is it installed?"),
        ("kcensus doctor vmcore -s vmlinux", "which analyses will work?"),
        ("kcensus doctor case.capsule", "what was it recorded for, and is it intact?"),
    ),
)
