# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus completion``: what makes a shell complete commands, options and files."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from kcensus.commands.shared.options import CONTEXT_SETTINGS, example_lines

VARIABLE = "_KCENSUS_COMPLETE"
"""The shell sets it when it asks for completions."""

_EXAMPLES = (
    ("kcensus completion bash > ~/.local/share/bash-completion/completions/kcensus", "for bash"),
    ("kcensus completion zsh > ~/.zfunc/_kcensus", "for zsh; ~/.zfunc has to be in fpath"),
    ("kcensus completion fish > ~/.config/fish/completions/kcensus.fish", "for fish"),
)


def _print(shell: str) -> None:
    """Print the script for a shell."""
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    made = kind(root, {}, "kcensus", VARIABLE)
    # Not source(), which runs bash to look at its version.
    click.echo(made.source_template % made.source_vars())


COMMAND = click.Command(
    "completion",
    callback=_print,
    params=[click.Argument(["shell"], type=click.Choice(["bash", "zsh", "fish"]))],
    help="Print a script that makes a shell complete commands, options and files.",
    short_help="print a script for the completion of a shell",
    epilog=f"\b\nExamples:\n{example_lines(_EXAMPLES)}",
    context_settings=CONTEXT_SETTINGS,
)
