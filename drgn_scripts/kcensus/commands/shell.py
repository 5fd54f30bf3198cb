# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus shell``."""

from __future__ import annotations

import click

from kcensus.actions import action
from kcensus.commands.shared.options import (
    CONTEXT_SETTINGS,
    example_lines,
    reading_options,
    target_argument,
)

_EXAMPLES = (
    ("kcensus shell vmcore", "drgn's prompt on a dump; `slab()`, `%kcensus slab` and prog work"),
    ("kcensus shell case.capsule", "on a capsule: what the analyses read, without debug info"),
    ("kcensus shell vmcore -e 'print(slab().summary)'", "run one statement"),
    ("kcensus shell vmcore < script.py", "run a script"),
)

COMMAND = click.Command(
    "shell",
    callback=action("kcensus.actions.shell:run"),
    params=[
        target_argument(),
        click.Option(
            ["code", "-e"],
            metavar="CODE",
            multiple=True,
            help="Run this Python code instead of a prompt. Can be repeated, for more lines.",
        ),
        *(each for each in reading_options() if each.name not in ("jobs", "chunk_size")),
    ],
    short_help="open drgn's prompt on a target",
    help="""Open drgn's prompt on a target.

    All that drgn's own prompt offers is there, with the debug info of the kernel and of its
    modules loaded. The analyses are functions without a target (`slab()`, `report()`); so are
    `objects("struct dentry", ["d_inode"])`, `paths(addresses)`, `as_object(row)` and
    `follow(column, ["i_ino"])`. `rows(table, objects)` is the way back. `last["slab"]` is the last
    result of `slab()` or `%kcensus slab`; `target` and `prog` are what they read.

    Where standard input is not a terminal, it is run as a Python script. The exit status is 1 if
    the code raises an exception.""",
    epilog=f"\b\nExamples:\n{example_lines(_EXAMPLES)}",
    context_settings=CONTEXT_SETTINGS,
)
