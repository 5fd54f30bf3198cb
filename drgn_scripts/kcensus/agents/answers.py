# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers to agents: what the dump says in one field, ``untrusted``, and everything bounded.

Names in a dump are chosen by whoever ran programs on its machine. Text for people is harmless to
them once control characters are escaped; an agent reads it as it reads its instructions. So all
text that can have such a name is below one key, and nothing else is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kcensus.agents.messages import NOTE
from kcensus.api.conditions import Condition, ConditionError
from kcensus.render.json import exact, head, result_document
from kcensus.render.plain import plain_column, rows, tables
from kcensus.results import Result, Unit
from kcensus.results.tables import Column, Table
from kcensus.text import bounded, printable

UNTRUSTED = "untrusted"
MAX_CHARACTERS = 60_000
"""Of an answer as JSON; clients cut or refuse longer ones."""
_MAX_TEXT = 1000
"""Characters of one text. No path of a dump is longer than 4,096 bytes."""
_SHORT_TEXT = 100
"""Characters of one text in an element that is too long for an answer by itself."""
_TOO_LONG = "(longer than this server returns; the JSON of the command line has it)"
_COMMANDS = ("command", "undo")
"""Keys of texts to paste, of which a part must not be run."""
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that count as printable, and show nothing."""


class AnswerError(Exception):
    """A question cannot be answered; the message is one sentence."""


def safe(value: Any, key: str = "", most: int = _MAX_TEXT) -> Any:
    """Return a value of a document with its texts escaped, and bounded to ``most`` characters."""
    if isinstance(value, str):
        return _text(value, key, most)
    if isinstance(value, Mapping):
        return {
            _text(str(name), "", _MAX_TEXT): safe(each, str(name), most)
            for name, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [safe(each, key, most) for each in value]
    return value


def _text(text: str, key: str, most: int) -> str:
    shown = _INVISIBLE.sub(lambda found: f"\\U{ord(found[0]):08x}", printable(text))
    if key in _COMMANDS and len(shown) > most:
        return _TOO_LONG
    return bounded(shown, most)


def answer(untrusted: Mapping[str, Any], **about: Any) -> dict[str, Any]:
    """Return an answer: ``about`` is kcensus's own, ``untrusted`` is of the dump.

    Lists that make it longer than :data:`MAX_CHARACTERS` are cut, and ``left_out`` says so. One row
    stays, with shorter texts, or there would be no next page.

    :raises AnswerError: it is too long even so
    """
    own = safe(exact(untrusted))
    left_out: dict[str, int] = {}
    lists = [name for name, value in own.items() if isinstance(value, list)]
    is_paged = bool(about.get("page"))
    while _length(own) + _length(about) > MAX_CHARACTERS:
        longest = max(lists, key=lambda name: _length(own[name]), default="")
        if not longest or not own[longest]:
            raise AnswerError(
                f"the answer is longer than {MAX_CHARACTERS:,} characters; ask for fewer columns"
            )
        kept = len(own[longest]) // 2
        if is_paged and longest == "rows" and not kept:
            (row,) = own[longest]
            own[longest] = [safe(row, most=_SHORT_TEXT)]
            lists.remove(longest)
            continue
        left_out[longest] = left_out.get(longest, 0) + len(own[longest]) - kept
        own[longest] = own[longest][:kept]
    page = about.get("page")
    if page and left_out.get("rows"):
        page["returned"] -= left_out["rows"]
        page["next_offset"] = page["offset"] + page["returned"]
    note = {"note": NOTE} if own else {}
    return {**note, **about, "left_out": left_out, UNTRUSTED: own}


def _length(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False))


def page_of(offset: int, returned: int, total: int) -> dict[str, int | None]:
    """Return where rows are among all."""
    end = offset + returned
    return {
        "offset": offset,
        "returned": returned,
        "total": total,
        "next_offset": end if end < total else None,
    }


def result_parts(result: Result) -> dict[str, Any]:
    """Return a result without the rows of its tables: the tool ``table`` has them."""
    document = head(result) | result_document(result)
    for name in ("units", "labels"):
        document[name] = document[name]["summary"]
    for name in ("checks", "gaps"):
        document[name] = records(document[name])
    document["tables"] = {
        name: {"rows": len(table.frame), "title": table.title, "columns": [*table.columns]}
        for name, table in result.tables.items()
    }
    return document


def records(table: Table) -> list[dict[str, Any]]:
    """Return the rows of a table as JSON has them."""
    names = list(table.frame.columns)
    return [dict(zip(names, row, strict=True)) for row in rows(table)]


def table_of(result: Result, name: str) -> Table:
    """Return a table of a result, or its checks, findings or gaps as one.

    :raises AnswerError: there is none
    """
    every = tables(result)
    if name not in every:
        raise AnswerError(f"there is no table '{printable(name)}' (choose from {', '.join(every)})")
    return every[name]


def rows_answer(
    table: Table,
    arguments: Mapping[str, Any],
    about: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the answer with a page of a table.

    :param arguments: ``where``, ``sort``, ``columns``, ``offset`` and ``limit``
    :param more: of the dump, beside the rows
    :raises AnswerError: they name a column that the table lacks, or the condition is not one
    """
    frame = table.frame
    if where := arguments.get("where"):
        compared = {name: _comparable(table, name) for name in frame.columns}
        frame = frame[_condition(where)(compared, len(frame))]
    if sort := arguments.get("sort"):
        name = sort.removeprefix("-")
        _check_columns(table, [name])
        try:
            frame = frame.sort_values(
                name, ascending=not sort.startswith("-"), kind="stable", na_position="last"
            )
        except TypeError:  # texts and numbers
            raise AnswerError(f"column '{printable(name)}' cannot be sorted") from None
    total = len(frame)
    offset, limit = arguments["offset"], arguments["limit"]
    wanted = arguments.get("columns") or list(frame.columns)
    _check_columns(table, wanted)
    columns = {name: table.columns[name] for name in wanted}
    shown = records(Table(frame.iloc[offset : offset + limit][list(columns)], columns))
    own = {
        **(more or {}),
        "title": table.title,
        "columns": {name: _described(name, column) for name, column in columns.items()},
        "rows": shown,
    }
    return answer(own, **about, page=page_of(offset, len(shown), total))


def _condition(where: str) -> Condition:
    try:
        return Condition(where)
    except ConditionError as error:
        raise AnswerError(str(error)) from None


def _described(name: str, column: Column) -> dict[str, str]:
    return {"unit": column.unit.value, "label": column.heading(name), "help": column.help}


def _check_columns(table: Table, names: Sequence[str]) -> None:
    known = list(table.frame.columns)
    for name in names:
        if name not in known:
            raise AnswerError(
                f"there is no column '{printable(name)}' (choose from {', '.join(known)})"
            )


def _comparable(table: Table, name: str) -> Any:
    """Return a column as an agent sees it: texts escaped, and numbers of any type as numbers."""
    import pandas as pd

    series, unit = table.frame[name], table.columns[name].unit
    if series.dtype.kind in "iufb":
        return series
    values = plain_column(series)
    if unit is Unit.TEXT:
        return pd.Series(values, series.index, dtype=object)
    return pd.to_numeric(pd.Series(values, series.index), errors="coerce")
