# SPDX-License-Identifier: LGPL-2.1-or-later
"""Explanations of findings and terms, for ``kcensus explain`` and HTML pages.

Each analysis explains the kinds of its findings in ``explain.toml`` of its folder, and a finder of
waits in a file beside its module; explanations of other findings, and the glossary, are in this
folder.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FILE = "explain.toml"


@dataclass(frozen=True)
class Explanation:
    """The explanation of a kind of finding."""

    kind: str
    title: str
    plain: str
    """What is wrong and what it does, in sentences for people who do not know the kernel."""
    means: str
    determined: str
    remedy: str
    terms: tuple[str, ...] = ()
    subject: str = ""
    """Owner of the memory that such a finding holds, in a sentence: ``negative dentries``."""


@dataclass(frozen=True)
class Term:
    """An entry of the glossary."""

    name: str
    means: str
    see: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


@functools.cache
def kinds() -> Mapping[str, Explanation]:
    """Return the explanations of all kinds of findings, in alphabetical order."""
    known = {
        kind: Explanation(kind, **{**fields, "terms": tuple(fields.get("terms", ()))})
        for file in _files()
        for kind, fields in tomllib.loads(file.read_text("utf-8")).items()
    }
    return dict(sorted(known.items()))


def _files() -> Iterator[Any]:
    for place in (files(__name__), *files("kcensus.analyses").iterdir()):
        if place.is_dir() and (file := place.joinpath(_FILE)).is_file():
            yield file
    # Not files("kcensus.kernel.waiting.finders"), which imports that package, NumPy and drgn.
    for room in files("kcensus").joinpath("kernel", "waiting", "finders").iterdir():
        if room.is_dir():
            yield from (file for file in room.iterdir() if file.name.endswith(".toml"))


@functools.cache
def terms() -> Mapping[str, Term]:
    """Return the glossary, in alphabetical order."""
    entries = tomllib.loads(files(__name__).joinpath("glossary.toml").read_text("utf-8"))
    made = (
        Term(name, entry["means"], tuple(entry.get("see", ())), tuple(entry.get("aliases", ())))
        for name, entry in entries.items()
    )
    return {term.name: term for term in sorted(made, key=lambda term: term.name.lower())}


def explanation(identifier: str) -> Explanation | None:
    """Return the explanation of a finding, by its id or its kind; None without one."""
    return kinds().get(identifier.partition(":")[0])


def term(word: str) -> Term | None:
    """Return the term of the glossary that a word names, whatever its case and separators.

    A plural names the term of its singular.
    """
    wanted, known = _normal(word), _terms_by_word()
    return known.get(wanted) or known.get(wanted.removesuffix("s"))


def words() -> list[str]:
    """Return all words with an explanation: kinds, terms and their aliases."""
    return [*kinds(), *(word for each in terms().values() for word in (each.name, *each.aliases))]


@functools.cache
def _terms_by_word() -> Mapping[str, Term]:
    aliases = {_normal(alias): each for each in terms().values() for alias in each.aliases}
    return aliases | {_normal(name): each for name, each in terms().items()}


def _normal(word: str) -> str:
    return word.lower().replace("-", " ").replace("_", " ")
