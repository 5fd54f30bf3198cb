# SPDX-License-Identifier: LGPL-2.1-or-later
"""All that the catalogue knows about one patch, for a reader and for programs."""

from __future__ import annotations

import dataclasses
import enum
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kcensus.patches.model import Bound, Commit, Metric, Patch, Posting, PublishedFigure, Rule


def document(patch: Patch) -> dict[str, Any]:
    """The patch as plain values: for JSON."""
    plain = _plain(patch)
    assert isinstance(plain, dict)
    del plain["file"]  # where it lies on one machine
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (tuple, list)) else value


def story(patch: Patch, patches: Mapping[str, Patch], width: int = 80) -> str:
    """The patch told in paragraphs of ``width`` columns."""
    sections = [
        _facts(patch),
        _prose("What it does", patch.summary),
        _prose("What a machine without it shows", patch.symptom),
        _prose("What to do", patch.remedy),
        _list("Posted", map(_posting, patch.postings)),
        _list("Commits", map(_commit, patch.commits)),
        _list("Kernels that have it earlier", (_noted(b.kernel, b.note) for b in patch.backports)),
        _list("Stages", (f"{one.patch}: {one.what}" for one in patch.stages)),
        _list("See also", (f"{name}: {patches[name].title}" for name in patch.related)),
        _list("How it is told", _detection(patch)),
        _list("What it costs or saves is", _metrics(patch)),
        _list("How a pair of dumps shows it", _validation(patch)),
        _list("Published figures", map(_figure, patch.figures)),
    ]
    lines = [f"{patch.id}", ""]
    for heading, paragraphs, indent in sections:
        if paragraphs:
            lines += [heading] if heading else []
            for paragraph in paragraphs:
                lines += textwrap.wrap(
                    paragraph,
                    width,
                    initial_indent="  ",
                    subsequent_indent=" " * indent,
                    break_on_hyphens=False,
                )
            lines.append("")
    return "\n".join(lines[:-1]) + "\n"


_Section = tuple[str, Sequence[str], int]


def _prose(heading: str, text: str) -> _Section:
    return heading, text.split("\n\n") if text else [], 2


def _list(heading: str, items: Iterator[str] | Sequence[str] | map[str]) -> _Section:
    return heading, list(items), 4


def _facts(patch: Patch) -> _Section:
    facts = {
        "title": patch.title,
        "subsystem": patch.subsystem,
        "status": patch.status.value,
        "mainline": f"since {patch.release}" if patch.release else "",
        "authors": ", ".join(patch.authors),
        "supersedes": ", ".join(patch.supersedes),
        "superseded by": ", ".join(patch.superseded_by),
        "fixes": ", ".join(patch.fixes),
    }
    return "", [f"{name:14} {value}" for name, value in facts.items() if value], 17


def _posting(posting: Posting) -> str:
    words = f"{posting.date}, {posting.where}"
    if posting.subject:
        words += f": {posting.subject}"
    return f"{words} <{posting.message_id}>" if posting.message_id else words


def _commit(commit: Commit) -> str:
    words = " ".join(part for part in (commit.hash, commit.subject) if part)
    release = f"since {commit.release}" if commit.release else ""
    return _noted(words, "; ".join(part for part in (release, commit.note) if part))


def _noted(words: str, note: str) -> str:
    return f"{words} ({note})" if note else words


def _detection(patch: Patch) -> list[str]:
    lines = [_rule(rule) for rule in patch.detection.rules]
    if patch.stages:
        lines.append("by its stages")
    undetectable = patch.detection.undetectable
    if undetectable:
        lines.append(f"not from types: {undetectable.reason}. Evidence: {undetectable.evidence}")
    elif lines and not patch.stages:
        lines.append("otherwise absent")
    if patch.detection.modules:
        lines.append(f"with the debug info of {', '.join(patch.detection.modules)}")
    return lines


def _rule(rule: Rule) -> str:
    conditions = [f"there is {probe}" for probe in rule.has]
    conditions += [f"there is no {probe}" for probe in rule.lacks]
    text = f"{rule.state.value} if {' and '.join(conditions)}"
    return _noted(text, rule.why)


def _metrics(patch: Patch) -> Iterator[str]:
    for word, metric in (("costs", patch.costs), ("saves", patch.saves)):
        if isinstance(metric, Metric):
            yield f"{word} {metric}: {metric.what}"


def _validation(patch: Patch) -> Iterator[str]:
    validation = patch.validation
    if validation is None:
        return
    yield f"kcensus validate {patch.id} BEFORE AFTER: less of {validation.metric}"
    for one in validation.workload:
        yield f"with the same load: at least {number(one.at_least)} {one.metric.what}"
    if validation.switch:
        yield f"or with the patch on both sides, and a larger {validation.switch} before"


def _figure(figure: PublishedFigure) -> str:
    bound = "" if figure.bound is Bound.EXACT else f"{figure.bound.value} "
    value = number(figure.value)
    if figure.to is not None:
        value += f" to {number(figure.to)}"
    unit = {"percent": "%", "count": ""}.get(figure.unit, f" {figure.unit}")
    given = ", ".join(f"{name} {number(one)}" for name, one in figure.given.items())
    return _noted(f"{figure.moment.value}: {figure.what}: {bound}{value}{unit}", given)


def number(value: float) -> str:
    """A number as it was published: whole numbers without a fraction."""
    return f"{int(value):,}" if value == int(value) else f"{value:,}"
