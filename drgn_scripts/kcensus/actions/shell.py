# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus shell``."""

from __future__ import annotations

import functools
import inspect
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import click
import drgn
import drgn.cli

import kcensus
from kcensus.actions import Exit, Reading, deferred
from kcensus.actions.shared.target import opened, progress_bars
from kcensus.analyses import analyses
from kcensus.api.answers import Report, Result, last
from kcensus.sources import RequestError, Target, session
from kcensus.sources.debuginfo.finder import modules_from_memory
from kcensus.sources.opened import remember
from kcensus.text import printable

_CODE_FAILED = 1
"""Exit status after an exception in the user's code, as Python has it."""
_RUNS = ("report", "patches")
_OBJECTS = ("objects", "paths", "as_object", "follow")
_add_command = deferred("kcensus.prompts.drgn:drgn_prog_set")


def run(target: str | None, code: tuple[str, ...], reading: Reading) -> int:
    """Open drgn's prompt on a target, or run code there.

    :param code: lines; none for a prompt or a script
    :raises RequestError: kcensus runs inside of a prompt already
    """
    if session.is_open():
        raise RequestError("a prompt is open already; leave it before `kcensus shell`")
    with opened(target, reading) as (opened_target, progress):
        with progress.step("loading the debug info of modules", 0):
            lacking = _load_modules(opened_target)
        if lacking:
            more = len(lacking) - 1
            others = f"; {more} more {'modules lack' if more > 1 else 'module lacks'} debug info"
            click.echo(f"kcensus: {lacking[0]}{others if more else ''}", err=True)
    remember(opened_target)
    _add_command(opened_target.prog)
    names = _names(opened_target, no_progress=reading.no_progress)
    if code:
        return _execute("\n".join(code), "<string>", opened_target.prog, names)
    if sys.stdin is None or not sys.stdin.isatty():
        script = sys.stdin.read() if sys.stdin else ""
        return _execute(script, "<stdin>", opened_target.prog, names)
    drgn.cli.run_interactive(
        opened_target.prog,
        banner_func=lambda _: _banner(opened_target),
        globals_func=lambda known: {**known, **names},
    )
    return Exit.DONE


def _load_modules(target: Target) -> list[str]:
    """Load the debug info of all modules; return one sentence for each that lacks it."""
    if target.recorded_for is not None:
        return []
    try:
        with modules_from_memory():
            target.prog.create_loaded_modules()
    except Exception as error:
        # drgn's errors have no common base class. The kernel's own debug info is there.
        return [f"the list of modules cannot be read (drgn: {printable(str(error))})"]
    modules = target.prog.modules()
    loaded = [each.name for each in modules if isinstance(each, drgn.RelocatableModule)]
    return target.need_modules(*loaded)


def _names(target: Target, *, no_progress: bool) -> dict[str, Any]:
    """Return what is in scope besides what drgn's own prompt has."""
    functions = [name.replace("-", "_") for name in analyses()]
    names = {
        name: _bound(getattr(kcensus, name), target, no_progress=no_progress)
        for name in (*functions, *_RUNS, *_OBJECTS)
    }
    return {**names, "rows": kcensus.rows, "kcensus": kcensus, "target": target, "last": last}


def _bound(function: Callable[..., Any], target: Target, *, no_progress: bool) -> Any:
    """Return a function of the API without its first parameter, the target.

    It shows progress, and keeps its result in ``last``.
    """
    signature = inspect.signature(function)
    _, *parameters = signature.parameters.values()
    name = function.__name__

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            if "progress" in signature.parameters and options.get("progress") is None:
                with progress_bars(no_progress) as progress:
                    answer = function(target, *args, **{**options, "progress": progress})
            else:
                answer = function(target, *args, **options)
        for each in caught:
            # Shown with the user's line instead of the one above.
            warnings.warn(each.message, stacklevel=2)
        if isinstance(answer, Result):
            last[answer.result.analysis] = answer
        elif isinstance(answer, Report):
            last[name] = answer
        return answer

    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def _execute(code: str, place: str, prog: drgn.Program, names: dict[str, Any]) -> int:
    """Run code as drgn runs a script; show the traceback of its exceptions.

    :return: the exit status
    """
    drgn.set_default_prog(prog)
    sys.path.insert(0, "")
    try:
        exec(
            compile(code, place, "exec", dont_inherit=True),
            {**drgn.cli.default_globals(prog), **names},
        )
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except Exception as error:
        own = error.__traceback__
        lines = traceback.format_exception(error.with_traceback(own.tb_next if own else None))
        for line in "".join(lines).splitlines():
            click.echo(printable(line), err=True)
        return _CODE_FAILED
    return Exit.DONE


def _banner(target: Target) -> str:
    kind = "" if target.format == "live" else f" ({target.format})"
    runs, others = (
        ", ".join(f"{name.replace('-', '_')}()" for name in names)
        for names in ((*analyses(), *_RUNS), (*_OBJECTS, "rows"))
    )
    lines = [
        f"drgn {drgn.__version__} on {target.name}{kind}: Linux {target.kernel}",
        *textwrap.wrap(f"Analyses: {runs}", 100, subsequent_indent="  "),
        f"Also: {others}, last, target, %kcensus",
    ]
    if target.recorded_for is not None:
        lines.append(
            "A capsule lacks what its analyses did not read: most of drgn's helpers fail on it"
        )
    return "\n".join(lines)
