# SPDX-License-Identifier: LGPL-2.1-or-later
"""From a file to a :class:`~kcensus.patches.model.Patch`, or one sentence that says why not.

A catalogue file may come from anywhere: it is data, limited in size, and everything in it must be
expected. Whatever is wrong is reported with the file and the key.
"""

from __future__ import annotations

import difflib
import enum
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kcensus.patches.model import (
    UNITS,
    Backport,
    Bound,
    Commit,
    Detection,
    FindingRule,
    Metric,
    Moment,
    Patch,
    Posting,
    Probe,
    ProbeKind,
    PublishedFigure,
    Rule,
    Stage,
    State,
    Status,
    Undetectable,
    Validation,
    Workload,
)
from kcensus.text import printable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_BYTES = 1 << 18
"""Of one file; the longest of ours has a tenth of that."""
_MOST_TEXT = 8192
_MOST_ITEMS = 512

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_HASH = re.compile(r"[0-9a-f]{8,40}")
_RELEASE = re.compile(r"\d+\.\d+")
_DATE = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")
_NAME = re.compile(r"[A-Za-z_]\w*")
_KEY = re.compile(r"[a-z][a-z0-9_]*")
_PROBES = {
    ProbeKind.TYPE: re.compile(r"((struct|union|enum) )?[A-Za-z_]\w*"),
    ProbeKind.MEMBER: re.compile(r"((struct|union) )?[A-Za-z_]\w*(\.[A-Za-z_]\w*)+"),
    ProbeKind.SYMBOL: _NAME,
    ProbeKind.ENUMERATOR: _NAME,
    ProbeKind.PARAMETER: re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*"),
}
_SEVERITIES = ("info", "notice", "warning", "critical")

_Enum = TypeVar("_Enum", bound=enum.Enum)


class CatalogueError(Exception):
    """A catalogue file is unusable; the text is one printable sentence with file and key."""


_WORDS: Mapping[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    dict: "a table",
    list: "a list",
}


def _kind(value: object) -> str:
    return _WORDS.get(type(value), "a date or time")


class _Table:
    """A table of a TOML file, read key by key; :meth:`end` refuses what nobody asked for."""

    def __init__(self, file: str, values: Mapping[str, Any], path: str = "") -> None:
        self.file = file
        self.path = path
        self._values = values
        self._asked: list[str] = []

    def error(self, key: str, problem: str) -> CatalogueError:
        where = f"{self.path}.{key}" if self.path and key else self.path or key
        return CatalogueError(printable(f"{self.file}: {where}: {problem}"))

    def _get(self, key: str, *kinds: type) -> Any:
        self._asked.append(key)
        value = self._values.get(key)
        if value is not None and type(value) not in kinds:
            raise self.error(key, f"must be {_WORDS[kinds[0]]}, not {_kind(value)}")
        return value

    def need(self, key: str) -> None:
        if key not in self._values:
            raise self.error(key, "is missing")

    def _checked(self, key: str, value: str, pattern: re.Pattern[str] | None) -> str:
        if len(value) > _MOST_TEXT:
            raise self.error(key, f"is longer than {_MOST_TEXT} characters")
        # Lines of a paragraph are joined, paragraphs stay apart.
        paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", value.strip()))
        text = "\n\n".join(paragraphs)
        if any(not part.isprintable() for part in text.split("\n\n")):
            raise self.error(key, "has characters that cannot be printed")
        if pattern is not None and not pattern.fullmatch(text):
            raise self.error(key, f"{text[:80]!r} is not of the form {pattern.pattern}")
        return text

    def text(
        self, key: str, *, required: bool = False, pattern: re.Pattern[str] | None = None
    ) -> str:
        if required:
            self.need(key)
        value = self._get(key, str)
        if value is None:
            return ""
        if not value.strip():
            raise self.error(key, "is empty")
        return self._checked(key, value, pattern)

    def texts(self, key: str, pattern: re.Pattern[str] | None = None) -> tuple[str, ...]:
        found = []
        for at, value in enumerate(self._items(key)):
            if type(value) is not str:
                raise self.error(f"{key}[{at}]", f"must be text, not {_kind(value)}")
            found.append(self._checked(f"{key}[{at}]", value, pattern))
        if len(set(found)) < len(found):
            raise self.error(key, "names something twice")
        return tuple(found)

    def choice(self, key: str, kind: type[_Enum], default: _Enum | None = None) -> _Enum:
        if default is None:
            self.need(key)
        value = self._get(key, str)
        if value is None and default is not None:
            return default
        return self._one_of(key, value, kind)

    def choices(self, key: str, kind: type[_Enum], default: tuple[_Enum, ...]) -> tuple[_Enum, ...]:
        texts = self.texts(key)
        return tuple(self._one_of(key, text, kind) for text in texts) or default

    def _one_of(self, key: str, value: str, kind: type[_Enum]) -> _Enum:
        known = {one.value: one for one in kind}
        if value not in known:
            raise self.error(key, f"{value[:80]!r} is none of: {', '.join(known)}")
        return known[value]

    def number(self, key: str, *, required: bool = False) -> float | None:
        if required:
            self.need(key)
        value = self._get(key, int, float)
        # Compared first: a whole number of hundreds of digits is no float.
        if value is not None and not (abs(value) < 1 << 63 and math.isfinite(value)):
            raise self.error(key, "is not a number that anything here could be")
        return None if value is None else float(value)

    def numbers(self, key: str) -> dict[str, float]:
        table = self.table(key)
        if table is None:
            return {}
        found = {}
        for name in table._values:
            if not _KEY.fullmatch(name):
                raise table.error(name, f"is not of the form {_KEY.pattern}")
            value = table.number(name)
            assert value is not None
            found[name] = value
        return found

    def table(self, key: str) -> _Table | None:
        value = self._get(key, dict)
        return None if value is None else _Table(self.file, value, self._under(key))

    def tables(self, key: str) -> list[_Table]:
        tables = []
        for at, value in enumerate(self._items(key)):
            where = f"{key}[{at}]"
            if type(value) is not dict:
                raise self.error(where, f"must be a table, not {_kind(value)}")
            tables.append(_Table(self.file, value, self._under(where)))
        return tables

    def _items(self, key: str) -> list[Any]:
        values = self._get(key, list)
        if values is not None and len(values) > _MOST_ITEMS:
            raise self.error(key, f"has more than {_MOST_ITEMS} items")
        return values or []

    def _under(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def end(self) -> None:
        for key in self._values:
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, 1)
                hint = f"; is {near[0]} meant?" if near else ""
                raise self.error(key[:80], f"nothing is known of that name{hint}")


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    :raises CatalogueError: it cannot be read, is too large, or is no TOML
    """
    name = printable(str(path))
    try:
        if not path.is_file():
            raise CatalogueError(f"{name}: is not a file")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise CatalogueError(f"{name}: cannot be read ({error.strerror or error})") from None
    if len(data) > MOST_BYTES:
        raise CatalogueError(f"{name}: is larger than {MOST_BYTES >> 10} KiB")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise CatalogueError(f"{name}: is not UTF-8 text") from None
    except RecursionError:
        raise CatalogueError(f"{name}: is nested too deeply") from None
    except ValueError as error:  # includes TOMLDecodeError
        raise CatalogueError(f"{name}: is not TOML: {printable(str(error))[:200]}") from None


def read_file(path: Path) -> Patch | tuple[FindingRule, ...]:
    """A patch file, or a file that has nothing but ``[[rules]]``.

    :raises CatalogueError: see :func:`read_toml`; or it does not say what is expected
    """
    table = _Table(str(path), read_toml(path))
    if "id" not in table._values and "rules" in table._values:
        rules = tuple(_finding_rule(one, None) for one in table.tables("rules"))
        table.end()
        return rules
    return _patch(table, path.stem)


def _patch(table: _Table, stem: str) -> Patch:
    identifier = table.text("id", required=True, pattern=_ID)
    if identifier != stem:
        raise table.error("id", f"{identifier!r} must be the name of the file, {stem!r}")
    patch = Patch(
        id=identifier,
        title=table.text("title", required=True),
        subsystem=table.text("subsystem", required=True),
        status=table.choice("status", Status),
        summary=table.text("summary", required=True),
        symptom=table.text("symptom", required=True),
        file=table.file,
        authors=table.texts("authors"),
        postings=tuple(map(_posting, table.tables("posted"))),
        release=table.text("release", pattern=_RELEASE),
        commits=tuple(map(_commit, table.tables("commits"))),
        backports=tuple(map(_backport, table.tables("backports"))),
        supersedes=table.texts("supersedes", _ID),
        superseded_by=table.texts("superseded-by", _ID),
        fixes=table.texts("fixes", _ID),
        related=table.texts("related", _ID),
        stages=tuple(map(_stage, table.tables("stages"))),
        detection=_detection(table.table("detect")),
        costs=_metric(table.table("costs")),
        saves=_metric(table.table("saves")),
        validation=_validation(table.table("validate")),
        figures=tuple(map(_figure, table.tables("figures"))),
        rules=tuple(_finding_rule(one, identifier) for one in table.tables("rules")),
        remedy=table.text("remedy"),
    )
    table.end()
    if patch.stages and patch.detection != Detection():
        raise table.error("detect", "a series is detected by its stages")
    if not patch.stages and patch.detection == Detection():
        raise table.error("detect", "is missing: without rules, [detect.undetectable] says why")
    claim = patch.validation.claim if patch.validation else ""
    if claim and claim not in {figure.run for figure in patch.figures}:
        raise table.error("validate.claim", f"no published figure is of the run {claim!r}")
    names = [figure.name for figure in patch.figures]
    if len(set(names)) < len(names):
        raise table.error("figures", "two have the same name")
    return patch


def _posting(table: _Table) -> Posting:
    posting = Posting(
        date=table.text("date", required=True, pattern=_DATE),
        where=table.text("where", required=True),
        subject=table.text("subject"),
        message_id=table.text("message-id"),
    )
    table.end()
    return posting


def _commit(table: _Table) -> Commit:
    commit = Commit(
        subject=table.text("subject"),
        hash=table.text("hash", pattern=_HASH),
        release=table.text("release", pattern=_RELEASE),
        note=table.text("note"),
    )
    table.end()
    if not commit.subject and not commit.hash:
        raise table.error("", "has neither subject nor hash")
    return commit


def _backport(table: _Table) -> Backport:
    backport = Backport(table.text("kernel", required=True), table.text("note"))
    table.end()
    return backport


def _stage(table: _Table) -> Stage:
    stage = Stage(
        table.text("patch", required=True, pattern=_ID), table.text("what", required=True)
    )
    table.end()
    return stage


def _detection(table: _Table | None) -> Detection:
    if table is None:
        return Detection()
    detection = Detection(
        rules=tuple(map(_rule, table.tables("rules"))),
        modules=table.texts("modules", _NAME),
        undetectable=_undetectable(table.table("undetectable")),
    )
    table.end()
    if not detection.rules and detection.undetectable is None:
        raise table.error("rules", "is missing, and there is no [detect.undetectable] either")
    return detection


def _rule(table: _Table) -> Rule:
    rule = Rule(
        state=table.choice("state", State),
        has=_probes(table, "has"),
        lacks=_probes(table, "lacks"),
        why=table.text("why"),
        by=table.text("by", pattern=_ID),
    )
    table.end()
    if rule.state is State.PARTLY:
        raise table.error("state", "only a series with stages is there in part")
    if not rule.has and not rule.lacks:
        raise table.error("has", "a rule asks for something, in has or in lacks")
    if (rule.state is State.SUPERSEDED) != bool(rule.by):
        raise table.error("by", "belongs to the state superseded, and to no other")
    if rule.state is State.UNKNOWN and not rule.why:
        raise table.error("why", "is missing: a reader wants to know why it cannot be told")
    return rule


def _probes(table: _Table, key: str) -> tuple[Probe, ...]:
    return tuple(map(_probe, table.tables(key)))


def _probe(table: _Table) -> Probe:
    given = [kind for kind in ProbeKind if kind.value in table._values]
    if len(given) != 1:
        known = ", ".join(kind.value for kind in ProbeKind)
        raise table.error("", f"must ask for exactly one of: {known}")
    (kind,) = given
    probe = Probe(kind, table.text(kind.value, required=True, pattern=_PROBES[kind]))
    table.end()
    return probe


def _undetectable(table: _Table | None) -> Undetectable | None:
    if table is None:
        return None
    undetectable = Undetectable(
        reason=table.text("reason", required=True),
        evidence=table.text("evidence", required=True),
        carriers=table.texts("carriers"),
    )
    table.end()
    return undetectable


def _metric(table: _Table | None) -> Metric | None:
    if table is None:
        return None
    metric = Metric(
        analysis=table.text("analysis", required=True, pattern=_ID),
        key=table.text("key", required=True, pattern=_KEY),
        minus=table.text("minus", pattern=_KEY),
        what=table.text("what", required=True),
    )
    table.end()
    return metric


def _validation(table: _Table | None) -> Validation | None:
    if table is None:
        return None
    metric = _metric(table.table("metric"))
    symptom = table.number("symptom-at-least", required=True)
    if metric is None or symptom is None:
        raise table.error("metric", "is missing")
    validation = Validation(
        metric=metric,
        symptom_at_least=symptom,
        workload=tuple(map(_workload, table.tables("workload"))),
        predicted=_metric(table.table("predicted")),
        claim=table.text("claim", pattern=_ID),
        switch=table.text("switch", pattern=_NAME),
    )
    table.end()
    if not validation.workload:
        raise table.error("workload", "is missing: how else could a pair be told to be alike?")
    return validation


def _workload(table: _Table) -> Workload:
    metric = _metric(table.table("metric"))
    within = table.number("within", required=True)
    at_least = table.number("at-least", required=True)
    if metric is None or within is None or at_least is None:
        raise table.error("metric", "is missing")
    table.end()
    return Workload(metric, within, at_least)


def _figure(table: _Table) -> PublishedFigure:
    value = table.number("value", required=True)
    assert value is not None
    figure = PublishedFigure(
        name=table.text("name", required=True, pattern=_ID),
        what=table.text("what", required=True),
        value=value,
        unit=table.text("unit", required=True),
        to=table.number("to"),
        bound=table.choice("bound", Bound, Bound.EXACT),
        moment=table.choice("moment", Moment, Moment.OBSERVED),
        run=table.text("run", pattern=_ID),
        given=table.numbers("given"),
    )
    table.end()
    if figure.unit not in UNITS:
        raise table.error("unit", f"{figure.unit[:80]!r} is none of: {', '.join(UNITS)}")
    if figure.to is not None and figure.to <= figure.value:
        raise table.error("to", "must be above value")
    return figure


def _finding_rule(table: _Table, patch: str | None) -> FindingRule:
    metric = _metric(table.table("metric"))
    if metric is None:
        raise table.error("metric", "is missing")
    severity = table.text("severity", required=True)
    if severity not in _SEVERITIES:
        raise table.error("severity", f"{severity[:80]!r} is none of: {', '.join(_SEVERITIES)}")
    rule = FindingRule(
        severity=severity,
        title=table.text("title", required=True),
        metric=metric,
        patch=table.text("patch", pattern=_ID) if patch is None else patch,
        states=table.choices("states", State, (State.ABSENT, State.PARTLY)),
        at_least=table.number("at-least"),
        at_most=table.number("at-most"),
        evidence=table.text("evidence"),
        remedy=table.text("remedy"),
    )
    table.end()
    if rule.at_least is None and rule.at_most is None:
        raise table.error("at-least", "is missing, and there is no at-most either")
    braces = set(re.findall(r"[{}]|\{\w*\}", rule.title.replace("{value}", "")))
    if braces:
        raise table.error("title", "may have no braces but those of {value}")
    return rule


def check_references(
    patches: Mapping[str, Patch], rules: Sequence[tuple[str, FindingRule]]
) -> None:
    """Every id that a file names must be in the catalogue, and a series no part of itself.

    :param rules: each with the file that it stands in

    :raises CatalogueError: with the file and the key of the first that is not
    """
    for patch in patches.values():
        named = {
            "supersedes": patch.supersedes,
            "superseded-by": patch.superseded_by,
            "fixes": patch.fixes,
            "related": patch.related,
            "stages": tuple(stage.patch for stage in patch.stages),
            "detect.rules": tuple(rule.by for rule in patch.detection.rules if rule.by),
        }
        for key, identifiers in named.items():
            for identifier in identifiers:
                if identifier not in patches or identifier == patch.id:
                    problem = "itself" if identifier == patch.id else f"unknown {identifier!r}"
                    raise CatalogueError(printable(f"{patch.file}: {key}: names {problem}"))
                if key == "stages" and patches[identifier].stages:
                    raise CatalogueError(
                        printable(f"{patch.file}: {key}: {identifier!r} is a series, too")
                    )
    for file, rule in rules:
        if rule.patch and rule.patch not in patches:
            raise CatalogueError(printable(f"{file}: rules: patch: names unknown {rule.patch!r}"))
