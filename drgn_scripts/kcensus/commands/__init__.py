# SPDX-License-Identifier: LGPL-2.1-or-later
"""The declarations of the commands of ``kcensus``, other than the analyses.

A module of this package, or of a folder in it, that defines ``COMMAND`` (a
:class:`click.Command`) is a command; the command line finds it here. To add one, add a file with
its arguments, options and help, and name the function that runs it with
:func:`kcensus.actions.action`: ``kcensus --help`` imports every module of this package, so none of
them imports anything slow.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

import click


@functools.cache
def commands() -> Mapping[str, click.Command]:
    """Return all commands by name, in alphabetical order."""
    known = {}
    for info in pkgutil.walk_packages(__path__, f"{__name__}."):
        command = getattr(importlib.import_module(info.name), "COMMAND", None)
        if isinstance(command, click.Command) and command.name:
            known[command.name] = command
    return dict(sorted(known.items()))
