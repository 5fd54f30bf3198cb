# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command ``kcensus``: finds the command to run, and reports its errors.

Every analysis that :func:`kcensus.analyses.analyses` finds is a command, and so is every command
that :func:`kcensus.commands.commands` finds.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from click.shell_completion import CompletionItem, shell_complete

from kcensus import analyses, commands
from kcensus.actions import Exit, deferred, is_sample
from kcensus.commands.completion import VARIABLE
from kcensus.commands.shared.analysis import analysis_command
from kcensus.commands.shared.options import CONTEXT_SETTINGS, example_lines
from kcensus.limits import own_process
from kcensus.limits.memory import lift
from kcensus.samples import CAPSULES
from kcensus.text import printable

_verdict = deferred("kcensus.actions.shared.errors:verdict")
_session_is_open = deferred("kcensus.sources.session:is_open")
_installed_version = deferred("importlib.metadata:version")

_AGAIN = 0.05
"""Seconds after which Ctrl-C is sent again that Python dropped."""
_TOP_EPILOG = """\b
Targets:
  (none)         the running kernel (needs root); inside crash and drgn, the one open there
  PATH           a vmcore: ELF or kdump, compressed or not
  PATH           a capsule: the part of a vmcore that analyses need; needs no debug info
{samples}
  PATH           a file that --json wrote, to show it in another form
  qmp:PATH       a running QEMU guest, through its QMP socket

\b
Examples:
{examples}

\b
Exit status:
  0  done
  1  done, and a finding is at least as severe as --fail-on
  2  wrong usage
  3  the target or its debug info is unusable, or all analyses failed
  4  kcensus failed, or could not write its output
  5  validate: the pair neither confirms nor contradicts the patch
  6  an analysis failed, so findings may be missing (1 goes first). Gaps, such as modules
     without debug info, do not change the status

\b
Environment:
  KCENSUS_SYMBOLS  files and directories with debug info, separated by colons
  KCENSUS_PAGER    what shows long output on a terminal; goes before PAGER
  KCENSUS_DEBUG    1 is --debug

\b
`kcensus TARGET` is `kcensus report TARGET`.
`kcensus COMMAND --help` explains a command and its options."""


class _Commands(click.Group):
    """A group with all analyses and commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*analyses.analyses(), *commands.commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        analysis = analyses.analyses().get(cmd_name)
        return analysis_command(analysis) if analysis else commands.commands().get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name == "help" and not (ctx.resilient_parsing or _is_target(name)):
            args = [*args[1:], "--help"]
            name = args[0]
        if ctx.resilient_parsing or self.get_command(ctx, name) or name.startswith("-"):
            return super().resolve_command(ctx, args)
        if _is_target(name):
            return "report", self.get_command(ctx, "report"), args
        near = difflib.get_close_matches(name, self.list_commands(ctx), 1)
        hint = f"did you mean '{near[0]}'?" if near else "`kcensus --help` lists the commands"
        raise click.UsageError(f"'{printable(name)}' is neither a command nor a file ({hint})", ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # The script for bash forgets what precedes an item for files.
        return [CompletionItem(incomplete, type="file"), *super().shell_complete(ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = analyses.analyses().values()
        rows = [(each.name, each.question) for each in known]
        with formatter.section("Analyses"):
            formatter.write_dl(rows)
        rows = [(name, each.short_help or "") for name, each in commands.commands().items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        first = [each.examples[0] for each in analyses.analyses().values() if each.examples]
        samples = "\n".join(f"  {name:<14} {what}" for name, what in CAPSULES.items())
        self.epilog = _TOP_EPILOG.format(samples=samples, examples=example_lines(first))
        super().format_epilog(ctx, formatter)


def _is_target(name: str) -> bool:
    """Return whether a word names a target; its name may be all that the command line has."""
    is_file = os.path.exists(name) and not os.path.isdir(name)
    is_session = name == "session" and _session_is_open()
    return is_file or name.startswith("qmp:") or is_sample(name) or is_session


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    options_metavar="",
    subcommand_metavar="COMMAND [TARGET] [OPTIONS]",
    context_settings=CONTEXT_SETTINGS,
)
@click.option("--version", is_flag=True, help="Show the version and exit.")
@click.option(
    "--json-schema", is_flag=True, help="Print the JSON Schema of --json documents and exit."
)
@click.pass_context
def kcensus(ctx: click.Context, version: bool, json_schema: bool) -> None:
    """A census of kernel memory and I/O, on live kernels and vmcores.

    Each analysis answers one question. Every figure is cross-checked against the kernel's own
    counters, and anything unreadable is reported.
    """
    if version:
        try:
            click.echo(f"kcensus {_installed_version('kcensus')}")
        except ModuleNotFoundError:
            click.echo("kcensus (run from its source tree, not installed)")
        ctx.exit()
    if json_schema:
        schema = importlib.import_module("kcensus.render.schema").schema()
        click.echo(json.dumps(schema, indent=2))
        ctx.exit()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _show_error(line: str) -> None:
    click.echo(line, err=True)


def _report(error: Exception, args: Sequence[str], show: Callable[[str], None]) -> Exit:
    """Report an error in one sentence; return the exit status."""
    if isinstance(error, click.ClickException):
        # click puts each of the choices on a line of its own.
        status, sentence = Exit.USAGE, re.sub(r"\n\s*", " ", error.format_message())
    else:
        lift()
        status, sentence, expected = _verdict(error)
        if "--debug" in args or os.environ.get("KCENSUS_DEBUG", "") not in ("", "0"):
            for line in "".join(traceback.format_exception(error)).splitlines():
                click.echo(printable(line), err=True)
        elif not expected:
            sentence += " (--debug shows where)"
    line = printable("; ".join(sentence.splitlines())).removesuffix(".")
    show(f"kcensus: {line}")
    if isinstance(error, click.UsageError) and error.ctx:
        show(f"Try '{error.ctx.command_path} --help'.")
    return status


def run(args: Sequence[str], show_error: Callable[[str], None] = _show_error) -> int:
    """Run a command inside a process that goes on; return its exit status.

    :param show_error: gets each line of an error; the default prints it on stderr
    """

    def work() -> int:
        try:
            with kcensus.make_context("kcensus", list(args)) as context:
                return int(kcensus.invoke(context) or Exit.DONE)
        except click.exceptions.Exit as done:  # --help, --version
            return done.exit_code

    return _status(work, args, show_error)


def _status(
    work: Callable[[], int], args: Sequence[str], show_error: Callable[[str], None] = _show_error
) -> int:
    """Do what returns an exit status, and report its errors."""
    try:
        with _interrupts_are_kept():
            status = work()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        show_error("kcensus: interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return Exit.PIPE  # the reader closed the pipe, as `| head` does
    except Exception as error:
        return _report(error, args, show_error)


@contextmanager
def _interrupts_are_kept() -> Iterator[None]:
    """Send Ctrl-C again where Python prints and drops its exception.

    That is where the exception meets a callback that cannot raise, such as those with which drgn
    calls its plugins when it opens a program.
    """
    original = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            # Later, when the callback has returned; to the process, so that a sleep ends, too.
            threading.Timer(_AGAIN, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            original(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = original


def main(args: Sequence[str] | None = None) -> int:
    """Run ``kcensus`` and return its exit status.

    :param args: by default those of the process, which then is the command ``kcensus``
    """
    try:
        return _main(args)
    except KeyboardInterrupt:  # while an error is shown, or the end of the output
        return Exit.INTERRUPTED


def _main(args: Sequence[str] | None) -> int:
    if args is None:
        own_process()
        args = sys.argv[1:]
    if sys.stdout is None:  # closed by the shell (>&-)
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if instruction := os.environ.get(VARIABLE):
        status = _status(
            lambda: shell_complete(kcensus, {}, "kcensus", VARIABLE, instruction), args
        )
    else:
        status = run(args)
    try:
        sys.stdout.flush()
    except OSError:
        # Python flushes stdout when it ends; that must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status
