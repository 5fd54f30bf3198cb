# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalogue's information about one patch, as text and as plain values."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import structs

from kcensus.catalogue import model
from kcensus.catalogue.files import Catalogue
from kcensus.catalogue.model import Distribution, Patch
from kcensus.catalogue.packages import Carried, carrier


def document(patch: Patch, distributions: Sequence[Distribution]) -> dict[str, Any]:
    """Return the patch, and its packages in all distributions, as values for :mod:`json`."""
    plain: dict[str, Any] = _plain(patch)
    del plain["file"]  # a path of this machine
    plain["packages"] = [carrier(patch, each).document() for each in distributions]
    return plain


def _plain(value: Any) -> Any:
    match value:
        case model.Probe():
            return {"kind": value.kind, "name": value.name}
        case model.Record():
            return {name: _plain(each) for name, each in structs.asdict(value).items()}
        case tuple():
            return tuple(map(_plain, value))
    return value


def story(patch: Patch, catalogue: Catalogue, width: int = 80, *, sources: bool = False) -> str:
    """Return the patch as paragraphs of at most ``width`` columns.

    :param sources: say where it is known from which packages have the patch
    """
    prose = {
        "What it does": patch.summary,
        "Symptom on a machine without it": patch.symptom,
        "What to do": patch.remedy,
    }
    lists: dict[str, Iterable[str]] = {
        "Posted": map(_posting, patch.postings),
        "Commits": (
            *map(_commit, patch.commits),
            *(("and those of its stages",) if patch.commits and patch.stages else ()),
        ),
        "Backports": (_noted(port.kernel, port.note) for port in patch.backports),
        "Packages": _packages(patch, catalogue.distributions, sources=sources),
        "Stages": (f"{stage.patch}: {stage.what}" for stage in patch.stages),
        "See also": (f"{name}: {catalogue.patches[name].title}" for name in patch.related),
        "Detection": _detection(patch),
        "Cost and saving": (
            f"{heading} {metric}: {metric.what}"
            for heading, metric in (("absence costs", patch.costs), ("presence saves", patch.saves))
            if metric
        ),
        "Validation": _validation(patch),
        "Published figures": map(_figure, patch.figures),
    }
    blocks = [patch.id, _block("", _facts(patch), 17, width)]
    blocks += [_block(title, text.split("\n\n"), 2, width) for title, text in prose.items() if text]
    blocks += [_block(title, items, 4, width) for title, items in lists.items()]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _block(heading: str, paragraphs: Iterable[str], indent: int, width: int) -> str:
    wrapper = textwrap.TextWrapper(
        width, initial_indent="  ", subsequent_indent=" " * indent, break_on_hyphens=False
    )
    lines = list(map(wrapper.fill, paragraphs))
    return "\n".join(filter(None, (heading, *lines))) if lines else ""


def _facts(patch: Patch) -> Iterator[str]:
    facts = {
        "title": patch.title,
        "subsystem": patch.subsystem,
        "status": patch.status.value,
        "mainline": f"since {patch.release}" if patch.release else "",
        "kind": "layout marker" if patch.kind is model.Kind.MARKER else "",
        "authors": ", ".join(patch.authors),
        "supersedes": ", ".join(patch.supersedes),
        "superseded by": ", ".join(patch.superseded_by),
        "fixes": ", ".join(patch.fixes),
    }
    return (f"{name:14} {value}" for name, value in facts.items() if value)


def _posting(posting: model.Posting) -> str:
    subject = f": {posting.subject}" if posting.subject else ""
    message_id = f" <{posting.message_id}>" if posting.message_id else ""
    return f"{posting.date}, {posting.where}{subject}{message_id}"


def _commit(commit: model.Commit) -> str:
    subject = f'("{commit.subject}")' if commit.hash and commit.subject else commit.subject
    release = f"in v{commit.release}" if commit.release else ""
    note = "; ".join(filter(None, (release, commit.note)))
    return _noted(f"{commit.hash} {subject}".strip(), note)


def _packages(
    patch: Patch, distributions: Sequence[Distribution], *, sources: bool
) -> Iterator[str]:
    if not patch.is_upstream:
        return
    carriers = [carrier(patch, each) for each in distributions]
    for each in carriers:
        if each.known:
            yield f"{each}. Evidence: {each.source}" if sources else str(each)
    for carried in (Carried.BASE, Carried.UNKNOWN):
        if names := ", ".join(each.name for each in carriers if each.carried is carried):
            yield f"{carried.value}: {names}"


def _noted(text: str, note: str) -> str:
    return f"{text} ({note})" if note else text


def _detection(patch: Patch) -> Iterator[str]:
    yield from map(_rule, patch.detection.rules)
    undetectable = patch.detection.undetectable
    if patch.stages:
        yield "by its stages"
    elif undetectable:
        yield f"not from types: {undetectable.reason}; best evidence: {undetectable.evidence}"
        for evidence in undetectable.shown_by:
            figure = f"{evidence.metric} is at least {_number(evidence.at_least)}"
            yield f"{evidence.state.value} if {figure}: {evidence.why}"
    else:
        yield "otherwise absent"
    if patch.detection.modules:
        yield f"needs the debug info of {', '.join(patch.detection.modules)}"


def _rule(rule: model.Rule) -> str:
    conditions = [f"{probe} exists" for probe in rule.has]
    conditions += [f"{probe} does not exist" for probe in rule.lacks]
    return _noted(f"{rule.state.value} if {' and '.join(conditions)}", rule.why)


def _validation(patch: Patch) -> Iterator[str]:
    for validation, option in ((patch.validation, ""), (patch.trace_validation, " --traces")):
        if validation is None:
            continue
        command = f"kcensus validate {patch.id} BEFORE AFTER{option}"
        yield f"{command}: {validation.metric} must be smaller after"
        for workload in validation.workload:
            yield f"needs on both: at least {_number(workload.at_least)} {workload.metric.what}"
        if validation.predicted:
            yield f"predicted from BEFORE by {validation.predicted}: {validation.predicted.what}"
        if validation.scheduler:
            yield f"needs on both: the scheduler {validation.scheduler}"
        if validation.switch:
            yield f"both targets may have the patch if {validation.switch} is larger before"


def _figure(figure: model.PublishedFigure) -> str:
    bound = "" if figure.bound is model.Bound.EXACT else f"{figure.bound.value} "
    to = "" if figure.to is None else f" to {_number(figure.to)}"
    unit = {"percent": "%", "count": ""}.get(figure.unit, f" {figure.unit}")
    given = ", ".join(f"{name} {_number(value)}" for name, value in figure.given.items())
    text = f"{figure.moment.value}: {figure.what}: {bound}{_number(figure.value)}{to}{unit}"
    return _noted(text, given)


def _number(value: float) -> str:
    """Return a number with three digits, or all digits before the point; JSON has the others."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"
