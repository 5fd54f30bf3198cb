# SPDX-License-Identifier: LGPL-2.1-or-later
"""The schema of catalogue files: from TOML to a :class:`~kcensus.catalogue.model.Patch`.

Each field of the dataclasses is a key, its type hint determines its reader, and a field without a
default is required. A file may come from anywhere, so its size and all values are limited.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import math
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

from kcensus.catalogue import model
from kcensus.catalogue.model import FindingRule, Patch, Probe, ProbeKind, State
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
"""Characters of a value in an error message."""


class CatalogueError(Exception):
    """A catalogue file is unusable; the text is one printable sentence with file and key."""


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
_TYPES = {
    str: "text", bool: "a boolean", int: "a number", float: "a number", dict: "a table",
    list: "a list",
}  # fmt: skip


def _expect(place: _Place, value: Any, *kinds: type) -> None:
    # isinstance() takes a bool for an int.
    if type(value) in kinds:
        return
    # Converting a huge int to decimal raises ValueError.
    is_short = type(value) in (str, float) or (type(value) is int and abs(value) < _MAX_NUMBER)
    shown = f"{str(value)[:_MAX_QUOTED]!r} " if is_short else ""
    kind = _TYPES.get(type(value), "a date or time")
    raise place.error(f"{shown}is {kind}; it must be {_TYPES[kinds[0]]}")


def _text(pattern: str = "", description: str = "") -> _Reader:
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
        if pattern and not re.fullmatch(pattern, text):
            raise place.error(f"{text[:_MAX_QUOTED]!r} is not {description}")
        return text

    return read


def _choice(known: Mapping[str, Any]) -> _Reader:
    def read(place: _Place, value: Any) -> Any:
        text = _text()(place, value)
        if text not in known:
            shown = text[:_MAX_QUOTED]
            raise place.error(f"{shown!r} is unknown (choose from {', '.join(known)})")
        return known[text]

    return read


def _number(place: _Place, value: Any) -> float:
    _expect(place, value, int, float)
    # Compare first: float() of a huge int raises OverflowError.
    if not (abs(value) < _MAX_NUMBER and math.isfinite(value)):
        raise place.error("must be a finite number between -2**63 and 2**63")
    return float(value)


def _boolean(place: _Place, value: Any) -> bool:
    _expect(place, value, bool)
    return bool(value)


def _numbers(place: _Place, value: Any) -> dict[str, float]:
    _expect(place, value, dict)
    places = {name: place.at(name[:_MAX_QUOTED]) for name in value}
    return {_KEY(places[name], name): _number(places[name], value[name]) for name in value}


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


_C = r"[A-Za-z_]\w*"
_NAME = _text(_C, "a C identifier")
_ID = _text(r"[a-z0-9]+(-[a-z0-9]+)*", "an id such as 'cfq-removal'")
_KEY = _text(r"[a-z][a-z0-9_]*", "a key such as 'slab_bytes'")
_TEXTS: Mapping[str, _Reader] = {
    **dict.fromkeys(("id", "analysis", "by", "claim", "name", "patch", "run"), _ID),
    **dict.fromkeys(("supersedes", "superseded_by", "fixes", "related"), _ID),
    **dict.fromkeys(("modules", "switch"), _NAME),
    **dict.fromkeys(("key", "minus"), _KEY),
    "date": _text(r"\d{4}(-\d\d(-\d\d)?)?", "a date such as '2021', '2021-09' or '2021-09-14'"),
    "hash": _text(r"[0-9a-f]{8,40}", "a commit hash of 8 to 40 hexadecimal digits"),
    "release": _text(r"\d+\.\d+", "a release such as '5.18'"),
    "severity": _choice({name: name for name in ("info", "notice", "warning", "critical")}),
    "unit": _choice({name: name for name in model.UNITS}),
}
"""Readers of restricted texts and of lists of them, by name of the field."""
_PROBES = {
    ProbeKind.TYPE: _text(rf"((struct|union|enum) )?{_C}", "a type such as 'struct page'"),
    ProbeKind.MEMBER: _text(
        rf"((struct|union) )?{_C}(\.{_C})+", "a member such as 'struct slab.stride'"
    ),
    ProbeKind.SYMBOL: _NAME,
    ProbeKind.ENUMERATOR: _NAME,
    ProbeKind.PARAMETER: _text(rf"{_C}\.{_C}", "a parameter, 'module.name'"),
}
_KEYS = {
    "postings": "posted",
    "detection": "detect",
    "validation": "validate",
    "trace_validation": "validate-traces",
}
"""Keys of fields with more differences than dashes."""
_REQUIRED = ("what",)
"""Fields with required keys in spite of a default."""


def _reader(field: str, hint: Any) -> _Reader:
    if isinstance(hint, types.UnionType):  # with None, the default of an absent key
        (hint,) = (other for other in hint.__args__ if other is not types.NoneType)
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        read_item = _record(item, ("patch",)) if item is FindingRule else _reader(field, item)
        return _list(read_item, unique=issubclass(item, str))
    if hint is str:
        return _TEXTS.get(field, _text())
    if get_origin(hint) is Mapping:
        return _numbers
    if issubclass(hint, enum.Enum):
        return _choice({member.value: member for member in hint})
    return {Probe: _probe, float: _number, bool: _boolean}.get(hint) or _record(hint)


def _record(cls: type[Any], without: tuple[str, ...] = ()) -> _Reader:
    """Return a reader of tables with the fields of a dataclass as keys, except ``without``."""
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
        for key, problem in _problems(record):
            raise (place.at(key) if key else place).error(problem)
        return record

    return read


def _probe(place: _Place, table: Any) -> Probe:
    _expect(place, table, dict)
    kinds = [kind.value for kind in ProbeKind]
    if len(table) != 1 or not set(table) <= set(kinds):
        raise place.error(f"must have exactly one key (choose from {', '.join(kinds)})")
    ((key, name),) = table.items()
    return Probe(ProbeKind(key), _PROBES[ProbeKind(key)](place.at(key), name))


def _problems(record: Any) -> Iterator[tuple[str, str]]:
    """Yield the problems of a record as a whole: a key, or an empty text, and a sentence."""
    match record:
        case model.Commit(subject="", hash=""):
            yield "", "needs a subject or a hash"
        case model.Rule():
            if record.state is State.PARTIALLY_APPLIED:
                yield "state", f"{record.state.value!r} is only for a series with stages"
            if not record.has and not record.lacks:
                yield "has", "is missing: a rule needs a probe in has or lacks"
            if (record.state is State.SUPERSEDED) != bool(record.by):
                yield "by", "is required for the state superseded, and only for it"
            if record.state is State.UNDETERMINED and not record.why:
                yield "why", "is missing: say why the state is undetermined"
        case model.Detection(rules=(), undetectable=None):
            yield "rules", "is missing: add rules or [detect.undetectable]"
        case model.Validation(workload=()):
            yield "workload", "is empty: a pair needs a figure of its workload"
        case model.PublishedFigure(value=value, to=float(to)) if to <= value:
            yield "to", f"'{to:g}' must be above value, {value:g}"
        case FindingRule():
            if record.at_least is None and record.at_most is None:
                yield "at-least", "is missing: a rule needs at-least or at-most"
            if re.search("[{}]", record.title.replace("{value}", "")):
                yield "title", "must not contain braces other than {value}"
        case model.Evidence():
            if record.state not in (State.PRESENT, State.ABSENT, State.UNDETERMINED):
                yield "state", f"{record.state.value!r} does not follow from a figure"
        case Patch(stages=stages, detection=detection, figures=figures):
            if stages and detection != model.Detection():
                yield "detect", "must be left out: a series is detected by its stages"
            if not stages and detection == model.Detection():
                yield "detect", "is missing: without rules, add [detect.undetectable]"
            runs = {figure.run for figure in figures}
            for name in ("validation", "trace_validation"):
                validation = getattr(record, name)
                if validation and validation.claim and validation.claim not in runs:
                    problem = f"{validation.claim!r} is not the run of any published figure"
                    yield f"{_KEYS[name]}.claim", problem
            if twice := _first_repeated([figure.name for figure in figures]):
                yield "figures", f"the name {twice!r} is used twice"


# Rules in a patch file are about the patch; elsewhere they name one.
_PATCH = _record(Patch, without=("file",))
_RULES = _list(_record(FindingRule))


def read_file(path: Path) -> Patch | tuple[FindingRule, ...]:
    """Return the patch of a file, or the rules of a file with ``[[rules]]`` only.

    :raises CatalogueError: the file cannot be read, is too large, is not TOML, or violates the
        schema
    """
    place = _Place(str(path))
    table = _toml(place)
    if set(table) == {"rules"}:
        return cast(tuple[FindingRule, ...], _RULES(place.at("rules"), table["rules"]))
    patch: Patch = _PATCH(place, table)
    if patch.id != path.stem:
        raise place.at("id").error(f"{patch.id!r} must be the name of the file, {path.stem!r}")
    rules = tuple(dataclasses.replace(rule, patch=patch.id) for rule in patch.rules)
    return dataclasses.replace(patch, file=place.file, rules=rules)


def _toml(place: _Place) -> dict[str, Any]:
    path = Path(place.file)
    try:
        if not path.is_file():  # opening a FIFO would block
            raise place.error("is not a file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise place.error(f"is larger than {MAX_FILE_BYTES >> 10} KiB")
        return tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise place.error(f"cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise place.error("is not UTF-8 text") from None
    except RecursionError:
        raise place.error("is nested too deeply") from None
    except ValueError as error:  # includes TOMLDecodeError
        raise place.error(f"is not TOML: {printable(str(error))[:200]}") from None


def check_references(
    patches: Mapping[str, Patch], rules: Sequence[tuple[str, FindingRule]]
) -> None:
    """Check that all ids in files exist, and that no series contains itself or another.

    :param rules: each with its file
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
