# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command ``kcensus``: finds the command to run, and reports its errors.

The analyses of :func:`kcensus.analyses.analyses` and the commands of
:func:`kcensus.commands.commands` are its commands.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pkgutil import resolve_name
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, shell_complete

from kcensus import analyses, commands, samples
from kcensus.commands import Exit
from kcensus.commands.shared import errors
from kcensus.commands.shared.options import (
    COMPLETE_VARIABLE,
    CONTEXT_SETTINGS,
    example_lines,
    session_is_open,
)
from kcensus.limits import own_process
from kcensus.limits.memory import lift
from kcensus.text import printable

_AGAIN = 0.05
"""Seconds after which to repeat a Ctrl-C that Python dropped."""
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
  6  an analysis failed, so findings may be missing (1 takes precedence). Gaps, such as modules
     without debug info, do not change the status
  130  stopped by Ctrl-C

\b
Environment:
  KCENSUS_SYMBOLS  files and directories with debug info, separated by colons
  KCENSUS_PAGER    pager for long output on a terminal; overrides PAGER
  KCENSUS_DEBUG    1 is --debug

\b
`kcensus TARGET` is `kcensus report TARGET`. Other names, as in crash: {aliases}.
`kcensus COMMAND --help` explains a command and its options."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*analyses.analyses(), *commands.commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = analyses.ALIASES.get(cmd_name, cmd_name)
        if analysis := analyses.analyses().get(cmd_name):
            from kcensus.commands.shared.analysis import analysis_command

            return analysis_command(analysis)
        entry = commands.commands().get(cmd_name)
        return entry.load() if entry else None

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
        import difflib

        near = difflib.get_close_matches(name, self.list_commands(ctx), 1)
        hint = f"did you mean '{near[0]}'?" if near else "`kcensus --help` lists the commands"
        raise click.UsageError(f"'{printable(name)}' is neither a command nor a file ({hint})", ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # The script for bash loses the text before an item for files.
        return [CompletionItem(incomplete, type="file"), *super().shell_complete(ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Analyses"):
            formatter.write_dl(
                [(each.name, each.question) for each in analyses.analyses().values()]
            )
        with formatter.section("Commands"):
            known = commands.commands().items()
            formatter.write_dl([(name, each.summary) for name, each in known])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        first = [each.examples[0] for each in analyses.analyses().values() if each.examples]
        targets = "\n".join(f"  {name:<14} {what}" for name, what in samples.CAPSULES.items())
        aliases = ", ".join(f"{name} ({of})" for name, of in analyses.ALIASES.items())
        self.epilog = _TOP_EPILOG.format(
            samples=targets, examples=example_lines(first), aliases=aliases
        )
        super().format_epilog(ctx, formatter)


def _is_target(name: str) -> bool:
    """Return whether a word names a target; its name may be all that the command line has."""
    is_file = os.path.exists(name) and not os.path.isdir(name)
    is_session = name == "session" and session_is_open()
    return is_file or name.startswith("qmp:") or bool(samples.capsule(name)) or is_session


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
            click.echo(f"kcensus {resolve_name('importlib.metadata:version')('kcensus')}")
        except ModuleNotFoundError:
            click.echo("kcensus (run from its source tree, not installed)")
        ctx.exit()
    if json_schema:
        import json

        schema = resolve_name("kcensus.render.schema:schema")()
        click.echo(json.dumps(schema, indent=2))
        ctx.exit()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


_PICTURES = ("--svg", "--png", "--pdf")
"""Options that users expect for charts."""


def _show_error(line: str) -> None:
    with suppress(OSError):  # the exit status says it, too
        click.echo(line, err=True)


def _report(error: Exception, args: Sequence[str], show: Callable[[str], None]) -> Exit:
    if isinstance(error, click.ClickException):
        # click puts each of the choices on a line of its own.
        status, sentence = Exit.USAGE, re.sub(r"\n\s*", " ", error.format_message())
        if isinstance(error, click.NoSuchOption) and error.option_name in _PICTURES:
            sentence = f"No such option '{error.option_name}'. Pages of --html have the charts"
        elif "unexpected extra argument" in sentence and "vmlinux" in sentence:
            sentence += "; pass a vmlinux with -s"
    else:
        lift()
        status, sentence, expected = errors.verdict(error)
        if "--debug" in args or os.environ.get("KCENSUS_DEBUG", "") not in ("", "0"):
            import traceback

            for line in "".join(traceback.format_exception(error)).splitlines():
                _show_error(printable(line))
        elif not expected:
            sentence += " (--debug shows where)"
    show(errors.line(sentence))
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


def completions(args: Sequence[str], incomplete: str) -> list[tuple[str, str]]:
    """Return words that can follow ``args`` in place of ``incomplete``, each with its kind.

    :return: kind ``file`` or ``dir`` is for the names of files, whatever the word
    """
    shell = ShellComplete(kcensus, {}, "kcensus", COMPLETE_VARIABLE)
    items = shell.get_completions(list(args), incomplete)
    return [(str(item.value), item.type) for item in items]


def _status(
    work: Callable[[], int], args: Sequence[str], show_error: Callable[[str], None] = _show_error
) -> int:
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
    """Repeat Ctrl-C if Python drops its exception, in a callback that cannot raise.

    drgn calls its plugins in such callbacks when it opens a program.
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

    :param args: by default the process's arguments; the process then is the command ``kcensus``
    """
    try:
        return _main(args)
    except KeyboardInterrupt:  # while an error is shown, or the end of the output
        return Exit.INTERRUPTED


def _main(args: Sequence[str] | None) -> int:
    if args is None:
        own_process()
        args = sys.argv[1:]
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stdout is None:  # closed by the shell (>&-); what is written there fails, as elsewhere
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        status = _status(
            lambda: shell_complete(kcensus, {}, "kcensus", COMPLETE_VARIABLE, instruction), args
        )
    else:
        status = run(args)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Python flushes them when it ends; that must not fail a second time.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status
