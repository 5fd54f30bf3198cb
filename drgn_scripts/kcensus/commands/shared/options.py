# SPDX-License-Identifier: LGPL-2.1-or-later
"""Options and help that commands share, and the objects made of parsed options."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from kcensus.commands.shared import values
from kcensus.limits import is_own_process, limit_share
from kcensus.limits.memory import MIN_BYTES, prepare
from kcensus.results import Severity

if TYPE_CHECKING:
    from kcensus.results.tables import Column, TableSpec

CONTEXT_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
COMPLETE_VARIABLE = "_KCENSUS_COMPLETE"
"""The shell sets it when it asks for completions."""


class _Path(click.Path):
    def convert(self, value: Any, *where: Any) -> Any:
        if not os.fspath(value):
            self.fail("'' is no file; give a name.", *where)
        return super().convert(value, *where)


PATH = _Path(path_type=Path)
PLACE = _Path(path_type=str)
"""A path or a URL."""

_SUFFIXES = {"": 0, "k": 10, "m": 20, "g": 30}
_MIN_CHUNK = 4096
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_DIGITS = 6


@dataclass(frozen=True)
class Reading:
    """Options for opening and reading a target: the values of :func:`reading`."""

    symbols: tuple[Path, ...] = ()
    jobs: int | None = None
    allow_truncated: bool = False
    vmcoreinfo: Path | None = None
    debuginfod: bool = False
    chunk_size: int | None = None
    no_progress: bool = False
    cpu_share: int | None = None
    """Percent of one CPU; None for no limit."""
    max_memory: int | None = None
    """Bytes of private memory; None for the default of the target."""
    scheduler: str | None = None
    """Address of a Dask scheduler, whose workers read, too."""


@dataclass(frozen=True)
class Showing:
    """Options for showing a result: the values of :func:`showing`."""

    json: str | None = None
    """A file, or ``-`` for standard output."""
    csv: Path | None = None
    parquet: Path | None = None
    html: Path | None = None
    dot: Path | None = None
    reply: str | None = None
    """As :attr:`json`."""
    brief: bool = False
    """Whether a page shows findings alone."""
    svg: Path | None = None
    top: int = 10
    tables: tuple[str, ...] = ()
    """Tables to show; the first ones of the analysis where empty."""
    every_table: bool = False
    no_pager: bool = False
    fail_on: str | None = None


def _at_least(minimum: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise click.BadParameter(f"{text!r} is not an integer >= {minimum}")
        return int(text)

    return number


def size(minimum: int, examples: str) -> Callable[[str], int]:
    def parsed(text: str) -> int:
        match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(i?b)?", text.strip().lower(), re.ASCII)
        size = int(match[1]) << _SUFFIXES[match[2]] if match else 0
        if not minimum <= size < 1 << 63:
            raise click.BadParameter(f"{text!r} is not a size >= {examples}")
        return size

    return parsed


def _share(text: str) -> int:
    match = re.fullmatch(r"(\d{1,3})\s*%?", text.strip(), re.ASCII)
    if not match or not 1 <= int(match[1]) <= 100:
        raise click.BadParameter(f"{text!r} is not a percentage from 1 to 100 of one CPU")
    return int(match[1])


def _own_process(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    if value is not None and not is_own_process():
        raise click.BadParameter(
            "works only in a process of its own, not inside crash or drgn; omit it here"
        )
    return value


def interval(text: str) -> int:
    """Return the seconds of ``30s``, ``5m``, ``1h`` or ``1d``."""
    match = re.fullmatch(rf"([0-9]{{1,{_MAX_DIGITS}}})([smhd])", text.strip().lower())
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not seconds:
        raise click.BadParameter(f"{text!r} is not an interval, such as 30s, 5m, 1h or 1d")
    return seconds


def option(names: str, metavar: str, words: str, **attributes: Any) -> click.Option:
    """Return an option with a value: its names, the value's name in the usage, and its help."""
    return click.Option(names.split(), metavar=metavar, help=words, **attributes)


def files(names: str, metavar: str, words: str, **attributes: Any) -> click.Option:
    """Return an option with a path as value."""
    return option(names, metavar, words, type=PATH, **attributes)


def flag(names: str, words: str, **attributes: Any) -> click.Option:
    """Return an option without a value."""
    return click.Option(names.split(), is_flag=True, help=words, **attributes)


def symbols() -> click.Option:
    """Return the option for debug info."""
    return files(
        "-s --symbols",
        "DEBUGINFO",
        "A vmlinux, a module, a type pack, BTF, System.map, or a directory with such files."
        " May be repeated.",
        multiple=True,
    )


def debuginfod() -> click.Option:
    """Return the option to download debug info."""
    return flag(
        "--debuginfod",
        "Download missing debug info from the servers in DEBUGINFOD_URLS: 300 MB and more.",
    )


def reading(*, several: bool = False) -> list[click.Parameter]:
    """Return the options of :class:`Reading`.

    :param several: the command reads several targets; those of one boot only are left out
    """
    own = files(
        "--vmcoreinfo",
        "FILE",
        "VMCOREINFO of a dump that lacks it: text, ELF note, or another dump of the same boot."
        " Default: search the dump's memory.",
    )
    return [
        symbols(),
        option(
            "--jobs -j",
            "N",
            "Worker processes. Default: one per CPU for compressed dumps, otherwise 1.",
            type=_at_least(1),
        ),
        flag("--allow-truncated", "Read a truncated dump."),
        *([] if several else [own]),
        debuginfod(),
        option(
            "--cpu-share",
            "PERCENT",
            "Take at most this share of one CPU, in one process. Default: no limit; on the"
            " running kernel, other programs go first (nice 19).",
            type=_share,
            callback=_own_process,
        ),
        option(
            "--max-memory",
            "SIZE",
            "Take at most this much private memory, in one process. Default: on the running"
            " kernel, half of what is available, but 320M at least; otherwise no limit.",
            type=size(MIN_BYTES, f"{MIN_BYTES >> 20}M, such as 512M or 2G"),
            callback=_own_process,
        ),
        option(
            "--chunk-size",
            "SIZE",
            "Bytes per bulk read, e.g. 4M. For tuning.",
            type=size(_MIN_CHUNK, "4K, such as 65536, 512K or 4M"),
        ),
        *running(),
    ]


def scheduler() -> click.Option:
    """Return the option that lets workers of a cluster read the target, too."""
    return option(
        "--scheduler",
        "ADDRESS",
        "Split a large vmcore over the workers of a Dask cluster, such as tcp://host:8786, which"
        " need kcensus, and the target and debug info at the same paths.",
    )


def running() -> list[click.Parameter]:
    """Return the options of a command without a target, too."""
    return [
        flag("--no-progress", "Do not draw progress bars."),
        flag(
            "--debug",
            "Show the traceback of an error, as KCENSUS_DEBUG=1 does.",
            expose_value=False,  # cli.py looks for it, because it matters after a command failed
        ),
    ]


def analyses(verb: str = "Run") -> click.Option:
    """Return the option that selects analyses."""
    complete = values.several_of(values.names_of_analyses)
    words = f"{verb} these analyses only. Default: all."
    return option("--analyses", "NAME,…", words, shell_complete=complete)


def no_pager() -> click.Option:
    """Return the option that shows long output as it is."""
    return flag("--no-pager", "Do not show long output in a pager.")


class _TargetArgument(click.Argument):
    """An argument that names a target; inside crash and drgn, the usage does without it."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        pieces = super().get_usage_pieces(ctx)
        if not session_is_open():
            return pieces
        if self.name == "target":
            return []
        return pieces if self.required else [f"[{piece.strip('[]')}]" for piece in pieces]


def target(
    name: str = "target", *, required: bool = False, metavar: str | None = None
) -> click.Argument:
    """Return the argument for a target; shells complete it to a file or ``sample``.

    :param required: whether it is needed inside crash and drgn, too
    :param metavar: its form in the usage if it is needed elsewhere only
    """
    return _TargetArgument(
        [name], required=required, metavar=metavar, shell_complete=values.targets
    )


def words(name: str, metavar: str, complete: values.Completer = values.targets) -> click.Argument:
    """Return an argument that takes any number of words, which can be targets."""
    return click.Argument([name], nargs=-1, metavar=metavar, shell_complete=complete)


def showing(*, tables: bool = True, top: int = 10) -> list[click.Parameter]:
    """Return the options of :class:`Showing`.

    :param tables: whether tables can be selected
    :param top: default of ``--top``
    """
    severities = [severity.name.lower() for severity in Severity]
    at_least = (
        f"Exit with status 1 if a finding is at least this severe ({', '.join(severities)});"
        " otherwise with 6 if an analysis failed, 3 if all did. Gaps do not change the status."
    )
    every = "Show all tables and figures on screen, zeros included."
    selecting = [
        option(
            "tables --table",
            "NAME",
            "Show this table on screen. May be repeated.",
            multiple=True,
            shell_complete=_tables,
        ),
        flag("every_table --all", every),
    ]
    return [
        option(
            "--json",
            "[FILE]",
            "Write one JSON document, with all rows, to FILE; without FILE, print it.",
            is_flag=False,
            flag_value="-",
            shell_complete=values.files,
        ),
        files("--csv", "DIR", "Write CSV files to DIR, with all rows."),
        files("--parquet", "DIR", "Write Parquet files to DIR, all rows."),
        files("--html", "FILE", "Write one HTML page to FILE."),
        *(selecting if tables else ()),
        option(
            "--top",
            "N",
            "Rows of each table on screen; 0 for all.",
            type=_at_least(0),
            default=str(top),
            show_default=True,
        ),
        no_pager(),
        option("--fail-on", "SEVERITY", at_least, type=click.Choice(severities)),
    ]


class _HelpTables(click.Option):
    place = ""
    """``module:TABLES``; empty without declarations."""


def _tables(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    places = [each.place for each in ctx.command.params if isinstance(each, _HelpTables)]
    names = [name for place in places for name in values.tables(place)]
    return values.one_of(lambda: names)(ctx, param, incomplete)


def help_tables(place: str) -> click.Option:
    """Return the option that describes the tables declared at ``module:TABLES``, if any."""

    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            specs = resolve_name(place) if place else ()
            click.echo(_describe(specs, ctx.make_formatter()))
            ctx.exit()

    words = "Describe the tables and their columns, and exit."
    made = _HelpTables(["--help-tables"], is_flag=True, help=words, is_eager=True, callback=show)
    made.place, made.expose_value = place, False
    return made


def _describe(specs: Sequence[TableSpec], formatter: click.HelpFormatter) -> str:
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


def catalogue() -> click.Option:
    """Return the option that adds patches to the catalogue."""
    words = "Add a directory of patch files and rules. May be repeated."
    return files("--catalogue", "DIR", words, multiple=True)


class Command(click.Command):
    """A command with examples that fit where it runs."""

    def __init__(self, examples: Sequence[tuple[str, str]], *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            self.epilog = f"\b\nExamples:\n{example_lines(self.examples)}"
        super().format_epilog(ctx, formatter)


def command(
    name: str,
    run: Callable[..., Any] | str,
    params: Sequence[click.Parameter],
    help_: str,
    examples: Sequence[tuple[str, str]] = (),
) -> click.Command:
    """Return a command.

    :param run: a function, or ``module:function`` to import when it runs. It gets the options by
        their names; fields of :class:`Reading` and :class:`Showing` as one ``reading`` and
        ``showing``
    :param examples: command lines and their purposes
    """

    def callback(**values: Any) -> Any:
        for argument, kind in (("reading", Reading), ("showing", Showing)):
            names = [field.name for field in fields(kind) if field.name in values]
            if names:
                values[argument] = kind(**{key: values.pop(key) for key in names})
        reading = values.get("reading")
        if isinstance(reading, Reading) and is_own_process():
            # Before NumPy and drgn are imported.
            prepare()
            if reading.cpu_share is not None:
                limit_share(reading.cpu_share)
        return (resolve_name(run) if isinstance(run, str) else run)(**values)

    attributes = {"callback": callback, "params": [*params], "help": help_}
    return Command(examples, name, **attributes, context_settings=CONTEXT_SETTINGS)


def group(name: str, help_: str, commands: Sequence[click.Command]) -> click.Group:
    """Return a command that is a prefix of others, and shows its help by itself."""

    def show_help(ctx: click.Context) -> None:
        if ctx.invoked_subcommand is None:
            click.echo(ctx.get_help())

    return click.Group(
        name,
        callback=click.pass_context(show_help),
        invoke_without_command=True,
        help=help_,
        context_settings=CONTEXT_SETTINGS,
        commands=commands,
    )


def example_lines(examples: Sequence[tuple[str, str]]) -> str:
    """Return examples as help shows them: inside crash and drgn, on the kernel open there."""
    if session_is_open():
        examples = _without_targets(examples)
    return "\n".join(f"  {line}\n      {purpose}" for line, purpose in examples)


def _without_targets(examples: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return examples without the dump; those on the running kernel are left out."""
    purposes: dict[str, str] = {}
    for line, purpose in examples:
        if not line.startswith("sudo "):
            purposes.setdefault(re.sub(r" vmcore\b(?![./])| -s vmlinux\b", "", line), purpose)
    return list(purposes.items())


def session_is_open() -> bool:
    """Return whether crash or drgn runs this; help does not import the code that opens targets."""
    module = sys.modules.get("kcensus.sources.session")
    return module is not None and bool(module.is_open())
