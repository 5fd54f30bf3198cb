# SPDX-License-Identifier: LGPL-2.1-or-later
"""The work behind each tool, in the process that reads the targets."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kcensus import explain as explanations
from kcensus.agents.answers import AnswerError, answer, page_of, result_parts, rows_answer, table_of
from kcensus.agents.messages import Settings
from kcensus.agents.opened import Opened
from kcensus.agents.places import LIVE, PlaceError, Places
from kcensus.agents.slabs import objects
from kcensus.agents.tools import severity_of, tool_name
from kcensus.analyses import ALIASES, analyses
from kcensus.catalogue import load
from kcensus.catalogue.story import document as patch_document
from kcensus.compare import compare
from kcensus.fleets.targets import find
from kcensus.render.json import findings, head
from kcensus.render.plain import identity, value_of
from kcensus.results import CheckStatus, Result, Severity
from kcensus.samples import CAPSULES
from kcensus.text import printable

_PATCHES = "patches"

Answer = dict[str, Any]
Arguments = Mapping[str, Any]
Work = Callable[[Arguments, Sequence[Opened], Settings], Answer]


def targets(arguments: Arguments, _: Sequence[Opened], settings: Settings) -> Answer:
    """Return the targets below the directories of the server, and the samples."""
    places = Places(settings.roots, settings.allow_live)
    rows: list[dict[str, Any]] = []
    for path in find(settings.roots).targets if settings.roots else ():
        try:
            chosen = places.chosen(path)
        except PlaceError:  # a link to a file elsewhere
            continue
        if path == printable(path):  # else its name could not be given back
            rows.append({"target": path, "size_bytes": chosen.size, "about": ""})
    live = {LIVE: "the kernel that runs on this machine"} if settings.allow_live else {}
    rows += [
        {"target": name, "size_bytes": None, "about": what}
        for name, what in (live | CAPSULES).items()
    ]
    offset, limit = arguments["offset"], arguments["limit"]
    shown = rows[offset : offset + limit]
    return answer({"rows": shown}, page=page_of(offset, len(shown), len(rows)))


def report(arguments: Arguments, opened: Sequence[Opened], _: Settings) -> Answer:
    """Return the findings of all analyses, their figures, and the state of their checks."""
    made, least = opened[0].report(), severity_of(arguments["severity"])
    shown = [each for each in findings(made) if Severity[each["severity"].upper()] >= least]
    document = head(made.head) | {
        "notes": opened[0].notes,
        "findings": shown,
        "failed": made.errors,
        "analyses": {name: _overview(result) for name, result in made.results.items()},
    }
    return answer(document)


def _overview(result: Result) -> dict[str, Any]:
    checks = Counter(check.status for check in result.checks)
    return {
        "summary": {key: value_of(figure) for key, figure in result.summary.items()},
        "checks": {status.value: checks[status] for status in CheckStatus},
        "gaps": len(result.gaps),
        "nothing": result.nothing,
    }


def analysis(arguments: Arguments, opened: Sequence[Opened], _: Settings) -> Answer:
    """Return the result of an analysis without the rows of its tables."""
    known = analyses()[arguments["analysis"]]
    defaults = {each.name: each.default for each in known.params}
    params = {
        name: arguments[name] for name in arguments["params"] if arguments[name] != defaults[name]
    }
    result = opened[0].result(known.name, params)
    return answer(result_parts(result) | {"notes": opened[0].notes})


def table(arguments: Arguments, opened: Sequence[Opened], _: Settings) -> Answer:
    """Return rows of a table of an analysis."""
    result = opened[0].result(_analysis_name(arguments["analysis"]))
    made = table_of(result, arguments["table"])
    return rows_answer(made, arguments, {}, identity(result) | {"is_known": made.is_known})


def patches(arguments: Arguments, opened: Sequence[Opened], _: Settings) -> Answer:
    """Return the result of detecting patches."""
    params = {} if arguments["prices"] else {"prices": False}
    result = opened[0].result(_PATCHES, params)
    return answer(result_parts(result) | {"notes": opened[0].notes})


def patch(arguments: Arguments, _: Sequence[Opened], __: Settings) -> Answer:
    """Return the catalogue's information about a patch."""
    catalogue, wanted = load(), arguments["id"]
    if wanted not in catalogue.patches:
        near = _near(wanted, catalogue.patches)
        raise AnswerError(f"unknown patch '{printable(wanted)}'{near}")
    return answer({}, patch=patch_document(catalogue.patches[wanted], catalogue.distributions))


def diff(arguments: Arguments, opened: Sequence[Opened], _: Settings) -> Answer:
    """Return what grew between two targets, with rows of one table."""
    names = [_analysis_name(each) for each in arguments["analyses"] or analyses()]
    names = [name for name in names if all(name in each.has() for each in opened)]
    if not names:
        raise AnswerError("the two targets have no analysis in common")
    result = compare(*(each.compared(names) for each in opened))
    made = table_of(result, arguments["table"])
    return rows_answer(made, arguments, {}, result_parts(result))


def explain(arguments: Arguments, _: Sequence[Opened], __: Settings) -> Answer:
    """Return the explanation of a finding, a term, or a column."""
    word = arguments["word"]
    if not word:
        kinds = {name: each.title for name, each in explanations.kinds().items()}
        return answer({}, findings=kinds, terms=[*explanations.terms()])
    parts: dict[str, Any] = {}
    if kind := explanations.explanation(word):
        names = ("kind", "title", "means", "determined", "remedy", "terms")
        parts["finding"] = {name: getattr(kind, name) for name in names}
    if term := explanations.term(word):
        parts["term"] = {"name": term.name, "means": term.means, "see": term.see}
    columns = [
        {"analysis": name, "table": spec.name, "column": key, "help": column.help}
        for name, each in analyses().items()
        for spec in each.tables()
        for key, column in spec.columns.items()
        if word.lower() in (key, column.heading(key).lower())
    ]
    if columns:
        parts["columns"] = columns
    if not parts:
        near = _near(word.partition(":")[0], explanations.words())
        raise AnswerError(f"unknown finding or term '{printable(word)}'{near}")
    return answer({}, **parts)


def _near(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f" (did you mean '{near[0]}'?)" if near else ""


def _analysis_name(name: str) -> str:
    """Return the analysis of a name, of its tool, or of an alias."""
    known = {tool_name(each): each for each in analyses()} | {each: each for each in analyses()}
    known |= ALIASES | {_PATCHES: _PATCHES}
    if name not in known:
        choices = ", ".join([*analyses(), _PATCHES])
        raise AnswerError(f"unknown analysis '{printable(name)}' (choose from {choices})")
    return known[name]


WORKS: Mapping[str, Work] = {
    work.__name__: work
    for work in (targets, report, analysis, table, patches, patch, diff, explain, objects)
}
