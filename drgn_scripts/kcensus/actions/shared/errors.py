# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an error means for the user: an exit status and a sentence."""

from __future__ import annotations

import errno

import click
import drgn

from kcensus.actions import Exit
from kcensus.analyses import AnalysisError, ParamError
from kcensus.analyses.runner import UNEXPECTED
from kcensus.limits import memory
from kcensus.render.directory import OutputError
from kcensus.saved import BadDocument
from kcensus.sources import RequestError, TargetError, faults
from kcensus.sources.capsule import BadCapsule, NotRecorded
from kcensus.store import StoreError
from kcensus.text import printable


def verdict(error: Exception) -> tuple[Exit, str, bool]:
    """Return the exit status, a sentence, and whether the error is an expected one."""
    match error:
        case ParamError() | RequestError():
            return Exit.USAGE, str(error), True
        case TargetError() | AnalysisError() | NotRecorded():
            is_expected = not isinstance(error.__cause__, UNEXPECTED)
            return Exit.TARGET, str(error), is_expected
        case BadDocument() | StoreError():
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
            return Exit.FAILED, f"cannot write the output: {error.strerror or error}", True
    return Exit.FAILED, f"unexpected {type(error).__name__}: {error}", False


def complain(sentence: str) -> None:
    """Print an error that does not end the command."""
    line = printable("; ".join(sentence.splitlines())).removesuffix(".")
    click.echo(f"kcensus: {line}", err=True)
