# SPDX-License-Identifier: LGPL-2.1-or-later
"""Blocks ``sh``: commands for another machine, whose words kcensus must at least accept."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from unittest import mock

import click

from kcensus import cli
from kcensus.commands.shared import options

_PROMPT = re.compile(r"^(?:crash> |>>> %|drgn> )")
_BEFORE = re.compile(r"sudo|time|nohup|\w+=.*")
_ENDS = re.compile(r"[|&;()]+")
_INTO = re.compile(r"[<>]+")


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words behind each `kcensus` of a block for a shell."""
    for line in text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*_words(_PROMPT.sub("", line)), ";"]:
            if _ENDS.fullmatch(word):
                while words and _BEFORE.fullmatch(words[0]):
                    del words[0]
                if words and words[0].rpartition("/")[2] == "kcensus":
                    yield words[1:]
                words = []
            else:
                words.append(word)


def _words(line: str) -> Iterator[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        found = [*lexer]
    except ValueError:  # a quotation that ends in a later line: no command of ours
        return
    skip = False
    for word in found:
        if _INTO.fullmatch(word):
            skip = True
        elif skip:
            skip = False
        else:
            yield word


def check(words: list[str]) -> None:
    """Parse the words of a command as the command line does, and run nothing.

    :raises click.ClickException: it does not take them
    """
    with (
        mock.patch.object(cli, "_is_target", _looks_like_a_target),
        mock.patch.object(options, "is_own_process", return_value=True),
        click.Context(cli.kcensus, info_name="kcensus") as context,
    ):
        group: click.Command = cli.kcensus
        while isinstance(group, click.Group):
            if not words or words[0] in ("--help", "-h", "--version", "--json-schema"):
                return
            name, command, words = group.resolve_command(context, words)
            assert command is not None
            try:
                context = command.make_context(name, [*words], parent=context)
            except click.exceptions.Exit:  # --help, --help-tables
                return
            words = (
                [*context._protected_args, *context.args]
                if isinstance(command, click.Group)
                else []
            )
            group = command


def _looks_like_a_target(name: str) -> bool:
    return name in ("vmcore", "sample") or bool(re.search(r"[./:]", name))
