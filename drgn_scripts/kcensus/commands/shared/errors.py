# SPDX-License-Identifier: LGPL-2.1-or-later
"""The exit status and the sentence of an error."""

from __future__ import annotations

import errno
from contextlib import suppress

import click

from kcensus.commands import Exit
from kcensus.text import printable

_MAX_LINE = 5000
"""Characters of a sentence: one path may have 4,096, and a command line two million."""


def verdict(error: Exception) -> tuple[Exit, str, bool]:
    """Return the exit status, a sentence, and whether the error is an expected one."""
    import drgn

    from kcensus.analyses import AnalysisError, ParamError
    from kcensus.analyses.runner import UNEXPECTED
    from kcensus.fleets import FleetError
    from kcensus.limits import memory
    from kcensus.outputs import OutputError
    from kcensus.saved import BadDocument
    from kcensus.sources import RequestError, TargetError, faults
    from kcensus.sources.capsule import BadCapsule, NotRecorded
    from kcensus.store import StoreError

    match error:
        case ParamError() | RequestError():
            return Exit.USAGE, str(error), True
        case TargetError() | AnalysisError() | NotRecorded():
            is_expected = not isinstance(error.__cause__, UNEXPECTED)
            return Exit.TARGET, str(error), is_expected
        case BadDocument() | StoreError() | FleetError():
            return Exit.TARGET, str(error), True
        case BadCapsule():
            return Exit.TARGET, f"the capsule {error}", True
        case drgn.MissingDebugInfoError():
            return Exit.TARGET, f"debug info is missing: {error}", True
        case drgn.FaultError():
            return Exit.TARGET, faults.sentence(error, "the command"), False
        case OutputError():
            return Exit.FAILED, str(error), True
        case OSError(errno=errno.ENOMEM) | MemoryError():
            return Exit.FAILED, memory.exceeded("the result"), False
        case OSError():
            what = f"'{error.filename}'" if error.filename else "the output"
            return Exit.FAILED, f"cannot write {what}: {error.strerror or error}", True
    return Exit.FAILED, f"unexpected {type(error).__name__}: {error}", False


def line(sentence: str) -> str:
    """Return an error as one line for a terminal; of a very long one, its beginning and end."""
    text = printable("; ".join(sentence.splitlines())).removesuffix(".")
    if len(text) > _MAX_LINE:
        text = f"{text[: _MAX_LINE // 2]} … {text[-_MAX_LINE // 2 :]}"
    return f"kcensus: {text}"


def complain(sentence: str) -> None:
    """Print an error that does not end the command."""
    with suppress(OSError):
        click.echo(line(sentence), err=True)
