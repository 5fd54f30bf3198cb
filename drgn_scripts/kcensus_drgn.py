# SPDX-License-Identifier: LGPL-2.1-or-later
"""drgn's plugin: ``%kcensus`` on the open program, and its commands in drgn's crash mode.

drgn imports this module whenever it opens a program, so it imports only what drgn has loaded
anyway, and nothing of kcensus: the first command does. It runs the kcensus that is then first on
``sys.path``, such as that of a clone.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from drgn import Program, ProgramFlags
from drgn.commands import (
    DEFAULT_COMMAND_NAMESPACE,
    CommandNotFoundError,
    custom_command,
    parse_shell_command,
)

_NAME = "kcensus"
IN_CRASH_MODE = (
    *("dentries", "iosched", "kcopyd", "list-lru", "memcgs", "patches", "slab", "waits"),
    *("iostall", "kpatches", "listlru", "negdent", "slabutil", "whowaits"),
)
"""Commands that crash mode has without ``kcensus`` before them, as the extension of crash does."""
_LINE = re.compile(rf"\s*(?:%(?:crash\s+)?)?({_NAME}|{'|'.join(IN_CRASH_MODE)})\s")
_Complete = Callable[[str, int], str | None]


@custom_command(
    name=_NAME,
    description="census of kernel memory and I/O",
    usage="**kcensus** [*command*] [*options*]",
    long_description="""
    Run a command of kcensus on the program that is open here. The commands and options are those
    of the command line; without a target, they read the program that is open.

    "kcensus --help" lists the commands, and "kcensus COMMAND --help" explains one. Crash mode has
    the analyses without "kcensus", too, also by their names in crash: "negdent" is "dentries".

    At drgn's prompt, _ is the result of the last command, and kcensus.last["slab"] the last result
    of "kcensus slab". Crash mode does not set _: leave it, `import kcensus`, and use kcensus.last.
    A result has tables as DataFrames; the result of "kcensus report" has results["slab"], ...

    Examples:

    |  kcensus report
    |      all analyses, findings first
    |  kcensus slab --top 5
    |      the fill of every slab cache, and the owners of the objects
    |  kcensus dentries | head -30
    |      the first lines
    |  kcensus memcgs --json > memcgs.json
    |      all rows of all tables, in bytes
    |  kcensus diff monday.json
    |      the growth since Monday
    |  kcensus explain list-lru-arrays
    |      the meaning of a finding, and the remedy
    """,
    enabled=lambda prog: bool(prog.flags & ProgramFlags.IS_LINUX_KERNEL),
    parse=parse_shell_command,
)
def run(prog: Program, name: str, args: Sequence[str], **_: Any) -> Any:
    """Run ``%kcensus``, and return the shown result; see :func:`kcensus.prompts.drgn.run`."""
    from kcensus.prompts.drgn import run as run_command

    return run_command(prog, name, args)


def _run_short(prog: Program, name: str, args: Sequence[str], **_: Any) -> Any:
    from kcensus.prompts.drgn import run as run_command

    return run_command(prog, _NAME, [name, *args])


def drgn_prog_set(prog: Program) -> None:
    """Add the commands to crash mode, unless drgn's crash mode is disabled; and Tab completion."""
    complete_at_prompts()
    crash_mode = sys.modules.get("drgn.commands._crash.common")
    try:
        command = DEFAULT_COMMAND_NAMESPACE.lookup(prog, _NAME)
    except CommandNotFoundError:  # not a kernel
        return
    if crash_mode is None:
        return
    namespace = crash_mode.CRASH_COMMAND_NAMESPACE
    namespace.register(_NAME, command)
    for name in IN_CRASH_MODE:
        try:
            namespace.lookup(prog, name)
        except CommandNotFoundError:
            custom_command(
                name=name,
                description=f'"kcensus {name}" on the program that is open here',
                usage=f"**{name}** [*options*]",
                long_description=f'"{name} --help" shows its options and examples.',
                parse=parse_shell_command,
                namespace=namespace,
            )(_run_short)


def complete_at_prompts() -> None:
    """Let Tab complete commands of kcensus at drgn's prompts, where drgn completes no arguments."""
    cli: Any = sys.modules.get("drgn.cli")
    set_up = getattr(cli, "_setup_readline", None)
    if set_up is None or hasattr(set_up, _NAME):
        return

    @functools.wraps(set_up)
    def set_up_ours(history_file: str, completer: _Complete | None = None) -> Any:
        return set_up(history_file, completer and _completer(completer))

    setattr(set_up_ours, _NAME, True)
    cli._setup_readline = set_up_ours


def _completer(others: _Complete) -> _Complete:
    """Return a completer for lines with a command of kcensus, and ``others`` for other lines."""
    from drgn.internal.repl import readline

    found: list[str] = []

    def complete(text: str, state: int) -> str | None:
        line = readline.get_line_buffer()[: readline.get_endidx()]
        match = _LINE.match(line)
        if match is None:
            return others(text, state)
        if state == 0:
            found.clear()
            try:
                from kcensus.prompts.drgn import completions

                skipped = match.end() if match[1] == _NAME else match.start(1)
                # readline replaces the part after the last delimiter, such as a dash.
                word, words = completions(line[skipped:])
                found.extend(each[len(word) - len(text) :] for each in words)
            except Exception:  # the prompt shows no errors while a line is typed
                return None
        return found[state] if state < len(found) else None

    return complete
