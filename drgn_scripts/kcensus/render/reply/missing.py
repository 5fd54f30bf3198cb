# SPDX-License-Identifier: LGPL-2.1-or-later
"""Missing data: one count and one wording for the screen, the page and the reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kcensus.analyses.gaps import WAITS_MISSING
from kcensus.human import counted, listed
from kcensus.render.plain import gap_subject
from kcensus.results import Gap, Result
from kcensus.sources.debuginfo.packages import modules_of
from kcensus.text import printable

_MAX_NAMED = 3


class Missing(NamedTuple):
    """Something missing, and the analyses that it affects."""

    subject: str
    """Printable."""
    analyses: tuple[str, ...]
    is_debug_info: bool = False


def missing(results: Mapping[str, Result]) -> list[Missing]:
    """Return what results lack, each part once; debug info of modules is one part.

    :param results: by analysis
    """
    analyses: dict[tuple[int, str], dict[str, None]] = {}
    modules: set[str] = set()
    affected: set[str] = set()
    for name, result in results.items():
        for gap in result.gaps:
            if lacking := modules_of(gap):
                modules |= {*lacking}
                affected.add(name)
            else:
                analyses.setdefault((gap.count, gap.what), {})[name] = None
    parts = [
        Missing(printable(gap_subject(what, count)), tuple(names))
        for (count, what), names in analyses.items()
    ]
    if modules:
        noun = "module" if len(modules) == 1 else "modules"
        subject = printable(f"no debug info of {noun} {', '.join(sorted(modules))}")
        parts.insert(0, Missing(subject, tuple(sorted(affected)), is_debug_info=True))
    return parts


def missing_words(results: Mapping[str, Result]) -> str:
    """Return a paragraph about the missing data of results, and what it hides; empty without any.

    :param results: by analysis
    """
    parts = missing(results)
    if not parts:
        return ""
    subjects = listed([part.subject for part in parts], _MAX_NAMED, "; ")
    hidden = list(dict.fromkeys(_hidden(gap) for each in results.values() for gap in each.gaps))
    names = "; ".join(filter(None, hidden))
    return (
        f"Some of the data was missing, in {counted(len(parts), 'part')} ({subjects}): figures can "
        "be too low, and further problems invisible."
        + f" Not looked at, though tasks may wait for them: {names}."
        * bool(names)
    )


def _hidden(gap: Gap) -> str:
    """Return the subjects that a gap hides; empty if it does not name any."""
    is_about = gap.effect.startswith(WAITS_MISSING)
    return printable(gap.effect.removeprefix(WAITS_MISSING)) if is_about else ""
