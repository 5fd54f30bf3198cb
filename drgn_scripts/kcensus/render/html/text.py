# SPDX-License-Identifier: LGPL-2.1-or-later
"""Texts on the page: inert, and broken only in harmless places."""

from __future__ import annotations

import hashlib
import re

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from kcensus.text import printable

_MAX_WORD = 24
"""Longer words, such as paths, may be broken after a separator."""
_MAX_PIECE = 40
"""Longer pieces of words may be broken anywhere."""


def rendered(package: str, folder: str, template: str, /, **context: object) -> str:
    """Return a template in a folder of a package, with every text in it inert and escaped."""
    environment = Environment(
        loader=PackageLoader(package, folder),
        autoescape=True,
        finalize=inert,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**context)


def inert(value: object) -> object:
    """Make a text printable before Jinja escapes it; :class:`Markup` is both already."""
    is_raw = isinstance(value, str) and not isinstance(value, Markup)
    return printable(str(value)) if is_raw else value


def breakable(text: str) -> Markup:
    """Return a text with permission to break long words; commands between backticks are code."""
    parts = re.split(r"(?<![^\s(])`(kcensus [^`]+)`", printable(text))
    return Markup().join(
        Markup("<code>{}</code>").format(part) if number % 2 else _broken(part)
        for number, part in enumerate(parts)
    )


def _broken(text: str) -> Markup:
    words = re.split(r"( +)", text)
    return Markup().join(_pieces(word) if len(word) > _MAX_WORD else word for word in words)


def _pieces(word: str) -> Markup:
    pattern = rf"[^/,:;=@_-]{{1,{_MAX_PIECE}}}[/,:;=@_-]*|[/,:;=@_-]+"
    return Markup("<wbr>").join(re.findall(pattern, word))


def code(text: str) -> Markup:
    """Return a text of kcensus itself, words between backticks as code."""
    words = " ".join(text.split())
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(words)))))


def anchor(kind: str, name: str) -> str:
    """Return an id of an element; characters that neither ids nor links may have are hashed."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    digest = hashlib.sha256(printable(name).encode()).hexdigest()[:6]
    return f"{kind}-{plain}" if plain == name.replace(":", "-") else f"{kind}-{plain}-{digest}"
