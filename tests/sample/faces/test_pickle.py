# SPDX-License-Identifier: LGPL-2.1-or-later
"""Everything that public functions return goes through pickle, and says the same afterwards."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

import kcensus
from tests.running import document

pytestmark = pytest.mark.slow


def _targets() -> tuple[Any, Any]:
    return kcensus.open_target("sample"), kcensus.open_target("sample-after")


MADE: dict[str, Callable[[], Any]] = {
    "report": lambda: kcensus.report(kcensus.open_target("sample-waits")),
    "slab": lambda: kcensus.slab(kcensus.open_target("sample-waits")),
    "patches": lambda: kcensus.patches(kcensus.open_target("sample-waits")),
    "diff": lambda: kcensus.diff(*(kcensus.report(each) for each in _targets())),
    "validate": lambda: kcensus.validate("list-lru-memory", *_targets()),
    "trend": lambda: kcensus.trend("sample-series"),
    "history": lambda: kcensus.history("sample-series"),
    "objects": lambda: kcensus.objects(
        kcensus.open_target("sample-waits"), "struct task_struct", ["pid", "comm"]
    ),
}


def text(made: Any) -> str:
    """The JSON of a result or report; a frame's CSV, with what its columns are."""
    if isinstance(made, pd.DataFrame):
        return f"{made.attrs}\n{made.to_csv()}"
    return document(made.report if isinstance(made, kcensus.Report) else made.result)


@pytest.mark.parametrize("name", MADE)
def test_results_can_be_pickled(name: str) -> None:
    made = MADE[name]()
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is type(made)
    assert text(again) == text(made)
