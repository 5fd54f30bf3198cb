# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands of ``kcensus`` that are not simply one analysis.

A module of this package that defines ``COMMAND`` (a :class:`click.Command`) is a command; the
command line finds it here by itself. To add one, add a file. A command returns an
:class:`~kcensus.commands.shared.Exit`, and imports what is slow to import only when it runs.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

import click


@functools.cache
def commands() -> Mapping[str, click.Command]:
    """All commands by name, in alphabetical order."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        command = getattr(importlib.import_module(f"{__name__}.{info.name}"), "COMMAND", None)
        if isinstance(command, click.Command) and command.name:
            found[command.name] = command
    return dict(sorted(found.items()))
