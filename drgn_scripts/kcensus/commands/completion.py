# SPDX-License-Identifier: LGPL-2.1-or-later
"""Print a script for the completion of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from kcensus.commands.shared.options import COMPLETE_VARIABLE, command

_PATH = (
    ("local response\n", "local response program=${1//\\\\/}\n"),
    (" $1)", ' "${program/#\\~\\//$HOME/}" 2> /dev/null)'),
)
"""Changes of the script for bash, which passes the command as typed: a backslash before a space and
``~`` are no part of its path."""


def _print(shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    made = kind(root, {}, "kcensus", COMPLETE_VARIABLE)
    # Not source(), which runs bash for its version.
    script = made.source_template % made.source_vars()
    for typed, path in _PATH if shell == "bash" else ():
        script = script.replace(typed, path)
    click.echo(script)


COMMAND = command(
    "completion",
    _print,
    [click.Argument(["shell"], type=click.Choice(["bash", "zsh", "fish"]))],
    "Print a script that makes a shell complete commands, options and files.",
    (
        (
            "kcensus completion bash > ~/.local/share/bash-completion/completions/kcensus",
            "for bash",
        ),
        ("kcensus completion zsh > ~/.zfunc/_kcensus", "for zsh; ~/.zfunc has to be in fpath"),
        ("kcensus completion fish > ~/.config/fish/completions/kcensus.fish", "for fish"),
    ),
)
