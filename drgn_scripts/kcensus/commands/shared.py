# SPDX-License-Identifier: LGPL-2.1-or-later
"""What commands share: exit statuses, options, opening a target, showing a result."""

from __future__ import annotations

import enum
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kcensus.text import printable

if TYPE_CHECKING:
    from kcensus.analyses import Analysis
    from kcensus.progress import Progress
    from kcensus.results import Finding, Result
    from kcensus.sources import Target


class Exit(enum.IntEnum):
    """Exit statuses; scripts rely on them."""

    DONE = 0
    FINDING = 1
    USAGE = 2
    TARGET = 3
    FAILED = 4
    INCONCLUSIVE = 5
    """Of ``kcensus validate`` alone."""
    INTERRUPTED = 128 + 2
    PIPE = 128 + 13


CONTEXT_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}
"""For every command."""

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
class Reading:
    """How a target is opened and read: the values of :func:`reading_options`."""

    symbols: tuple[Path, ...] = ()
    jobs: int | None = None
    allow_truncated: bool = False
    chunk_size: int | None = None
    no_progress: bool = False


@dataclass(frozen=True)
class Showing:
    """How a result is shown: the values of :func:`showing_options`."""

    json: bool = False
    csv: Path | None = None
    parquet: Path | None = None
    html: Path | None = None
    top: int = 10
    fail_on: str | None = None


_Values = TypeVar("_Values", Reading, Showing)


def take(kind: type[_Values], values: dict[str, Any]) -> _Values:
    """Take a command's values for the fields of ``kind`` out of ``values``."""
    return kind(**{field.name: values.pop(field.name) for field in fields(kind)})


def target_argument(name: str = "target", *, required: bool = False) -> click.Argument:
    """The argument that says what to read."""
    return click.Argument([name], required=required)


def reading_options() -> list[click.Parameter]:
    """The options of a command that reads a target."""
    return [
        click.Option(
            ["-s", "--symbols"],
            type=click.Path(path_type=Path),
            multiple=True,
            metavar="DEBUGINFO",
            help="Debug info: a vmlinux, a module, or a directory of them. May be repeated.",
        ),
        click.Option(
            ["--jobs", "-j"],
            type=_at_least(1),
            metavar="N",
            help="Worker processes. Default: one per CPU for compressed dumps, otherwise 1.",
        ),
        click.Option(["--allow-truncated"], is_flag=True, help="Read a dump whose end is missing."),
        click.Option(
            ["--chunk-size"],
            type=_size,
            metavar="SIZE",
            help="Memory to read at once, e.g. 4M. For tuning.",
        ),
        click.Option(["--no-progress"], is_flag=True, help="Never draw progress bars."),
        debug_option(),
    ]


def debug_option() -> click.Parameter:
    """What every command takes besides."""
    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,  # cli.py looks for it, since it matters when commands have failed
        help="Show the traceback of an error; KCENSUS_DEBUG=1 does the same.",
    )


def showing_options() -> list[click.Parameter]:
    """The options of a command that shows a result."""
    from kcensus.results import Severity

    path = click.Path(path_type=Path)
    severities = [severity.name.lower() for severity in Severity]
    return [
        click.Option(["--json"], is_flag=True, help="Print one JSON document, with all rows."),
        click.Option(
            ["--csv"], type=path, metavar="DIR", help="Write CSV files into DIR, with all rows."
        ),
        click.Option(["--parquet"], type=path, metavar="DIR", help="Write Parquet files into DIR."),
        click.Option(["--html"], type=path, metavar="FILE", help="Write one HTML page to FILE."),
        click.Option(
            ["--top"],
            type=_at_least(0),
            default="10",
            show_default=True,
            metavar="N",
            help="Rows of each table on screen; 0 for all.",
        ),
        click.Option(
            ["--fail-on"],
            type=click.Choice(severities),
            metavar="SEVERITY",
            help=f"Exit with 1 if there is a finding of this severity ({', '.join(severities)}) or"
            " above.",
        ),
    ]


@contextmanager
def progress_bars(no_progress: bool) -> Iterator[Progress]:
    """Progress on stderr, if that is a terminal."""
    from kcensus.progress import SilentProgress

    if sys.stderr.isatty() and not no_progress:
        from kcensus.render.progress import TerminalProgress

        with TerminalProgress(sys.stderr) as progress:
            yield progress
    else:
        yield SilentProgress()


@contextmanager
def opened(spec: str | None, reading: Reading) -> Iterator[tuple[Target, Progress]]:
    """An open target, and where to report progress.

    Errors of the operating system inside are about the target, not about output.
    """
    from kcensus.sources import TargetError, open_target

    with progress_bars(reading.no_progress) as progress:
        try:
            with progress.step("opening the target", 0):
                target = open_target(spec, reading.symbols, allow_truncated=reading.allow_truncated)
            yield target, progress
        except OSError as error:
            raise TargetError(f"the target cannot be read: {error}") from error


def context_options(reading: Reading) -> Mapping[str, Any]:
    """What :meth:`kcensus.analyses.runner.Context.of` takes of the options."""
    chunk = {} if reading.chunk_size is None else {"chunk_bytes": reading.chunk_size}
    return {"jobs": reading.jobs, **chunk}


def chosen_analyses(text: str | None) -> list[Analysis]:
    """The analyses that ``--analyses`` names, or all.

    :raises click.UsageError: one of them is unknown
    """
    from kcensus.analyses import analyses

    every = analyses()
    if text is None:
        return list(every.values())
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in every]
    if unknown or not names:
        raise click.UsageError(
            f"--analyses takes some of {', '.join(every)}, separated by commas"
            + (f"; there is no {unknown[0]!r}." if unknown else ".")
        )
    return [every[name] for name in dict.fromkeys(names)]


def check_output(showing: Showing) -> None:
    """Refuse impossible output before any work is done.

    :raises click.UsageError: several faces are asked for, or the directory is in the way
    """
    paths = (showing.csv, showing.parquet, showing.html)
    if showing.json + sum(path is not None for path in paths) > 1:
        raise click.UsageError("only one of --json, --csv, --parquet and --html can be given.")
    if showing.html and (showing.html.is_dir() or not showing.html.parent.is_dir()):
        raise click.UsageError(f"{showing.html} cannot be written: it names no file in a directory")
    directory = showing.csv or showing.parquet
    if directory:
        from kcensus.render.directory import OutputError, prepare

        try:
            prepare(directory)
        except OutputError as error:
            raise click.UsageError(str(error)) from None


def show(result: Result, showing: Showing) -> Exit:
    """Show a result as asked for; the exit status that its findings have."""
    if showing.csv:
        from kcensus.render.csvdir import write_csv

        list_written(write_csv(result, showing.csv))
    elif showing.parquet:
        from kcensus.render.parquet import write_parquet

        list_written(write_parquet(result, showing.parquet))
    elif showing.html:
        from kcensus.render.html import write_html

        list_written(write_html(result, showing.html))
    elif showing.json:
        from kcensus.render.json import write_json

        write_json(result, json_stdout())
    else:
        from kcensus.render.terminal import console_for, write_terminal

        write_terminal(result, console_for(text_stdout()), showing.top)
    return gravest(result.findings, showing.fail_on)


def gravest(findings: Iterable[Finding], fail_on: str | None) -> Exit:
    """The exit status under ``--fail-on``."""
    if fail_on:
        from kcensus.results import Severity

        limit = Severity[fail_on.upper()]
        if any(finding.severity >= limit for finding in findings):
            return Exit.FINDING
    return Exit.DONE


def json_stdout() -> Any:
    """Standard output for JSON, which is UTF-8, whatever the locale says."""
    return _stdout(encoding="utf-8")


def text_stdout() -> Any:
    """Standard output for text; what the locale cannot write is escaped."""
    return _stdout(errors="backslashreplace")


def _stdout(encoding: str | None = None, errors: str | None = None) -> Any:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding=encoding, errors=errors)
    return sys.stdout


def list_written(written: Sequence[Path]) -> None:
    """Tell which files were written."""
    for path in written:
        click.echo(printable(str(path)))


def examples_epilog(examples: Sequence[tuple[str, str]]) -> str | None:
    """Worked examples, (command line, what it is for), as help shows them."""
    return f"\b\nExamples:\n{example_lines(examples)}" if examples else None


def example_lines(examples: Sequence[tuple[str, str]]) -> str:
    """The lines of :func:`examples_epilog`."""
    return "\n".join(f"  {line}\n      {purpose}" for line, purpose in examples)
