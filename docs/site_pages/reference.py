# SPDX-License-Identifier: LGPL-2.1-or-later
"""The reference: commands, findings, terms, tables, JSON and Python, made of the program."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

import kcensus
from kcensus import explain, plots
from kcensus.analyses import analyses
from kcensus.cli import kcensus as root
from kcensus.commands.shared.manual import VERBATIM, Manual, manuals
from kcensus.render.schema import schema
from kcensus.results.tables import Show, TableSpec

_SPECIAL = re.compile(r"([\\*_\[\]<>#|~$^{}])")


def pages() -> Mapping[str, str]:
    """Return the text of each page, by its name with a suffix."""
    made = manuals(root)
    commands = {f"reference/commands/{_slug(each.name)}.md": _command(each) for each in made}
    parts = {
        "findings": _findings(),
        "terms": _terms(),
        "tables": _tables(),
        "json": _json(),
        "python": _python(),
    }
    return {
        "reference/index.md": _index(made),
        **commands,
        **{f"reference/{name}.md": "\n".join(lines) + "\n" for name, lines in parts.items()},
        "reference/schema.json": json.dumps(schema(), indent=2) + "\n",
    }


def _slug(name: str) -> str:
    return name.replace(" ", "-")


def _prose(text: str) -> str:
    """Return text for Markdown, in which only backquotes have a meaning."""
    parts = text.split("`")
    return "`".join(
        part if at % 2 else _SPECIAL.sub(r"\\\1", part) for at, part in enumerate(parts)
    )


def _code(text: str) -> str:
    return f"``{text}``" if "`" in text else f"`{text}`"


def _row(*cells: str) -> str:
    return f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |"


def _index(made: Iterable[Manual]) -> str:
    lines = ["# Reference", "", "All of it is made of the program, as `kcensus --help` is.", ""]
    lines += [_row("page", "what"), _row("---", "---")]
    for name, what in (
        ("findings", "every kind of finding: its meaning, how it is determined, what to do"),
        ("terms", "the words of the kernel and of kcensus"),
        ("tables", "every table and column, with units"),
        ("json", "the documents of `--json`"),
        ("python", "the functions of `import kcensus` and `kcensus.plots`"),
    ):
        lines.append(_row(f"[{name.capitalize()}]({name}.md)", what))
    lines += ["", "## Commands", "", _row("command", "what"), _row("---", "---")]
    names = []
    for each in made:
        names.append(f"commands/{_slug(each.name)}")
        lines.append(_row(f"[{each.name}]({names[-1]}.md)", _prose(each.summary)))
    toc = ["findings", "terms", "tables", "json", "python", *names]
    lines += ["", "```{toctree}", ":hidden:", *toc, "```", ""]
    return "\n".join(lines)


def _command(manual: Manual) -> str:
    lines = [f"# {manual.name}", "", _prose(manual.summary[:1].upper() + manual.summary[1:])]
    if lines[-1][-1] not in ".?":
        lines[-1] += "."
    lines += [*_about(manual, "##")]
    for part in manual.parts:
        lines += ["", f"## {part.name}", "", _prose(f"{part.summary}."), *_about(part, "###")]
    return "\n".join(lines) + "\n"


def _about(manual: Manual, heading: str) -> Iterator[str]:
    if not manual.parts:
        yield from ("", "```text", manual.usage, "```")
    for paragraph in manual.text:
        if paragraph.startswith(VERBATIM):
            yield from ("", "```text", paragraph.removeprefix(VERBATIM), "```")
        else:
            yield from ("", _prose(paragraph))
    sections = dict(manual.sections)
    if examples := sections.pop("Examples", None):
        yield from ("", f"{heading} Examples", "", "```sh")
        for at, (command, purpose) in enumerate(examples):
            yield from ([""] if at else [])
            yield from (f"# {purpose}", command)
        yield "```"
    for name, rows in {**manual.options, **sections}.items():
        yield from ("", f"{heading} {name}")
        for words, meaning in rows:
            yield from ("", _code(words), f": {_prose(' '.join(meaning.split()))}")
    for note in manual.notes:
        yield from ("", _prose(note))


def _findings() -> Iterator[str]:
    yield from ("# Findings", "")
    yield "`kcensus explain ID` shows the same. An id is a kind, or a kind, a colon and a subject."
    for kind, each in explain.kinds().items():
        yield from ("", f"({kind})=", f"## {kind}", "", f"**{_prose(each.title)}**")
        for heading, text in (
            ("", each.means),
            ("How it is determined: ", each.determined),
            ("What to do: ", each.remedy),
        ):
            for at, paragraph in enumerate(text.strip().split("\n\n")):
                start = "" if at else heading
                yield from ("", start + _prose(" ".join(paragraph.split())))
        if each.terms:
            yield from ("", f"Terms: {_named(each.terms)}")


def _named(names: Iterable[str]) -> str:
    known = [each for name in names if (each := explain.term(name))]
    return ", ".join(f"[{_prose(each.name)}](#{_term(each.name)})" for each in known)


def _term(name: str) -> str:
    return "term-" + re.sub(r"\W+", "-", name.lower()).strip("-")


def _terms() -> Iterator[str]:
    yield from ("# Terms", "", "`kcensus explain TERM` shows the same.")
    for name, each in explain.terms().items():
        yield from ("", f"({_term(name)})=", f"## {_prose(name)}", "", _prose(each.means))
        if each.aliases:
            yield from ("", f"Also: {', '.join(map(_prose, each.aliases))}")
        if each.see:
            yield from ("", f"See: {_named(each.see)}")


def _tables() -> Iterator[str]:
    yield from ("# Tables", "")
    yield "`kcensus COMMAND --help-tables` shows the same. The names of tables and columns are keys"
    yield "in JSON, CSV, Parquet and DataFrames; values there are in the units below, exactly."
    for name, specs in _specs(root, click.Context(root, info_name="kcensus")):
        yield from ("", f"## {name}")
        for spec in specs:
            yield from ("", f"(table-{_slug(name)}-{spec.name})=", f"### {spec.name}", "")
            yield f"{_prose(spec.title)}. Row: {_prose(spec.help)}"
            yield from ("", _row("column", "on screen", "unit", "meaning"), _row(*["---"] * 4))
            for key, column in spec.columns.items():
                label = "" if column.show is Show.DATA else column.heading(key)
                unit = column.type or (column.unit.value if column.unit.value != "text" else "")
                yield _row(f"`{key}`", _prose(label), _prose(unit), _prose(column.help))


def _specs(
    command: click.Command, context: click.Context
) -> Iterator[tuple[str, tuple[TableSpec, ...]]]:
    """Yield the words of each command with declared tables, and these tables."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if inside := command.get_command(context, name):
                yield from _specs(inside, click.Context(inside, info_name=name, parent=context))
    for param in command.params:
        if place := getattr(param, "place", ""):
            from pkgutil import resolve_name

            yield context.command_path.removeprefix("kcensus "), tuple(resolve_name(place))


def _json() -> Iterator[str]:
    whole = schema()
    yield from ("# JSON", "", _prose(whole["description"]), "")
    yield "[schema.json](schema.json) is the JSON Schema that `kcensus --json-schema` prints. It"
    yield "has the [tables](tables.md) of each analysis, too."
    parts = {name: part for name, part in whole["$defs"].items() if "properties" in part}
    for name, part in parts.items():
        if name.startswith("tables_"):
            continue
        yield from ("", f"({_json_name(name)})=", f"## {name}", "")
        yield from (_prose(part.get("description", "")), "")
        yield from (_row("key", "value", "meaning"), _row(*["---"] * 3))
        for key, value in part["properties"].items():
            yield _row(f"`{key}`", _kind(value, parts), _prose(value.get("description", "")))


def _json_name(name: str) -> str:
    return f"json-{name.replace('_', '-')}"


def _kind(value: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """Return a few words for the values that a part of the schema allows."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{_json_name(name)})" if name in parts else name
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value:
        return ", ".join(f"`{json.dumps(each)}`" for each in value["enum"])
    for several in ("oneOf", "anyOf"):
        if several in value:
            return " or ".join(_kind(each, parts) for each in value[several])
    if "items" in value:
        return f"list of {_kind(value['items'], parts)}"
    if isinstance(value.get("additionalProperties"), dict):
        return f"object, each {_kind(value['additionalProperties'], parts)}"
    kind = value.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _python() -> Iterator[str]:
    yield from ("# Python", "")
    yield "These names are public, and others are not. Each analysis is a function of its name."
    names = {name: getattr(kcensus, name) for name in kcensus.__all__}
    functions = {name.replace("-", "_"): None for name in analyses()}
    yield from _members("Analyses", "kcensus", {name: getattr(kcensus, name) for name in functions})
    called = {name: each for name, each in names.items() if inspect.isroutine(each)}
    yield from _members("Functions", "kcensus", called)
    kinds = {name: each for name, each in names.items() if inspect.isclass(each)}
    answers = {name: each for name, each in kinds.items() if not issubclass(each, Exception)}
    yield from _members("Answers", "kcensus", answers)
    yield from _members(
        "Errors and warnings",
        "kcensus",
        {name: each for name, each in kinds.items() if name not in answers},
    )
    drawn = {
        name: each for name in plots.__all__ if inspect.isroutine(each := getattr(plots, name))
    }
    yield from _members("Plots", "kcensus.plots", drawn)


def _members(heading: str, module: str, members: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", f"## {heading}", "", "```{eval-rst}", f".. py:currentmodule:: {module}", "")
    for name, member in sorted(members.items()):
        kind = "function"
        if inspect.isclass(member):
            kind = "exception" if issubclass(member, Exception) else "class"
        yield f".. auto{kind}:: {module}.{name}"
        if kind == "class":
            yield "   :members:"
        yield ""
    yield "```"
