# SPDX-License-Identifier: LGPL-2.1-or-later
"""A notebook that has run, as one HTML page whose policy forbids scripts and requests.

HTML in Markdown is escaped; results and DataFrames escape the names in theirs. Pictures are images,
so that nothing in them acts on the page.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from markdown_it import MarkdownIt
from markupsafe import Markup
from nbformat import NotebookNode

from kcensus.render.html.text import rendered
from kcensus.render.plain import installed_version
from kcensus.text import printable

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
# Addresses may come from a dump, and entities name what printable() has escaped.
_MARKDOWN.disable(["autolink", "entity", "image", "link", "reference"])
_HEADING = re.compile(r"^#+ (.+)", re.MULTILINE)


def page(node: NotebookNode, *, code: bool) -> str:
    """Return the page of a notebook.

    :param code: whether it shows the code; a notebook can say itself that it does
    """
    style = [Path(__file__).parents[2] / "render/html/page.css", Path(__file__).parent / "page.css"]
    prose = [str(cell.source) for cell in node.cells if cell.cell_type == "markdown"]
    headings = [found for text in prose for found in _HEADING.findall(text)]
    subject = _subject(node)
    return rendered(
        "kcensus.commands",
        "notebook",
        "page.html",
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
        html = _CONTROLS.sub(lambda found: printable(found[0]), data["text/html"])
        return Markup('<div class="wide">{}</div>').format(Markup(html))
    if "text/markdown" in data:
        return _rendered(data["text/markdown"])
    return _lines(data.get("text/plain", ""))


def _subject(node: NotebookNode) -> str:
    outputs = (output for cell in node.cells for output in cell.get("outputs", ()))
    subjects = (output.get("metadata", {}).get("kcensus", {}).get("subject") for output in outputs)
    return next(filter(None, subjects), "")


def _rendered(text: str) -> Markup:
    return Markup(_MARKDOWN.render("\n".join(map(printable, text.split("\n")))))


def _image(address: str, data: NotebookNode) -> Markup:
    picture = Markup('<figure><img src="{}" alt="{}"></figure>')
    return picture.format(address, printable(data.get("text/plain", "")))


def _lines(text: str) -> Markup:
    lines = map(printable, _ANSI.sub("", text).expandtabs(4).rstrip("\n").split("\n"))
    return Markup("<pre>{}</pre>").format("\n".join(lines)) if text.strip() else Markup()
