# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open drgn's prompt on a target."""

from __future__ import annotations

import functools
import inspect
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

import kcensus
from kcensus.analyses import ALIASES, analyses
from kcensus.commands import Exit
from kcensus.commands.shared import options
from kcensus.commands.shared.target import opened, progress_bars
from kcensus.human import counted
from kcensus.text import printable

if TYPE_CHECKING:
    import drgn

    from kcensus.sources import Target

_CODE_FAILED = 1
"""Exit status after an exception in the user's code, as Python has it."""
_RUNS = ("report", "patches")
_OBJECTS = ("objects", "paths", "as_object", "follow", "stacks")


def _run(target: str | None, code: tuple[str, ...], reading: options.Reading) -> int:
    from kcensus.sources import RequestError
    from kcensus.sources.opened import remember

    if options.session_is_open():
        raise RequestError("a prompt is open already; leave it before `kcensus shell`")
    with opened(target, reading) as (opened_target, progress):
        with progress.step("loading the debug info of modules", 0):
            lacking = _load_modules(opened_target)
        if lacking:
            more = len(lacking) - 1
            others = f"; {counted(more, 'more module', 'lack')} debug info" if more else ""
            click.echo(f"kcensus: {lacking[0]}{others}", err=True)
    remember(opened_target)
    import drgn.cli

    # drgn calls it at its own prompt, after it has imported its command line.
    resolve_name("kcensus_drgn:drgn_prog_set")(opened_target.prog)
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
    import drgn

    from kcensus.sources.debuginfo.loading import modules_from_memory

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
    from kcensus.api.answers import last

    functions = [name.replace("-", "_") for name in analyses()]
    names = {
        name: _bound(getattr(kcensus, name), target, no_progress=no_progress)
        for name in (*functions, *_RUNS, *_OBJECTS)
    }
    names |= {name: names[of.replace("-", "_")] for name, of in ALIASES.items()}
    return {**names, "rows": kcensus.rows, "kcensus": kcensus, "target": target, "last": last}


def _bound(function: Callable[..., Any], target: Target, *, no_progress: bool) -> Any:
    """Return a function of the API without its first parameter, the target.

    It shows progress, and keeps its result in ``last``.
    """
    from kcensus.api.answers import Report, Result, last

    signature = inspect.signature(function)
    _, *parameters = signature.parameters.values()
    name = function.__name__

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        args = _without_target(name, args, target)
        with warnings.catch_warnings(record=True) as caught:
            if "progress" in signature.parameters and given.get("progress") is None:
                with progress_bars(no_progress) as progress:
                    answer = function(target, *args, **{**given, "progress": progress})
            else:
                answer = function(target, *args, **given)
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


def _without_target(name: str, args: tuple[Any, ...], target: Target) -> tuple[Any, ...]:
    """Leave out the target as the first argument, which ``kcensus.slab(prog)`` needs."""
    import drgn

    from kcensus.sources import Target

    if not args or not isinstance(args[0], (drgn.Program, Target)):
        return args
    if args[0] is target or args[0] is target.prog:
        return args[1:]
    raise TypeError(
        f"{name}() reads the target of this prompt, {target.name}; kcensus.{name}() takes another"
    )


def _execute(code: str, place: str, prog: drgn.Program, names: dict[str, Any]) -> int:
    """Run code as drgn runs a script, and return the exit status."""
    import drgn.cli

    drgn.set_default_prog(prog)
    sys.path.insert(0, "")
    try:
        compiled = compile(code, place, "exec", dont_inherit=True)
        exec(compiled, {**drgn.cli.default_globals(prog), **names})
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
    import drgn

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
        lines += [
            "A capsule holds only the memory that its analyses read: most of drgn's helpers fail "
            "on a capsule"
        ]
    return "\n".join(lines)


COMMAND = options.command(
    "shell",
    _run,
    [
        options.target(),
        options.option(
            "code -e",
            "CODE",
            "Run this Python code instead of a prompt. Can be repeated, for more lines.",
            multiple=True,
        ),
        *(each for each in options.reading() if each.name not in ("jobs", "chunk_size")),
    ],
    """Open drgn's prompt on a target.

    It is drgn's own prompt, with the debug info of the kernel and of its modules loaded. The
    analyses are functions without a target (`slab()`, `report()`); so are `objects("struct dentry",
    ["d_inode"])`, `paths(addresses)`, `as_object(row)`, `follow(column, ["i_ino"])` and
    `stacks(finding)`. `rows(table, objects)` finds the rows of objects. `last["slab"]` is the last
    result of `slab()` or `%kcensus slab`; `target` and `prog` are the open target.

    If standard input is not a terminal, its content runs as a Python script. The exit status is 1
    if the code raises an exception.""",
    (
        (
            "kcensus shell vmcore",
            "drgn's prompt on a dump; `slab()`, `%kcensus slab` and prog work",
        ),
        ("kcensus shell case.capsule", "on a capsule, without debug info"),
        ("kcensus shell vmcore -e 'print(slab().summary)'", "run one statement"),
        ("kcensus shell vmcore < script.py", "run a script"),
    ),
)
