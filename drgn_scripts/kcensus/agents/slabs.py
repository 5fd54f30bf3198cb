# SPDX-License-Identifier: LGPL-2.1-or-later
"""Objects of any slab cache: a page of rows, or counts by value, of any number of objects."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from kcensus.agents.answers import AnswerError, answer, page_of
from kcensus.agents.messages import Settings
from kcensus.agents.opened import Opened
from kcensus.api.conditions import Condition, Mask
from kcensus.api.objects import objects as all_objects
from kcensus.render.plain import plain_column
from kcensus.text import printable

_MAX_GROUPS = 1 << 20


class _Page:
    """Counts the objects that meet a condition, and keeps one page of them.

    It sees some objects at a time, so that the others take no memory.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        where = arguments["where"]
        self._condition = Condition(where) if where else None
        self._group_by = arguments["group_by"]
        self._first, self._end = arguments["offset"], arguments["offset"] + arguments["limit"]
        self.matched = 0
        self.groups: Counter[Any] = Counter()

    def __call__(self, frame: pd.DataFrame) -> Mask:
        """Return a mask of the objects to keep."""
        mask = np.ones(len(frame), np.bool_)
        if self._condition:
            columns = {name: frame[name] for name in frame.columns if name != "memcg"}
            index = pd.Series(frame.index.to_numpy(), frame.index)
            mask = self._condition({"address": index, **columns}, len(frame))
        if self._group_by:
            self._count(frame[mask])
            self.matched += int(mask.sum())
            return np.zeros(len(frame), np.bool_)
        ordinal = self.matched + np.cumsum(mask)  # from 1
        self.matched += int(mask.sum())
        return np.asarray(mask & (ordinal > self._first) & (ordinal <= self._end))

    def _count(self, frame: pd.DataFrame) -> None:
        if self._group_by not in frame.columns:
            known = ", ".join(map(str, frame.columns))
            raise AnswerError(
                f"there is no column '{printable(self._group_by)}' (choose from {known})"
            )
        for value, count in frame[self._group_by].value_counts().items():
            self.groups[value] += count
        if len(self.groups) > _MAX_GROUPS:
            raise AnswerError(f"'{printable(self._group_by)}' has more than {_MAX_GROUPS:,} values")


def objects(arguments: Mapping[str, Any], opened: Sequence[Opened], _: Settings) -> dict[str, Any]:
    """Return members of allocated objects of a slab cache."""
    target, group_by = opened[0].target(), arguments["group_by"]
    members = list(dict.fromkeys([*arguments["members"], *([group_by] if group_by else [])]))
    try:
        page = _Page(arguments)
        with warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always")
            frame = all_objects(
                target, arguments["type"], members, cache=arguments["cache"], where=page,
                memcg=arguments["memcg"] and not group_by, jobs=1,
            )  # fmt: skip
    except (LookupError, ValueError, SyntaxError) as error:
        raise AnswerError(str(error)) from None
    types = dict(frame.attrs.get("types", {}))
    document: dict[str, Any] = {
        "target": target.name,
        "types": types,
        "warnings": [str(each.message) for each in doubts],
        "matched": page.matched,
    }
    if group_by:
        ranked = sorted(page.groups.items(), key=lambda item: (-item[1], str(item[0])))
        shown = ranked[arguments["offset"] : arguments["offset"] + arguments["limit"]]
        keys = _values(pd.Series([key for key, _ in shown]), group_by in types)
        counts = [count for _, count in shown]
        document["rows"] = [
            {group_by: key, "objects": int(count)} for key, count in zip(keys, counts, strict=True)
        ]
        total = len(ranked)
    else:
        columns = {"address": _values(pd.Series(frame.index.to_numpy()), True)}
        columns |= {name: _values(frame[name], name in types) for name in frame.columns}
        document["rows"] = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
        total = page.matched
    about = page_of(arguments["offset"], len(document["rows"]), total)
    return answer(document, page=about)


def _values(series: pd.Series[Any], is_address: bool) -> list[Any]:
    values = plain_column(series)
    if not is_address:
        return values
    return [f"{value:#x}" if type(value) is int else value for value in values]
