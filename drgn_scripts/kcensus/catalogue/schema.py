# SPDX-License-Identifier: LGPL-2.1-or-later
"""The schema of catalogue files: from TOML to a :class:`~kcensus.catalogue.model.Patch`.

The dataclasses of :mod:`~kcensus.catalogue.model` are the schema: each field is a key, its type
hint says what to expect, and a field without a default is required. A catalogue file may come from
anywhere, so its size and all values are limited. Every error names the file and the key.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import math
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args, get_origin, get_type_hints

from kcensus.catalogue.model import (
    UNITS,
    Commit,
    Detection,
    FindingRule,
    Patch,
    Probe,
    ProbeKind,
    PublishedFigure,
    Rule,
    State,
    Validation,
)
from kcensus.text import printable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_FILE_BYTES = 1 << 18
_MAX_TEXT = 8192
_MAX_ITEMS = 512
_MAX_NUMBER = 1 << 63
_MAX_QUOTED = 80
"""Characters of a value that an error message repeats."""


class CatalogueError(Exception):
    """A catalogue file is unusable; the text is one printable sentence with file and key."""


class _Form(NamedTuple):
    """What a text must look like."""

    pattern: str
    description: str


_IDENTIFIER = r"[A-Za-z_]\w*"
_ID = _Form(r"[a-z0-9]+(-[a-z0-9]+)*", "an id such as 'cfq-removal'")
_HASH = _Form(r"[0-9a-f]{8,40}", "a commit hash of 8 to 40 hexadecimal digits")
_RELEASE = _Form(r"\d+\.\d+", "a release such as '5.18'")
_DATE = _Form(r"\d{4}(-\d\d(-\d\d)?)?", "a date such as '2021', '2021-09' or '2021-09-14'")
_NAME = _Form(_IDENTIFIER, "a C identifier")
_KEY = _Form(r"[a-z][a-z0-9_]*", "a key such as 'slab_bytes'")
_PROBES = {
    ProbeKind.TYPE: _Form(rf"((struct|union|enum) )?{_IDENTIFIER}", "a type such as 'struct page'"),
    ProbeKind.MEMBER: _Form(
        rf"((struct|union) )?{_IDENTIFIER}(\.{_IDENTIFIER})+",
        "a member such as 'struct slab.stride'",
    ),
    ProbeKind.SYMBOL: _NAME,
    ProbeKind.ENUMERATOR: _NAME,
    ProbeKind.PARAMETER: _Form(rf"{_IDENTIFIER}\.{_IDENTIFIER}", "a parameter, 'module.name'"),
}
_SEVERITIES = ("info", "notice", "warning", "critical")


@dataclass(frozen=True)
class _Place:
    """A file and the path of a key in it."""

    file: str
    path: str = ""

    def at(self, key: str | int) -> _Place:
        if isinstance(key, int):
            return _Place(self.file, f"{self.path}[{key}]")
        return _Place(self.file, f"{self.path}.{key}" if self.path else key)

    def error(self, problem: str) -> CatalogueError:
        return CatalogueError(printable(": ".join(filter(None, (self.file, self.path, problem)))))


_Reader = Callable[[_Place, Any], Any]
"""Converts one TOML value, or raises a :class:`CatalogueError`."""
_Problem = tuple[str, str]
"""A key and what is wrong with its value."""

_TYPES: Mapping[type, str] = {
    str: "text",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    dict: "a table",
    list: "a list",
}


def _expect(place: _Place, value: Any, *kinds: type) -> None:
    # isinstance() takes a bool for an int.
    if type(value) in kinds:
        return
    # Converting a huge int to decimal raises ValueError.
    is_short = type(value) is not int or abs(value) < _MAX_NUMBER
    shown = (
        f"{str(value)[:_MAX_QUOTED]!r} " if is_short and type(value) in (str, int, float) else ""
    )
    kind = _TYPES.get(type(value), "a date or time")
    raise place.error(f"{shown}is {kind}; it must be {_TYPES[kinds[0]]}")


def _text(form: _Form | None = None) -> _Reader:
    def read(place: _Place, value: Any) -> str:
        _expect(place, value, str)
        if not value.strip():
            raise place.error("is empty")
        if len(value) > _MAX_TEXT:
            raise place.error(f"is longer than {_MAX_TEXT} characters")
        # Join the lines of each paragraph.
        paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", value.strip())]
        if not all(map(str.isprintable, paragraphs)):
            raise place.error("contains unprintable characters")
        text = "\n\n".join(paragraphs)
        if form and not re.fullmatch(form.pattern, text):
            raise place.error(f"{text[:_MAX_QUOTED]!r} is not {form.description}")
        return text

    return read


def _choice(known: Mapping[str, Any]) -> _Reader:
    def read(place: _Place, value: Any) -> Any:
        text = _text()(place, value)
        if text not in known:
            choices = ", ".join(known)
            raise place.error(f"{text[:_MAX_QUOTED]!r} is unknown (choose from {choices})")
        return known[text]

    return read


def _number(place: _Place, value: Any) -> float:
    _expect(place, value, int, float)
    # Compare first: float() of a huge int raises OverflowError.
    if not (abs(value) < _MAX_NUMBER and math.isfinite(value)):
        raise place.error("must be a finite number between -2**63 and 2**63")
    return float(value)


def _numbers(place: _Place, value: Any) -> dict[str, float]:
    _expect(place, value, dict)
    return {
        _text(_KEY)(place.at(name[:_MAX_QUOTED]), name): _number(
            place.at(name[:_MAX_QUOTED]), number
        )
        for name, number in value.items()
    }


def _list(read_item: _Reader, *, unique: bool = False) -> _Reader:
    def read(place: _Place, value: Any) -> tuple[Any, ...]:
        _expect(place, value, list)
        if len(value) > _MAX_ITEMS:
            raise place.error(f"has more than {_MAX_ITEMS} items")
        items = tuple(read_item(place.at(index), item) for index, item in enumerate(value))
        if unique and (twice := _first_repeated(items)):
            raise place.error(f"{twice!r} is listed twice")
        return items

    return read


def _first_repeated(names: Sequence[str]) -> str:
    return next((name for index, name in enumerate(names) if name in names[:index]), "")


_KEYS = {"postings": "posted", "detection": "detect", "validation": "validate"}
"""Keys that differ from the field they set in more than dashes."""
_FORMS: Mapping[str, _Form] = {
    **dict.fromkeys(("id", "analysis", "by", "claim", "name", "patch", "run"), _ID),
    **dict.fromkeys(("supersedes", "superseded_by", "fixes", "related"), _ID),
    **dict.fromkeys(("modules", "switch"), _NAME),
    **dict.fromkeys(("key", "minus"), _KEY),
    "date": _DATE,
    "hash": _HASH,
    "release": _RELEASE,
}
"""By name of the field, for texts and lists of texts."""
_CHOICES = {"severity": _SEVERITIES, "unit": tuple(UNITS)}
_REQUIRED = ("what",)
"""Fields whose keys are required although they have a default."""


def _reader(field: str, hint: Any) -> _Reader:
    """Return the reader for a field of a dataclass with this type hint."""
    if isinstance(hint, types.UnionType):  # with None, the default of an absent key
        (hint,) = (other for other in hint.__args__ if other is not types.NoneType)
    if field in _CHOICES:
        return _choice({name: name for name in _CHOICES[field]})
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        item = arguments[0]
        read_item = _record(item, ("patch",)) if item is FindingRule else _reader(field, item)
        return _list(read_item, unique=item is str or issubclass(item, enum.Enum))
    if hint is Probe:
        return _probe
    if hint is str:
        return _text(_FORMS.get(field))
    if hint is float:
        return _number
    if origin is Mapping:
        return _numbers
    if issubclass(hint, enum.Enum):
        return _choice({member.value: member for member in hint})
    return _record(hint)


def _record(cls: type[Any], without: tuple[str, ...] = ()) -> _Reader:
    """Return a reader of tables whose keys are the fields of a dataclass.

    :param without: fields that have no key
    """
    hints = get_type_hints(cls)
    fields = {
        _KEYS.get(field.name, field.name.replace("_", "-")): field
        for field in dataclasses.fields(cls)
        if field.name not in without
    }
    readers = {key: _reader(field.name, hints[field.name]) for key, field in fields.items()}
    required = [
        key
        for key, field in fields.items()
        if field.name in _REQUIRED or field.default is field.default_factory is dataclasses.MISSING
    ]

    def read(place: _Place, table: Any) -> Any:
        _expect(place, table, dict)
        for key in table:
            if key not in fields:
                near = difflib.get_close_matches(key, fields, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(fields)}"
                raise place.at(key[:_MAX_QUOTED]).error(f"unknown key ({hint})")
        values = {}
        for key, field in fields.items():
            if key in table:
                values[field.name] = readers[key](place.at(key), table[key])
            elif key in required:
                raise place.at(key).error("is missing")
        record = cls(**values)
        for key, problem in _CHECKS.get(cls, lambda _: ())(record):
            raise (place.at(key) if key else place).error(problem)
        return record

    return read


def _probe(place: _Place, table: Any) -> Probe:
    _expect(place, table, dict)
    kinds = {kind.value: kind for kind in ProbeKind}
    if len(table) != 1 or not set(table) <= set(kinds):
        raise place.error(f"must have exactly one key (choose from {', '.join(kinds)})")
    ((key, name),) = table.items()
    return Probe(kinds[key], _text(_PROBES[kinds[key]])(place.at(key), name))


def _check_commit(commit: Commit) -> Iterator[_Problem]:
    if not commit.subject and not commit.hash:
        yield "", "needs a subject or a hash"


def _check_rule(rule: Rule) -> Iterator[_Problem]:
    if rule.state is State.PARTIALLY_APPLIED:
        yield "state", f"{rule.state.value!r} is only for a series with stages"
    if not rule.has and not rule.lacks:
        yield "has", "is missing: a rule needs a probe in has or lacks"
    if (rule.state is State.SUPERSEDED) != bool(rule.by):
        yield "by", "is required for the state superseded, and only for it"
    if rule.state is State.UNDETERMINED and not rule.why:
        yield "why", "is missing: say why the state is undetermined"


def _check_detection(detection: Detection) -> Iterator[_Problem]:
    if not detection.rules and detection.undetectable is None:
        yield "rules", "is missing: add rules or [detect.undetectable]"


def _check_validation(validation: Validation) -> Iterator[_Problem]:
    if not validation.workload:
        yield "workload", "is empty: a pair needs a figure of its workload"


def _check_figure(figure: PublishedFigure) -> Iterator[_Problem]:
    if figure.to is not None and figure.to <= figure.value:
        yield "to", f"'{figure.to:g}' must be above value, {figure.value:g}"


def _check_finding(rule: FindingRule) -> Iterator[_Problem]:
    if rule.at_least is None and rule.at_most is None:
        yield "at-least", "is missing: a rule needs at-least or at-most"
    if re.search("[{}]", rule.title.replace("{value}", "")):
        yield "title", "must not contain braces other than {value}"


def _check_patch(patch: Patch) -> Iterator[_Problem]:
    if patch.stages and patch.detection != Detection():
        yield "detect", "must be left out: a series is detected by its stages"
    if not patch.stages and patch.detection == Detection():
        yield "detect", "is missing: without rules, add [detect.undetectable]"
    claim = patch.validation.claim if patch.validation else ""
    if claim and claim not in {figure.run for figure in patch.figures}:
        yield "validate.claim", f"{claim!r} is not the run of any published figure"
    if twice := _first_repeated([figure.name for figure in patch.figures]):
        yield "figures", f"the name {twice!r} is used twice"


_CHECKS: Mapping[type, Callable[[Any], Iterable[_Problem]]] = {
    Commit: _check_commit,
    Rule: _check_rule,
    Detection: _check_detection,
    Validation: _check_validation,
    PublishedFigure: _check_figure,
    FindingRule: _check_finding,
    Patch: _check_patch,
}
# The rules of a patch file are about that patch; elsewhere they name one.
_PATCH = _record(Patch, without=("file",))
_RULES = _list(_record(FindingRule))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    :raises CatalogueError: the file cannot be read, is too large, or is not TOML
    """
    place = _Place(str(path))
    try:
        if not path.is_file():
            raise place.error("is not a file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise place.error(f"cannot be read ({error.strerror or error})") from None
    if len(data) > MAX_FILE_BYTES:
        raise place.error(f"is larger than {MAX_FILE_BYTES >> 10} KiB")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise place.error("is not UTF-8 text") from None
    except RecursionError:
        raise place.error("is nested too deeply") from None
    except ValueError as error:  # includes TOMLDecodeError
        raise place.error(f"is not TOML: {printable(str(error))[:200]}") from None


def read_file(path: Path) -> Patch | tuple[FindingRule, ...]:
    """Return the patch of a file, or the rules of a file that has only ``[[rules]]``.

    :raises CatalogueError: see :func:`read_toml`; or the file violates the schema
    """
    table, place = read_toml(path), _Place(str(path))
    if set(table) == {"rules"}:
        return cast(tuple[FindingRule, ...], _RULES(place.at("rules"), table["rules"]))
    patch: Patch = _PATCH(place, table)
    if patch.id != path.stem:
        raise place.at("id").error(f"{patch.id!r} must be the name of the file, {path.stem!r}")
    rules = tuple(dataclasses.replace(rule, patch=patch.id) for rule in patch.rules)
    return dataclasses.replace(patch, file=str(path), rules=rules)


def check_references(
    patches: Mapping[str, Patch], rules: Sequence[tuple[str, FindingRule]]
) -> None:
    """Check that every id that a file names exists and that no series contains itself or another.

    :param rules: each with the file that contains it

    :raises CatalogueError: with the file and the key of the first violation
    """
    for patch in patches.values():
        place = _Place(patch.file)
        references = {
            "supersedes": patch.supersedes,
            "superseded-by": patch.superseded_by,
            "fixes": patch.fixes,
            "related": patch.related,
            "stages": [stage.patch for stage in patch.stages],
            "detect.rules": [rule.by for rule in patch.detection.rules if rule.by],
        }
        for key, identifiers in references.items():
            for identifier in identifiers:
                if identifier not in patches:
                    raise place.at(key).error(f"unknown patch {identifier!r}")
                if identifier == patch.id:
                    raise place.at(key).error(f"{identifier!r} refers to itself")
                if key == "stages" and patches[identifier].stages:
                    raise place.at(key).error(f"{identifier!r} is a series itself")
    for file, rule in rules:
        if rule.patch and rule.patch not in patches:
            raise _Place(file).at("rules.patch").error(f"unknown patch {rule.patch!r}")
