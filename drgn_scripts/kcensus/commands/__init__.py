# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands of ``kcensus``, other than the analyses: a module each, or a folder.

A file here with an assignment to ``COMMAND`` (a :class:`click.Command`) is the command of its
name, and the first line of its docstring is its line in ``kcensus --help``, which imports none of
them. To add a command, add a file with its options, help, and the function that runs it.

``kcensus COMMAND --help`` and completion import the file. So it imports only fast modules at its
top, and NumPy, pandas, drgn and their users in functions.
"""

from __future__ import annotations

import enum
import functools
import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

import click

_ROOT = os.path.dirname(__file__)
_SUMMARY = re.compile(rb'^"""(.+?)\.?(?:"""|$)', re.MULTILINE)


class Exit(enum.IntEnum):
    """Exit statuses; scripts rely on them."""

    DONE = 0
    FINDING = 1
    USAGE = 2
    TARGET = 3
    FAILED = 4
    INCONCLUSIVE = 5
    """Only ``kcensus validate`` exits with this."""
    INCOMPLETE = 6
    """An analysis failed, so that findings may be missing."""
    INTERRUPTED = 128 + 2
    PIPE = 128 + 13


@dataclass(frozen=True)
class Entry:
    """A command before its import."""

    module: str
    summary: str
    """One line for ``kcensus --help``."""

    def load(self) -> click.Command:
        """Import the command."""
        command: click.Command = importlib.import_module(self.module).COMMAND
        return command


@functools.cache
def commands() -> Mapping[str, Entry]:
    """Return all commands by name, in alphabetical order."""
    known = {}
    for folder, _, files in os.walk(_ROOT):
        for file in files:
            if not file.endswith(".py"):
                continue
            with open(f"{folder}/{file}", "rb", buffering=0) as source:
                text = source.read()
            if b"\nCOMMAND = " in text and (found := _SUMMARY.search(text)):
                place = f"{folder}/{file}".removeprefix(_ROOT).removesuffix(".py")
                module = __name__ + place.removesuffix("/__init__").replace("/", ".")
                summary = found[1].decode()
                known[module.rpartition(".")[2]] = Entry(module, summary[0].lower() + summary[1:])
    return dict(sorted(known.items()))
