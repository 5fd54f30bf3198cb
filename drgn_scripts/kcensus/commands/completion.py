# SPDX-License-Identifier: LGPL-2.1-or-later
"""Print a script for the completion of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from kcensus.commands.shared.options import COMPLETE_VARIABLE, command

_CHANGES: dict[str, tuple[tuple[str, str], ...]] = {
    # It passes the command as typed: a backslash before a space and ~ are no part of its path.
    "bash": (
        ("local response\n", "local response program=${1//\\\\/}\n"),
        (" $1)", ' "${program/#\\~\\//$HOME/}" 2> /dev/null)'),
    ),
    # Help has commas, too.
    "fish": (('split ","', 'split -m 1 ","'),),
}
"""Changes of click's scripts."""


def script(shell: str) -> str:
    """Return the script for a shell."""
    kind = get_completion_class(shell)
    assert kind is not None
    # The script names the command, and asks it when it completes.
    made = kind(click.Command("kcensus"), {}, "kcensus", COMPLETE_VARIABLE)
    # Not source(), which runs bash for its version.
    text = made.source_template % made.source_vars()
    for old, new in _CHANGES.get(shell, ()):
        assert old in text
        text = text.replace(old, new)
    return text


def _print(shell: str) -> None:
    click.echo(script(shell))


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
