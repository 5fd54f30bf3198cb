# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command ``kcensus``: finds the command that was asked for, and answers for its errors.

Every analysis that :func:`kcensus.analyses.analyses` finds is a command, and so is what
:func:`kcensus.commands.commands` finds; none is named here.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

import click

from kcensus.commands.shared import CONTEXT_SETTINGS, Exit, example_lines
from kcensus.text import printable

_TOP_EPILOG = """\b
Targets:
  (none)         the running kernel (needs root)
  PATH           a vmcore: ELF or kdump, compressed or not
  PATH           a capsule: the part of a vmcore that analyses read; needs no debug info
  sample         the capsule of a real kernel that comes with kcensus
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
  5  validate: the pair shows neither that the patch works nor that it does not

`kcensus ANALYSIS --help` explains an analysis and its options."""


class _Commands(click.Group):
    """A group whose commands are those there are."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from kcensus.analyses import analyses
        from kcensus.commands import commands

        return [*analyses(), *commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from kcensus.analyses import analyses
        from kcensus.commands import commands
        from kcensus.commands.analysis import analysis_command

        analysis = analyses().get(cmd_name)
        return analysis_command(analysis) if analysis else commands().get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from kcensus.analyses import analyses
        from kcensus.commands import commands

        found = {
            "Analyses": [(name, analysis.question) for name, analysis in analyses().items()],
            "Commands": [(name, command.short_help or "") for name, command in commands().items()],
        }
        for title, rows in found.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from kcensus.analyses import analyses

        first = [analysis.examples[0] for analysis in analyses().values() if analysis.examples]
        self.epilog = _TOP_EPILOG.format(examples=example_lines(first))
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
    cls=_Commands,
    invoke_without_command=True,
    options_metavar="",
    subcommand_metavar="ANALYSIS [TARGET] [OPTIONS]",
    context_settings=CONTEXT_SETTINGS,
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

    from kcensus.analyses import AnalysisError, ParamError
    from kcensus.render.directory import OutputError
    from kcensus.sources import TargetError
    from kcensus.sources.capsule import BadCapsule, NotRecorded

    if isinstance(error, ParamError):
        return Exit.USAGE, str(error), True
    if isinstance(error, (TargetError, AnalysisError, NotRecorded)):
        return Exit.TARGET, str(error), True
    if isinstance(error, BadCapsule):
        return Exit.TARGET, f"the capsule {error}", True
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
