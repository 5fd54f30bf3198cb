# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the declarations of commands share: options and help texts."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from kcensus.limits import is_own_process
from kcensus.limits.memory import MIN_BYTES
from kcensus.results import Severity
from kcensus.samples import CAPSULES

if TYPE_CHECKING:
    from kcensus.results.tables import Column, TableSpec

CONTEXT_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}
"""For every command."""

_SUFFIXES = {"": 0, "k": 10, "m": 20, "g": 30}
_MIN_CHUNK = 4096
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_DIGITS = 6


def _at_least(minimum: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise click.BadParameter(f"{text!r} is not an integer >= {minimum}")
        return int(text)

    return number


def _size(minimum: int, examples: str) -> Callable[[str], int]:
    def size(text: str) -> int:
        """Return the bytes of ``65536``, ``512K`` or ``4MiB``."""
        match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(i?b)?", text.strip().lower(), re.ASCII)
        size = int(match[1]) << _SUFFIXES[match[2]] if match else 0
        if not minimum <= size < 1 << 63:
            raise click.BadParameter(f"{text!r} is not a size >= {examples}")
        return size

    return size


def _share(text: str) -> int:
    """Return the percent of ``20`` or ``20%``."""
    match = re.fullmatch(r"(\d{1,3})\s*%?", text.strip(), re.ASCII)
    if not match or not 1 <= int(match[1]) <= 100:
        raise click.BadParameter(f"{text!r} is not a percentage from 1 to 100 of one CPU")
    return int(match[1])


def _own_process(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    """Refuse a limit on a process that is not ours."""
    if value is not None and not is_own_process():
        raise click.BadParameter("limits the command line's own process, which this one is not")
    return value


def interval(text: str) -> int:
    """Return the seconds of ``30s``, ``5m``, ``1h`` or ``1d``."""
    match = re.fullmatch(rf"([0-9]{{1,{_MAX_DIGITS}}})([smhd])", text.strip().lower())
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not seconds:
        raise click.BadParameter(f"{text!r} is not an interval, such as 30s, 5m, 1h or 1d")
    return seconds


def reading_options() -> list[click.Parameter]:
    """Return the options of :class:`~kcensus.actions.Reading`."""
    return [
        click.Option(
            ["-s", "--symbols"],
            type=click.Path(path_type=Path),
            multiple=True,
            metavar="DEBUGINFO",
            help="A vmlinux, a module, or a directory with debug info. May be repeated.",
        ),
        click.Option(
            ["--jobs", "-j"],
            type=_at_least(1),
            metavar="N",
            help="Worker processes. Default: one per CPU for compressed dumps, otherwise 1.",
        ),
        click.Option(["--allow-truncated"], is_flag=True, help="Read a dump that lacks its end."),
        click.Option(
            ["--cpu-share"],
            type=_share,
            callback=_own_process,
            metavar="PERCENT",
            help="Take at most this share of one CPU, in one process. Default: no limit; on the"
            " running kernel, other programs go first (nice 19).",
        ),
        click.Option(
            ["--max-memory"],
            type=_size(MIN_BYTES, f"{MIN_BYTES >> 20}M, such as 512M or 2G"),
            callback=_own_process,
            metavar="SIZE",
            help="Take at most this much private memory, in one process. Default: on the running"
            " kernel, half of what is available, but 320M at least; otherwise no limit.",
        ),
        click.Option(
            ["--chunk-size"],
            type=_size(_MIN_CHUNK, "4K, such as 65536, 512K or 4M"),
            metavar="SIZE",
            help="Bytes per bulk read, e.g. 4M. For tuning.",
        ),
        click.Option(["--no-progress"], is_flag=True, help="Do not draw progress bars."),
        click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,  # cli.py looks for it, because it matters after a command failed
            help="Show the traceback of an error, as KCENSUS_DEBUG=1 does.",
        ),
    ]


class _TargetArgument(click.Argument):
    """An argument that names a target; inside crash and drgn, the usage does without it."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        pieces = super().get_usage_pieces(ctx)
        if not _session_is_open():
            return pieces
        if self.name == "target":
            return []
        return pieces if self.required else [f"[{piece.strip('[]')}]" for piece in pieces]


def target_argument(
    name: str = "target", *, required: bool = False, metavar: str | None = None
) -> click.Argument:
    """Return the argument that names a target; shells complete it to a file or ``sample``.

    :param required: whether it is needed inside crash and drgn, too
    :param metavar: how the usage shows one that is needed elsewhere only
    """
    return _TargetArgument([name], required=required, metavar=metavar, shell_complete=_targets)


def _targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return how a shell can complete the name of a target."""
    names = [name for name in CAPSULES if incomplete and name.startswith(incomplete)]
    samples = [CompletionItem(name) for name in names]
    # The script for bash forgets what precedes an item for files.
    return [CompletionItem(incomplete, type="file"), *samples]


def showing_options(*, tables: bool = True, top: int = 10) -> list[click.Parameter]:
    """Return the options of :class:`~kcensus.actions.Showing`.

    :param tables: whether tables can be selected
    :param top: default of ``--top``
    """
    path = click.Path(path_type=Path)
    severities = [severity.name.lower() for severity in Severity]
    at_least = (
        f"Exit with status 1 if a finding is at least this severe ({', '.join(severities)});"
        " otherwise with 6 if an analysis failed, 3 if all did. Gaps do not change the status."
    )
    options: list[click.Parameter] = [
        click.Option(
            ["--json"],
            is_flag=False,
            flag_value="-",
            metavar="[FILE]",
            help="Write one JSON document, with all rows, to FILE; without FILE, print it.",
        ),
        click.Option(
            ["--csv"], type=path, metavar="DIR", help="Write CSV files to DIR, with all rows."
        ),
        click.Option(
            ["--parquet"], type=path, metavar="DIR", help="Write Parquet files to DIR, all rows."
        ),
        click.Option(["--html"], type=path, metavar="FILE", help="Write one HTML page to FILE."),
    ]
    if tables:
        options += [
            click.Option(
                ["tables", "--table"],
                multiple=True,
                metavar="NAME",
                help="Show this table on screen. May be repeated.",
            ),
            click.Option(
                ["every_table", "--all"],
                is_flag=True,
                help="Show all tables and figures on screen, also those that are 0.",
            ),
        ]
    return [
        *options,
        click.Option(
            ["--top"],
            type=_at_least(0),
            default=str(top),
            show_default=True,
            metavar="N",
            help="Rows of each table on screen; 0 for all.",
        ),
        click.Option(["--no-pager"], is_flag=True, help="Do not show long output in a pager."),
        click.Option(
            ["--fail-on"], type=click.Choice(severities), metavar="SEVERITY", help=at_least
        ),
    ]


def help_tables_option(specs: Callable[[], Sequence[Any]]) -> click.Option:
    """Return the option that describes tables.

    :param specs: returns their declarations
    """

    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            click.echo(_describe(specs(), ctx.make_formatter()))
            ctx.exit()

    return click.Option(
        ["--help-tables"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Describe the tables and their columns, and exit.",
    )


def _describe(specs: Sequence[TableSpec], formatter: click.HelpFormatter) -> str:
    """Return what a row of each table is, and its columns."""
    for spec in specs:
        with formatter.section(spec.name):
            formatter.write_text(f"{spec.title}. Row: {spec.help}")
            formatter.write_paragraph()
            formatter.write_dl([(name, _help(name, each)) for name, each in spec.columns.items()])
    formatter.write_paragraph()
    formatter.write_text(
        "Columns marked (data) are in --json, --csv and --parquet, not on screen."
        if specs
        else "This analysis does not describe its tables."
    )
    return formatter.getvalue().strip("\n")


def _help(name: str, column: Column) -> str:
    heading = "" if column.label in ("", name.replace("_", " ")) else f'"{column.label}": '
    unit = f" [{column.unit.value}]" if column.unit.value not in ("", "text", "count") else ""
    return f"{heading}{column.help}{unit}{' (data)' if column.show.value == 'data' else ''}".strip()


def catalogue_option() -> click.Option:
    """Return the option that adds patches to the catalogue."""
    return click.Option(
        ["--catalogue"],
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="DIR",
        help="Add a directory of patch files and rules. May be repeated.",
    )


class _Command(click.Command):
    """A command that reads a target, with examples that fit where it runs."""

    def __init__(self, examples: Sequence[tuple[str, str]], *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self._examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self._examples:
            self.epilog = f"\b\nExamples:\n{example_lines(self._examples)}"
        super().format_epilog(ctx, formatter)


def command(
    name: str,
    run: Callable[..., Any],
    params: Sequence[click.Parameter],
    question: str,
    help_: str,
    examples: Sequence[tuple[str, str]] = (),
) -> click.Command:
    """Return a command that reads a target, with the options for that.

    :param question: what it answers, on one line
    :param examples: command lines, and what each is for
    """
    return _Command(
        examples,
        name,
        callback=run,
        params=[*params, *reading_options()],
        help=help_,
        short_help=question,
        context_settings=CONTEXT_SETTINGS,
    )


def example_lines(examples: Sequence[tuple[str, str]]) -> str:
    """Return examples as help shows them: inside crash and drgn, on the kernel open there."""
    if _session_is_open():
        examples = _without_targets(examples)
    return "\n".join(f"  {line}\n      {purpose}" for line, purpose in examples)


def _without_targets(examples: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return examples without the dump; those on the running kernel are left out."""
    purposes: dict[str, str] = {}
    for line, purpose in examples:
        if not line.startswith("sudo "):
            purposes.setdefault(re.sub(r" vmcore\b(?![./])| -s vmlinux\b", "", line), purpose)
    return list(purposes.items())


def _session_is_open() -> bool:
    """Return whether this is inside crash or drgn; help does not import what opens targets."""
    module = sys.modules.get("kcensus.sources.session")
    return module is not None and bool(module.is_open())
