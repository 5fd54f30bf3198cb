# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files of the catalogue: from TOML to a :class:`~kcensus.catalogue.model.Patch`.

msgspec checks a file against the type hints of the model. A file may come from anywhere, so its
size and all values are limited.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from kcensus.catalogue.model import Distribution, FindingRule, Patch
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


_TYPES = {
    "str": "text", "bool": "a boolean", "int": "a number", "float": "a number",
    "object": "a table", "array": "a list",
}  # fmt: skip
_T = TypeVar("_T")


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


def read_file(path: Path) -> Patch | tuple[FindingRule, ...]:
    """Return the patch of a file, or the rules of a file with ``[[rules]]`` only.

    :raises CatalogueError: the file cannot be read, is too large, is not TOML, or violates the
        schema
    """
    place = _Place(str(path))
    table = _toml(place)
    if set(table) == {"rules"}:
        return _convert(place, table, _Rules).rules
    patch = _convert(place, table, Patch)
    if patch.id != path.stem:
        raise place.at("id").error(f"{patch.id!r} must be the name of the file, {path.stem!r}")
    # Rules in a patch file are about the patch; elsewhere they name one.
    if patch.file or any(rule.patch for rule in patch.rules):
        key = "file" if patch.file else "rules.patch"
        raise place.at(key).error("must be left out in the file of a patch")
    rules = tuple(msgspec.structs.replace(rule, patch=patch.id) for rule in patch.rules)
    return msgspec.structs.replace(patch, file=place.file, rules=rules)


def read_distributions(path: Path) -> tuple[Distribution, ...]:
    """Return the distributions of a file, the older ones of each family first.

    :raises CatalogueError: as :func:`read_file`
    """
    place = _Place(str(path))
    return _convert(place, _toml(place), _Distributions).distributions


class _Distributions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    distributions: tuple[Distribution, ...]


class _Rules(msgspec.Struct, frozen=True):
    """A file with ``[[rules]]`` only."""

    rules: tuple[FindingRule, ...]


def _toml(place: _Place) -> dict[str, Any]:
    path = Path(place.file)
    try:
        if not path.is_file():  # opening a FIFO would block
            raise place.error("is not a file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise place.error(f"is larger than {MAX_FILE_BYTES >> 10} KiB")
        table: dict[str, Any] = _clean(place, tomllib.loads(data.decode("utf-8")))
        return table
    except OSError as error:
        raise place.error(f"cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise place.error("is not UTF-8 text") from None
    except RecursionError:
        raise place.error("is nested too deeply") from None
    except ValueError as error:  # includes TOMLDecodeError
        raise place.error(f"is not TOML: {printable(str(error))[:200]}") from None


def _clean(place: _Place, value: Any) -> Any:
    """Return a value with the lines of each paragraph joined; refuse what is odd or too large."""
    match value:
        case dict():
            if odd := next((key for key in value if not re.fullmatch(r"[\w-]+", key)), None):
                raise place.error(f"{odd[:_MAX_QUOTED]!r} is not a key")
            return {key: _clean(place.at(key[:_MAX_QUOTED]), each) for key, each in value.items()}
        case list():
            if len(value) > _MAX_ITEMS:
                raise place.error(f"has more than {_MAX_ITEMS} items")
            items = [_clean(place.at(index), item) for index, item in enumerate(value)]
            texts = [item for item in items if isinstance(item, str)]
            if twice := next((text for text in texts if texts.count(text) > 1), ""):
                raise place.error(f"{twice[:_MAX_QUOTED]!r} is listed twice")
            return items
        case str():
            if not value.strip():
                raise place.error("is empty")
            if len(value) > _MAX_TEXT:
                raise place.error(f"is longer than {_MAX_TEXT} characters")
            paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", value.strip())]
            if not all(map(str.isprintable, paragraphs)):
                raise place.error("contains unprintable characters")
            return "\n\n".join(paragraphs)
        case int() | float() if not (abs(value) < _MAX_NUMBER and math.isfinite(value)):
            raise place.error("must be a finite number between -2**63 and 2**63")
    return value


def _convert(place: _Place, table: dict[str, Any], cls: type[_T]) -> _T:
    try:
        return msgspec.convert(table, cls)
    except msgspec.ValidationError as error:
        # "Expected `float`, got `str` - at `$.figures[0].value`"
        match = re.fullmatch(r"(.*?)(?: - at (?:`key` in )?`\$([^`]*)`)?", str(error), re.DOTALL)
        problem, path = match.groups(default="") if match else (str(error), "")
        raise _explained(place, table, cls, problem, path) from None


def _explained(
    place: _Place, value: Any, cls: type[Any], problem: str, path: str
) -> CatalogueError:
    """Return an error that msgspec found at a path, with the value and what to do."""
    kind: Any = inspect.type_info(cls)
    for key, index in re.findall(r"\.([\w-]+)|\[(.+?)\]", path):
        if key:
            kind = next(field.type for field in kind.fields if field.encode_name == key)
        elif index == "...":  # the one table with other keys than those of a record
            key = next(key for key in value if type(value[key]) not in (int, float))
        else:
            kind = kind.item_type
        if isinstance(kind, inspect.UnionType):  # with None, the default of an absent key
            kind = kind.types[0]
        place, value = place.at(key or int(index)), value[key or int(index)]
    names = re.findall("`([^`]*)`", problem)
    if problem.startswith("Object contains unknown field"):
        keys = [field.encode_name for field in kind.fields]
        near = difflib.get_close_matches(names[0], keys, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(keys)}"
        return place.at(names[0][:_MAX_QUOTED]).error(f"unknown key ({hint})")
    if problem.startswith("Object missing required field"):
        return place.at(names[0]).error("is missing")
    shown = repr(str(value)[:_MAX_QUOTED])
    if problem.startswith("Expected `str` matching regex"):
        return place.error(f"{shown} is not {kind.extra_json_schema['description']}")
    if problem.startswith("Invalid enum value"):
        is_enum = isinstance(kind, inspect.EnumType)
        choices = [member.value for member in kind.cls] if is_enum else kind.values
        return place.error(f"{shown} is unknown (choose from {', '.join(choices)})")
    if problem.startswith("Expected"):
        wanted, given = (_TYPES.get(name.split(" |")[0], "a date or time") for name in names)
        shown = f"{shown} " if type(value) in (str, int, float) else ""
        return place.error(f"{shown}is {given}; it must be {wanted}")
    key, _, sentence = problem.partition(": ")  # of a record as a whole
    return (place.at(key) if key else place).error(sentence)


def check_references(
    patches: Mapping[str, Patch],
    rules: Sequence[tuple[str, FindingRule]],
    distributions: Sequence[Distribution],
) -> None:
    """Check that all ids in files exist, and that no series contains itself or another.

    :param rules: each with its file
    :param distributions: those that packages may be of
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
        names = [distribution.name for distribution in distributions]
        for package in patch.packages:
            if (name := package.distribution) not in names:
                choices = ", ".join(names)
                problem = f"unknown distribution {name!r} (choose from {choices})"
                raise place.at("packages.distribution").error(problem)
    for file, rule in rules:
        if rule.patch and rule.patch not in patches:
            raise _Place(file).at("rules.patch").error(f"unknown patch {rule.patch!r}")
