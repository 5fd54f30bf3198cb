# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command ``kcensus``: opens a target, runs one analysis, hands the Result to a face.

Every analysis that :func:`drgn_scripts.analyses.analyses` finds is a command; none is named here.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import io
import os
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drgn_scripts.text import printable

if TYPE_CHECKING:
    from drgn_scripts.analyses import Analysis, Param
    from drgn_scripts.results import Result


class Exit(enum.IntEnum):
    """Exit statuses; scripts rely on them."""

    DONE = 0
    FINDING = 1
    USAGE = 2
    TARGET = 3
    FAILED = 4
    INTERRUPTED = 128 + 2
    PIPE = 128 + 13


_TOP_EPILOG = """\b
Targets:
  (none)         the running kernel (needs root)
  PATH           a vmcore: ELF or kdump, compressed or not
  qmp:PATH       a running QEMU guest, through its QMP socket

\b
Examples:
{examples}

\b
Exit status:
  0  done
  1  done, and there is a finding at or above --fail-on
  2  usage
  3  the target or its debug info cannot be used, or cannot answer the question
  4  kcensus failed, or its output could not be written

`kcensus ANALYSIS --help` explains an analysis and its options."""

_SUFFIXES = {"": 0, "k": 10, "m": 20, "g": 30}


def _at_least(minimum: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise click.BadParameter(f"{text!r} is no number from {minimum} on")
        return int(text)

    return number


def _size(text: str) -> int:
    """A number of bytes: ``65536``, ``512K``, ``4MiB``."""
    match = re.fullmatch(r"(\d+)\s*([kmg]?)(i?b)?", text.strip().lower())
    size = int(match[1]) << _SUFFIXES[match[2]] if match else 0
    if size < 4096:
        raise click.BadParameter(f"{text!r} is no size of 4K or more, like 65536, 512K or 4M")
    return size


@dataclass(frozen=True)
class _Options:
    """The options that all analyses share."""

    target: str | None
    symbols: tuple[Path, ...]
    json: bool
    csv: Path | None
    parquet: Path | None
    top: int
    jobs: int | None
    fail_on: str | None
    allow_truncated: bool
    chunk_size: int | None
    no_progress: bool


def _common_params() -> list[click.Parameter]:
    from drgn_scripts.results import Severity

    path = click.Path(path_type=Path)
    severities = [severity.name.lower() for severity in Severity]
    return [
        click.Argument(["target"], required=False),
        click.Option(
            ["-s", "--symbols"],
            type=path,
            multiple=True,
            metavar="DEBUGINFO",
            help="Debug info: a vmlinux, a module, or a directory of them. May be repeated.",
        ),
        click.Option(["--json"], is_flag=True, help="Print one JSON document, with all rows."),
        click.Option(
            ["--csv"], type=path, metavar="DIR", help="Write CSV files into DIR, with all rows."
        ),
        click.Option(["--parquet"], type=path, metavar="DIR", help="Write Parquet files into DIR."),
        click.Option(
            ["--top"],
            type=_at_least(0),
            default="10",
            show_default=True,
            metavar="N",
            help="Rows of each table on screen; 0 for all.",
        ),
        click.Option(
            ["--jobs", "-j"],
            type=_at_least(1),
            metavar="N",
            help="Worker processes. Default: one per CPU for compressed dumps, otherwise 1.",
        ),
        click.Option(
            ["--fail-on"],
            type=click.Choice(severities),
            metavar="SEVERITY",
            help=f"Exit with 1 if there is a finding of this severity ({', '.join(severities)}) or"
            " above.",
        ),
        click.Option(["--allow-truncated"], is_flag=True, help="Read a dump whose end is missing."),
        click.Option(
            ["--chunk-size"],
            type=_size,
            metavar="SIZE",
            help="Memory to read at once, e.g. 4M. For tuning.",
        ),
        click.Option(["--no-progress"], is_flag=True, help="Never draw progress bars."),
        click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,  # see _debugging()
            help="Show the traceback of an error; KCENSUS_DEBUG=1 does the same.",
        ),
    ]


def _own_option(param: Param) -> click.Option:
    flag = "--" + param.name.replace("_", "-")
    if param.type is bool:
        both = f"{flag}/--no-{flag[2:]}" if param.default else flag
        return click.Option([both], is_flag=True, default=bool(param.default), help=param.help)
    return click.Option(
        [flag],
        type=param.type,
        default=param.default,
        show_default=param.default is not None,
        help=param.help,
    )


def _example_lines(examples: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"  {line}\n      {purpose}" for line, purpose in examples)


def _command(analysis: Analysis) -> click.Command:
    """The command that ``analysis`` is."""
    common = _common_params()
    own = [_own_option(param) for param in analysis.params]
    names = {param.name for param in analysis.params}

    def run(**values: Any) -> Exit:
        params = {name: values.pop(name) for name in names}
        return _run(analysis, params, _Options(**values))

    epilog = f"\b\nExamples:\n{_example_lines(analysis.examples)}" if analysis.examples else None
    description = inspect.cleandoc(analysis.description)
    return click.Command(
        analysis.name,
        callback=run,
        params=[common[0], *own, *common[1:]],
        help=f"{analysis.question}\n\n{description}" if description else analysis.question,
        short_help=analysis.question,
        epilog=epilog,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def _run(analysis: Analysis, params: Mapping[str, Any], options: _Options) -> Exit:
    faces = [options.json, options.csv is not None, options.parquet is not None]
    if sum(faces) > 1:
        raise click.UsageError("only one of --json, --csv and --parquet can be given.")
    directory = options.csv or options.parquet
    if directory:
        from drgn_scripts.render.directory import OutputError, prepare

        try:
            # At once: that a directory is in the way is no news for the end of a long run.
            prepare(directory)
        except OutputError as error:
            raise click.UsageError(str(error)) from None

    result = _analyse(analysis, params, options)
    _show(result, options)

    if options.fail_on:
        from drgn_scripts.results import Severity

        limit = Severity[options.fail_on.upper()]
        if any(finding.severity >= limit for finding in result.findings):
            return Exit.FINDING
    return Exit.DONE


def _analyse(analysis: Analysis, params: Mapping[str, Any], options: _Options) -> Result:
    from drgn_scripts.progress import Progress, SilentProgress
    from drgn_scripts.target import TargetError, open_target

    with ExitStack() as stack:
        progress: Progress = SilentProgress()
        if sys.stderr.isatty() and not options.no_progress:
            from drgn_scripts.render.progress import TerminalProgress

            progress = stack.enter_context(TerminalProgress(sys.stderr))
        try:
            with progress.step("opening the target", 0):
                target = open_target(
                    options.target, options.symbols, allow_truncated=options.allow_truncated
                )
            extra = {} if options.chunk_size is None else {"chunk_bytes": options.chunk_size}
            context = analysis.context(target, progress=progress, jobs=options.jobs, **extra)
            return analysis.run(context, **params)
        except OSError as error:
            # All other errors of the operating system are about our output.
            raise TargetError(f"the target cannot be read: {error}") from error


def _show(result: Result, options: _Options) -> None:
    if options.csv:
        from drgn_scripts.render.csvdir import write_csv

        _list(write_csv(result, options.csv))
    elif options.parquet:
        from drgn_scripts.render.parquet import write_parquet

        _list(write_parquet(result, options.parquet))
    elif options.json:
        from drgn_scripts.render.json import write_json

        _reconfigure_stdout(encoding="utf-8")  # JSON is, whatever the locale says
        write_json(result, sys.stdout)
    else:
        from drgn_scripts.render.terminal import console_for, write_terminal

        _reconfigure_stdout(errors="backslashreplace")
        write_terminal(result, console_for(sys.stdout), options.top)


def _reconfigure_stdout(encoding: str | None = None, errors: str | None = None) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding=encoding, errors=errors)


def _list(written: Sequence[Path]) -> None:
    for path in written:
        click.echo(printable(str(path)))


class _Analyses(click.Group):
    """A group whose commands are the analyses there are."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from drgn_scripts.analyses import analyses

        return list(analyses())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from drgn_scripts.analyses import analyses

        analysis = analyses().get(cmd_name)
        return _command(analysis) if analysis else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from drgn_scripts.analyses import analyses

        rows = [(name, analysis.question) for name, analysis in analyses().items()]
        if rows:
            with formatter.section("Analyses"):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from drgn_scripts.analyses import analyses

        first = [analysis.examples[0] for analysis in analyses().values() if analysis.examples]
        self.epilog = _TOP_EPILOG.format(examples=_example_lines(first))
        super().format_epilog(ctx, formatter)


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            click.echo(f"kcensus {version('kcensus')}")
        except PackageNotFoundError:
            click.echo("kcensus (run from its source tree, not installed)")
        ctx.exit()


@click.group(
    cls=_Analyses,
    invoke_without_command=True,
    options_metavar="",
    subcommand_metavar="ANALYSIS [TARGET] [OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
@click.pass_context
def kcensus(ctx: click.Context) -> None:
    """A census of kernel memory and I/O, on live kernels and vmcores.

    Each analysis answers one question, holds its figures against the kernel's own counters, and
    says what could not be read.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


class _Deferred(types.ModuleType):
    """Stands for a module until the first of its attributes is asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = importlib.import_module(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, name)


def _defer(name: str) -> None:
    """Let ``import name`` do nothing until the module is used.

    For pandas, which most modules here import and which takes as long to load as all the rest of
    ``kcensus --help``.
    """
    sys.modules.setdefault(name, _Deferred(name))


def _debugging(args: Sequence[str]) -> bool:
    return "--debug" in args or os.environ.get("KCENSUS_DEBUG", "") not in ("", "0")


def _report(error: Exception, args: Sequence[str]) -> Exit:
    """Say in one sentence on stderr what went wrong; the exit status that it has."""
    status, sentence, expected = _verdict(error)
    if _debugging(args) and not isinstance(error, click.ClickException):
        import traceback

        for line in "".join(traceback.format_exception(error)).splitlines():
            click.echo(printable(line), err=True)
    elif not expected:
        sentence += " (--debug shows where)"
    click.echo(f"kcensus: {printable('; '.join(sentence.splitlines()))}", err=True)
    if isinstance(error, click.UsageError) and error.ctx:
        click.echo(f"Try '{error.ctx.command_path} --help'.", err=True)
    return status


def _verdict(error: Exception) -> tuple[Exit, str, bool]:
    """(exit status, sentence, whether this is one of the errors that are to be expected)."""
    if isinstance(error, click.ClickException):
        return Exit.USAGE, error.format_message(), True

    import drgn

    from drgn_scripts.analyses import AnalysisError
    from drgn_scripts.render.directory import OutputError
    from drgn_scripts.target import TargetError

    if isinstance(error, (TargetError, AnalysisError)):
        return Exit.TARGET, str(error), True
    if isinstance(error, drgn.MissingDebugInfoError):
        return Exit.TARGET, f"debug info is missing: {error}", True
    if isinstance(error, drgn.FaultError):
        return Exit.TARGET, f"needed memory of the target cannot be read: {error}", False
    if isinstance(error, OutputError):
        return Exit.FAILED, str(error), True
    if isinstance(error, OSError):
        return Exit.FAILED, f"cannot write the output: {error.strerror or error}", True
    if isinstance(error, MemoryError):
        return Exit.FAILED, "this machine has not enough free memory for the result", False
    return Exit.FAILED, f"unexpected {type(error).__name__}: {error}", False


def _invoke(args: Sequence[str]) -> int:
    try:
        with kcensus.make_context("kcensus", list(args)) as context:
            status = int(kcensus.invoke(context) or Exit.DONE)
    except click.exceptions.Exit as done:  # --help, --version
        status = done.exit_code
    sys.stdout.flush()
    return status


def main(args: Sequence[str] | None = None) -> int:
    """Run ``kcensus`` with ``args``; its exit status."""
    args = sys.argv[1:] if args is None else args
    if sys.stdout is None:  # closed by the shell (>&-)
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        _defer("pandas")
        return _invoke(args)
    except KeyboardInterrupt:
        click.echo("kcensus: interrupted", err=True)
        return Exit.INTERRUPTED
    except OSError as error:
        # What could not be written is not to be tried again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return Exit.PIPE  # the reader has seen enough, as after `| head`
        return _report(error, args)
    except Exception as error:
        return _report(error, args)
