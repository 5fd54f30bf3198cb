# SPDX-License-Identifier: LGPL-2.1-or-later
"""Man pages, and scripts for completion, as packages install them below /usr/share.

``./run man`` and the build of a wheel write them (``contrib/hatch_build.py``); the :class:`Manual`
of each command is the reference of the site, too. The pages are not made by click-man, whose pages
lack examples, headings of options, and the sections of ``kcensus --help``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import click

from kcensus.analyses import analyses
from kcensus.commands import commands
from kcensus.commands.completion import script
from kcensus.commands.shared.options import CONTEXT_SETTINGS, Command, Reading, Showing

_PLACES = {
    "bash": "bash-completion/completions/kcensus",
    "zsh": "zsh/site-functions/_kcensus",
    "fish": "fish/vendor_completions.d/kcensus.fish",
}
"""Where shells look for the completion of a command."""
VERBATIM = "\b\n"
"""Beginning of a paragraph that is not wrapped."""
_READING = "Reading the target"


@dataclass
class Manual:
    """What help says of a command."""

    name: str
    """All its words: ``kcensus fleet run``."""
    summary: str
    """One line."""
    usage: str
    text: list[str] = field(default_factory=list)
    """Paragraphs; one that begins with a line ``\\b`` has lines that stay as they are."""
    options: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Options with their values, and their help, by heading."""
    sections: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Further lists: a word and its meaning; in ``Examples``, a command and its purpose."""
    notes: list[str] = field(default_factory=list)
    """Last paragraphs."""
    parts: list[Manual] = field(default_factory=list)
    """The commands of a group."""


def manuals(kcensus: click.Group) -> list[Manual]:
    """Return the manual of ``kcensus``, and those of its commands in alphabetical order."""
    summaries = {name: each.question for name, each in analyses().items()}
    summaries |= {name: each.summary for name, each in commands().items()}
    context = click.Context(kcensus, info_name="kcensus", **CONTEXT_SETTINGS)
    whole = _manual(kcensus, context, str(kcensus.help).partition("\n")[0].rstrip("."))
    made = [
        _manual(command, _inside(context, name, command), summaries[name])
        for name in sorted(kcensus.list_commands(context))
        if (command := kcensus.get_command(context, name))
    ]
    formatter = context.make_formatter()
    kcensus.format_epilog(context, formatter)
    _read_epilog(str(kcensus.epilog), whole)
    whole.sections = {
        "Analyses": [(name, summaries[name]) for name in analyses()],
        "Commands": [(name, summaries[name]) for name in commands()],
        **whole.sections,
    }
    return [whole, *made]


def _inside(context: click.Context, name: str, command: click.Command) -> click.Context:
    return click.Context(command, info_name=name, parent=context, **command.context_settings)


def _manual(command: click.Command, context: click.Context, summary: str) -> Manual:
    first, *others = inspect.cleandoc(command.help or "").split("\n\n")
    is_summary = first.rstrip("?.").lower() == summary.rstrip("?.").lower()
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    made = Manual(context.command_path, summary, usage)
    made.text = [
        each if each.startswith(VERBATIM) else " ".join(each.split())
        for each in (others if is_summary else [first, *others])
    ]
    kinds = {
        **{each.name: "Output" for each in fields(Showing)},
        **{each.name: _READING for each in fields(Reading)},
        "debug": _READING,
    }
    made.options = {"Options": [], "Output": [], _READING: []}
    for param in command.get_params(context):
        # An argument has no help, and is in the usage.
        if isinstance(param, click.Option) and (record := param.get_help_record(context)):
            made.options[kinds.get(str(param.name), "Options")].append(record)
    made.options = {heading: rows for heading, rows in made.options.items() if rows}
    if isinstance(command, Command) and command.examples:
        made.sections["Examples"] = [*command.examples]
    if isinstance(command, click.Group) and context.parent:
        for name, each in sorted(command.commands.items()):
            inside = _inside(context, name, each)
            made.parts.append(_manual(each, inside, each.get_short_help_str(200).rstrip(".")))
    return made


def _read_epilog(epilog: str, made: Manual) -> None:
    """Add the lists and paragraphs below the options of ``kcensus --help``."""
    for part in filter(None, epilog.split(VERBATIM)):
        heading, is_list, listing = part.rstrip().partition(":\n")
        if not is_list:
            made.notes += heading.splitlines()
            continue
        rows = made.sections.setdefault(heading, [])
        for line in listing.splitlines():
            if line.startswith("   "):
                rows[-1] = rows[-1][0], f"{rows[-1][1]} {line.strip()}".strip()
            else:
                name, _, meaning = line.strip().partition("  ")
                rows.append((name, meaning.strip()))


def roff(manual: Manual, others: Sequence[str], version: str) -> str:
    """Return a man page.

    :param others: names of the pages to see also
    """
    title = manual.name.replace(" ", "-")
    lines = [
        '.\\" Made of the help of the command.',
        f'.TH "{title.upper()}" 1 "" "kcensus {version}" "kcensus"',
        ".SH NAME",
        f"{_plain(title)} \\- {_plain(manual.summary)}",
        ".SH SYNOPSIS",
        *_usages(manual),
        *_body(manual, "SH"),
    ]
    for part in manual.parts:
        lines += [f".SH {_plain(part.name).upper()}", *_text(f"{part.summary}.")]
        lines += _body(part, "SS")
    lines += [
        ".SH SEE ALSO",
        *[f".BR {_plain(name)} (1){',' * (name != others[-1])}" for name in others],
    ]
    return "\n".join(lines) + "\n"


def _usages(manual: Manual) -> Iterator[str]:
    for at, each in enumerate(manual.parts or [manual]):
        words = each.usage.removeprefix(each.name).strip()
        yield from ([".br"] if at else [])
        yield from (f".B {_plain(each.name)}", _plain(words))


def _body(manual: Manual, macro: str) -> Iterator[str]:
    if manual.text:
        yield f".{macro} {'DESCRIPTION' if macro == 'SH' else 'Description'}"
        for at, paragraph in enumerate(manual.text):
            yield from ([".PP"] if at else [])
            if paragraph.startswith(VERBATIM):
                lines = paragraph.removeprefix(VERBATIM).splitlines()
                yield from (".nf", *map(_plain, lines), ".fi")
            else:
                yield from _text(paragraph)
    for heading, rows in manual.options.items():
        yield f".{macro} {heading.upper() if macro == 'SH' else heading}"
        for names, words in rows:
            yield from (".TP", f"\\fB{_plain(names)}\\fP", *_text(words))
    for heading, rows in manual.sections.items():
        yield f".{macro} {heading.upper() if macro == 'SH' else heading}"
        for names, words in rows:
            yield from (".TP", f"\\fB{_plain(names)}\\fP", *_text(words or "\\&"))
    if manual.notes:
        yield f".{macro} {'NOTES' if macro == 'SH' else 'Notes'}"
        for at, note in enumerate(manual.notes):
            yield from ([".PP"] if at else [])
            yield from _text(note)


def _text(paragraph: str) -> list[str]:
    """Return a paragraph with what is between backquotes in bold."""
    parts = _plain(paragraph).split("`")
    return ["".join(f"\\fB{part}\\fP" if at % 2 else part for at, part in enumerate(parts))]


def _plain(text: str) -> str:
    """Return text whose characters have no meaning for roff; dashes can be pasted."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha")
    text = text.replace("~", "\\(ti")
    return re.sub(r"^(?=[.])", r"\\&", text)


def write(directory: Path, kcensus: click.Group, version: str) -> list[Path]:
    """Write all man pages and scripts, with the folders of /usr/share; return their paths."""
    made = manuals(kcensus)
    names = [manual.name.replace(" ", "-") for manual in made]
    pages = {
        f"man/man1/{name}.1": roff(manual, names[1:] if manual is made[0] else ["kcensus"], version)
        for manual, name in zip(made, names, strict=True)
    }
    files = pages | {place: f"{script(shell)}\n" for shell, place in _PLACES.items()}
    for place, text in files.items():
        path = directory / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [directory / place for place in files]
