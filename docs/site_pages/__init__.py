# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages of the site that are not written in docs/: files from elsewhere in the repository, and the
reference, which is made of the program."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from pygments.lexer import RegexLexer, bygroups
from pygments.token import Generic, Text
from sphinx.application import Sphinx

from site_pages import reference

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent

OUTER = {
    "CHANGELOG.md": "project/changelog",
    "CONTRIBUTING.md": "project/contributing",
    "contrib/README.md": "project/collecting",
    "contrib/kdump/README.md": "project/after-a-crash",
    "crash_ext/README.md": "project/crash",
    "drgn_scripts/kcensus/sources/capsule/FORMAT.md": "project/capsule-format",
    "drgn_scripts/kcensus/store/FORMAT.md": "project/store-format",
    "kernel_patches/README.md": "project/patch-files",
    "notebooks/README.md": "project/notebooks",
    "tests/lab/README.md": "project/lab",
}
"""Pages by their files elsewhere in the repository."""
INSTEAD = {"README.md": "index", "SECURITY.md": "security"}
"""Pages in place of files that are no pages."""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_BLOCK = re.compile(r"(^```.*?^```$|^:::.*?$|^(?: {4}|\t).*?$)", re.MULTILINE | re.DOTALL)


class Console(RegexLexer):
    """Commands behind ``$``, and their output, in which Pygments' own lexer sees prompts."""

    name = "kcensus console"
    tokens = {
        "root": [
            (r"^(\$ )(.*\\\n)", bygroups(Generic.Prompt, Text), "more"),
            (r"^(\$ )(.*\n)", bygroups(Generic.Prompt, Text)),
            (r".*\n", Generic.Output),
        ],
        "more": [
            (r"^(> )(.*\\\n)", bygroups(Generic.Prompt, Text)),
            (r"^(> )(.*\n)", bygroups(Generic.Prompt, Text), "#pop"),
            (r"", Text, "#pop"),
        ],
    }


def linked(text: str, file: Path, page: str) -> str:
    """Return a page with links to the pages of the site in place of those to files.

    A link to a file without a page becomes its text.

    :param file: the file of the text, to which its links are relative
    :param page: name of the page
    """

    def link(match: re.Match[str]) -> str:
        picture, words, path, anchor = match.groups()
        found = Path(os.path.normpath(file.parent / path))
        if found.is_dir():
            found /= "README.md"
        inside = found.relative_to(ROOT).as_posix() if found.is_relative_to(ROOT) else ""
        name = OUTER.get(inside) or INSTEAD.get(inside)
        if name is None and inside.startswith("docs/"):
            name = inside.removeprefix("docs/")
            if not name.endswith(".md") and not picture:
                return match[0]
        elif name is None:
            return words
        else:
            name += ".md"
        start = posixpath.dirname(page)
        # Sections of the README are on several pages.
        place = "" if name == "index.md" else anchor or ""
        return f"{picture}[{words}]({posixpath.relpath(name, start or '.')}{place})"

    parts = _BLOCK.split(text)
    return "".join(part if at % 2 else _LINK.sub(link, part) for at, part in enumerate(parts))


def _make(app: Sphinx) -> None:
    for outer, page in OUTER.items():
        _write(f"{page}.md", linked((ROOT / outer).read_text("utf-8"), ROOT / outer, page))
    for page, text in reference.pages().items():
        _write(page, text)


def _write(page: str, text: str) -> None:
    path = DOCS / page
    path.parent.mkdir(parents=True, exist_ok=True)
    # Sphinx reads again what is newer.
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    if not page.startswith(("project/", "reference/")):
        source[0] = linked(source[0], DOCS / f"{page}.md", page)


def _docstring(
    app: Sphinx, what: str, name: str, member: object, options: object, lines: list[str]
) -> None:
    """Show paragraphs that help does not wrap as they are."""
    made: list[str] = []
    is_verbatim = False
    for line in lines:
        is_verbatim = (is_verbatim and bool(line)) or line == "\b"
        made += ["::", ""] if line == "\b" else [f"   {line}" if is_verbatim else line]
    lines[:] = made


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_lexer("console", Console)
    app.connect("builder-inited", _make)
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
