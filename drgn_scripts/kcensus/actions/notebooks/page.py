# SPDX-License-Identifier: LGPL-2.1-or-later
"""A notebook that has run, as one HTML page that loads nothing else.

The page has no script, and its policy forbids scripts and requests. Markdown is rendered with raw
HTML escaped. The HTML of outputs is what results and DataFrames say of themselves; they escape
every name. Pictures are images in the page, so that what is in them stays in them.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from urllib.parse import quote

import mistune
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from nbformat import NotebookNode

from kcensus.render.html.text import inert
from kcensus.render.plain import installed_version
from kcensus.text import printable

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_CELL = re.compile("<td>([^<]*)</td>")
"""A cell of a table of pandas, which escapes what is in it."""
_TABLE = re.compile(r'<table [^>]*class="dataframe.*?</table>', re.DOTALL)
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_UNKNOWN = ("NaN", "&lt;NA&gt;", "None", "NaT")
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_HEADING = re.compile(r"^#+ (.+)", re.MULTILINE)


def page(node: NotebookNode, *, code: bool) -> str:
    """Return the page of a notebook.

    :param code: whether it shows the code; a notebook can say itself that it does
    """
    environment = Environment(
        loader=PackageLoader("kcensus.actions", "notebooks"),
        autoescape=True,
        finalize=inert,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = [Path(__file__).parents[2] / "render/html/page.css", Path(__file__).parent / "page.css"]
    headings = [found for cell in node.cells for found in _HEADING.findall(_prose(cell))]
    subject = _subject(node)
    return environment.get_template("page.html").render(
        title=": ".join(filter(None, (headings[0] if headings else "kcensus", subject))),
        cells=node.cells,
        show_code=code or node.metadata.get("kcensus", {}).get("show_code", False),
        prose=lambda cell: _rendered(cell.source),
        shown=shown,
        style=Markup("".join(path.read_text(encoding="utf-8") for path in style)),
        version=installed_version(),
    )


def shown(output: NotebookNode) -> Markup:
    """Return the richest form of an output that a page can show; nothing for other ones."""
    if output.output_type == "stream":
        return _lines(output.text)
    if output.output_type == "error":
        return _lines("\n".join(output.traceback))
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return _image(f"data:image/svg+xml,{quote(data['image/svg+xml'])}", data)
    if "image/png" in data:
        return _image(f"data:image/png;base64,{data['image/png'].strip()}", data)
    if "text/html" in data:
        return Markup('<div class="wide">{}</div>').format(_tabular(_inert(data["text/html"])))
    if "text/markdown" in data:
        return _rendered(data["text/markdown"])
    return _lines(data.get("text/plain", ""))


def _subject(node: NotebookNode) -> str:
    """Return what a notebook is about: what an output says in its metadata."""
    outputs = (output for cell in node.cells for output in cell.get("outputs", ()))
    subjects = (output.get("metadata", {}).get("kcensus", {}).get("subject") for output in outputs)
    return next(filter(None, subjects), "")


class _Renderer(mistune.HTMLRenderer):
    """Shows links and images, whose addresses may be those of a dump, as text."""

    def link(self, text: str, url: str, title: str | None = None) -> str:
        return text

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return text


def _prose(cell: NotebookNode) -> str:
    return str(cell.source) if cell.cell_type == "markdown" else ""


def _rendered(text: str) -> Markup:
    """Return Markdown as HTML; HTML in it is shown as it is, and so are names that are not safe."""
    lines = "\n".join(map(printable, text.split("\n")))
    renderer = _Renderer(escape=True)
    return Markup(mistune.create_markdown(renderer=renderer, plugins=["table"])(lines))


def _inert(html: str) -> Markup:
    """Return HTML with its control characters escaped."""
    return Markup(_CONTROLS.sub(lambda found: printable(found[0]), html))


def _tabular(html: Markup) -> Markup:
    """Return the tables of pandas for readers: words on the left, digits in groups, no NaN."""
    cells = _CELL.sub(lambda cell: _cell(cell[1]), html)
    return Markup(_TABLE.sub(lambda table: _aligned(table[0]), cells))


def _cell(value: str) -> str:
    if value in _UNKNOWN:
        return "<td>–</td>"
    if _NUMBER.fullmatch(value):
        whole, point, decimals = value.partition(".")
        return f"<td>{int(whole):,}{point}{decimals}</td>" if whole != "-0" else f"<td>{value}</td>"
    return f'<td class="words">{value}</td>'


def _aligned(table: str) -> str:
    """Return a table with the columns that have words, and their headings, marked as words."""
    rows = re.split(r"(?=<tr\b)", table)
    cells = [re.findall('<td( class="words")?>', row) for row in rows]
    words = {place for row in cells for place, mark in enumerate(row) if mark}
    width = max(map(len, cells))
    return "".join(_marked(row, words, width) for row in rows)


def _marked(row: str, words: set[int], width: int) -> str:
    """Return a row whose cells in columns of words are marked.

    :param width: columns, those of the index not counted
    """
    tag = "td" if "<td" in row else "th"
    cell = re.compile(f'<{tag}( class="words")?>')
    places = itertools.count(width - len(cell.findall(row)))  # those of the index are below 0
    return cell.sub(
        lambda found: f'<{tag} class="words">' if next(places) in words else found[0], row
    )


def _image(address: str, data: NotebookNode) -> Markup:
    picture = Markup('<figure><img src="{}" alt="{}"></figure>')
    return picture.format(address, printable(data.get("text/plain", "")))


def _lines(text: str) -> Markup:
    """Return lines as they are, without the colours of a terminal."""
    lines = map(printable, _ANSI.sub("", text).expandtabs(4).rstrip("\n").split("\n"))
    return Markup("<pre>{}</pre>").format("\n".join(lines)) if text.strip() else Markup()
