# SPDX-License-Identifier: LGPL-2.1-or-later
"""Conditions on rows: their values, and everything that is not a condition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from kcensus.api.conditions import Condition, ConditionError

_COLUMNS: dict[str, pd.Series[Any]] = {
    "count": pd.Series([0, 5, 9], dtype=np.uint64),
    "d_lockref.count": pd.Series([-1, 0, 3]),
    "class": pd.Series([1, 2, 3]),
    "shared[0]": pd.Series([1, 2, 3]),
    "state": pd.Series(["D", "R", None], dtype=object),
    "comm": pd.Series([b"kworker/1:1", b"sh", b"bash"], dtype=object),
    "number": pd.Series([1, 2, None], dtype=object),
    "mixed": pd.Series(["5", 5, None], dtype=object),
    "limit": pd.Series(pd.array([None, 2, 7], "Int64")),
    "seconds": pd.Series([float("nan"), 1.5, 20.0]),
    "address": pd.Series([0xFFFF888003FFA000, 1, 2], dtype=np.uint64),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("count > 4", [0, 1, 1]),
        ("0 < count < 9", [0, 1, 0]),
        ("4 < count", [0, 1, 1]),
        ("d_lockref.count == -1", [1, 0, 0]),
        ("`d_lockref.count` >= 0", [0, 1, 1]),
        ("shared[0] != 2", [1, 0, 1]),
        ("count & 1 == 1", [0, 1, 1]),
        ("(count & 1) != 0", [0, 1, 1]),
        ("count & 0x8", [0, 0, 1]),
        ("not count & 0x8", [1, 1, 0]),
        ("count & 0x8 and seconds > 1 or count & 0x4", [0, 1, 1]),
        ("count / 2 > 2.4", [0, 1, 1]),
        ("`class` == 2", [0, 1, 0]),
        ('comm == b"sh"', [0, 1, 0]),
        ("(count > 4) & (count < 9)", [0, 1, 0]),
        ("count >> 1 == 4 or count == 0", [1, 0, 1]),
        ("not count > 4", [1, 0, 0]),
        ("~(count > 4)", [1, 0, 0]),
        ("count % 2 == 1 and count * 2 + 1 < 12", [0, 1, 0]),
        ('state == "D"', [1, 0, 0]),
        ('state in ("D", "R")', [1, 1, 0]),
        ("count not in (5, 9)", [1, 0, 0]),
        ("state == None", [0, 0, 1]),
        ("isnull(limit)", [1, 0, 0]),
        ("limit != None", [0, 1, 1]),
        ("limit > 2", [0, 0, 1]),
        ("seconds >= 1.5", [0, 1, 1]),
        ('contains(comm, "sh")', [0, 1, 1]),
        ('startswith(comm, "kworker")', [1, 0, 0]),
        ('endswith(state, "R")', [0, 1, 0]),
        ('comm == "sh"', [0, 1, 0]),
        ('address == "0xffff888003ffa000"', [1, 0, 0]),
        ("address == 0xffff888003ffa000", [1, 0, 0]),
        ("True", [1, 1, 1]),
        # Results have the sign and the size that mathematics gives them.
        ("count - 2 < 0", [1, 0, 0]),
        ("2 - count > 0", [1, 0, 0]),
        ("count * -1 == -5", [0, 1, 0]),
        ("limit - 3 < 0", [0, 1, 0]),
        ("address - 1 == 0xffff888003ff9fff", [1, 0, 0]),
        ("address & 0xfff == 1", [0, 1, 0]),
        ("count - d_lockref.count > 5", [0, 0, 1]),
        ("d_lockref.count << 62 > 0", None),
        ("address + address > 0", None),
        ("address - count > 0", None),
        ("address - 3 < 0", None),
        ("count << 63 > 0", None),
        ("count * 2 - 5 - 5 - 1 < 0", [1, 1, 0]),
        ("seconds - 2 < 0", [0, 1, 0]),
        ('contains(mixed, "5")', [1, 0, 0]),
        ('startswith(mixed, "5")', [1, 0, 0]),
    ],
)
def test_rows_that_meet_a_condition(text: str, expected: list[int] | None) -> None:
    if expected is None:
        with pytest.raises(ConditionError, match="64 bits"):
            Condition(text)(_COLUMNS, 3)
        return
    assert Condition(text)(_COLUMNS, 3).tolist() == [bool(each) for each in expected]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "count",
        "count + 1",
        "count == 5 & limit == 2",  # DataFrame.eval() has `and` here, Python `5 & limit`
        "count == 5 | limit == 2",
        "count >",
        "count = 5",
        "nothing > 1",
        "__import__('os').system('id')",
        "@pd.compat.os.system('id') == 0",
        "count.__class__ == 1",
        "().__class__.__bases__[0].__subclasses__() == 1",
        "count.values.tofile('x') == 1",
        "(lambda: 1)() == 1",
        "[x for x in count] == 1",
        "open('/etc/passwd') == 1",
        "contains(count, 'x')",
        "contains(number, '1')",
        "contains(state, comm)",
        "contains(state, 'x', regex=True)",
        "state < 5",
        "count == (1, 2)",
        "count is 5",
        "count << 1000 == 0",
        "1 << 100000000000 == count",
        "count ** 9 == 1",
        "2 ** 10000000 == count",
        "'x' * 1000000000 == state",
        "state + 'x' == 'Dx'",
        "count // 0 == 1 and 1 // 0 == count",
        "f'{count}' == state",
        "count == 1 if count else 2",
        "(count := 5) == 5",
        "count[1:2] == 1",
        "-" * 600 + "1 == count",
        "(" * 900 + "count" + ")" * 90,
        "count == 1 or " * 90 + "count == 2",
        "count == " + "1" * 2000,
        "count\0 == 1",
    ],
)
def test_everything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConditionError) as refused:
        Condition(text)(_COLUMNS, 3)
    sentence = str(refused.value)
    assert sentence.startswith("where: ")
    assert sentence.isprintable()
    assert len(sentence) < 1000
