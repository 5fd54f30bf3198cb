# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sentences of a reply, without commands of kcensus; words of the kernel with their meanings."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable
from importlib.resources import files

from kcensus import explain
from kcensus.results import Finding

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MAX_WORDS = 12
_OF_KCENSUS = re.compile(r"(?<![^\s(])`kcensus [^`]*`| with -s\b")
_CLAUSES = re.compile(r"(?<=[;.]) ")
_ESCAPE = re.compile(r"\\x[0-9a-f]{2}")
"""A character of a name as udev and LVM write it, or as we write one that cannot be printed."""


def plain(finding: Finding) -> str:
    """Return what is wrong, in sentences for people who do not know the kernel."""
    known = explain.explanation(finding.id)
    return (
        " ".join(known.plain.split()) if known else f"{capital(without_commands(finding.title))}."
    )


def short(finding: Finding) -> str:
    """Return the kind of a finding that was explained before as one sentence."""
    known = explain.explanation(finding.id)
    return f"{known.title if known else finding.kind}."


def sentences(texts: Iterable[str]) -> str:
    return " ".join(f"{text}." for text in texts if text)


def capital(text: str) -> str:
    """Return a text that begins in upper case, unless it begins with a name."""
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+ (?!\()", text) else text


def without_commands(text: str) -> str:
    """Return a text without the clauses that name commands of kcensus, and without a period."""
    clauses = (clause for clause in _CLAUSES.split(text) if not _OF_KCENSUS.search(clause))
    return " ".join(clauses).rstrip(" .;:,")


def words(lines: Iterable[str]) -> list[str]:
    """Return the words of the kernel in a text, with their meanings, in the order of the text."""
    pattern, meanings = _known_words()
    found: dict[str, str] = {}
    for line in lines:
        for match in pattern.finditer(line):
            found.setdefault(meanings[match[0].lower()], match[0])
        if escape := _ESCAPE.search(line):
            found.setdefault("a space or another special character", f"{escape[0]} in a name")
    return [f"{word}: {meaning}" for meaning, word in found.items()][:_MAX_WORDS]


@functools.cache
def _known_words() -> tuple[re.Pattern[str], dict[str, str]]:
    """Return a pattern of all words, and their meanings."""
    groups = tomllib.loads(files(__package__).joinpath("words.toml").read_text("utf-8"))
    meanings = {
        word.lower(): meaning for names, meaning in groups.items() for word in names.split(", ")
    }
    every = "|".join(map(re.escape, sorted(meanings, key=len, reverse=True)))
    # No words inside of paths and other names.
    return re.compile(rf"(?<![\w/.@:-])(?:{every})(?![\w/@-]|[.:]\w)", re.IGNORECASE), meanings
