# SPDX-License-Identifier: LGPL-2.1-or-later
"""The examples in the docstrings of the public API, run on the bundled sample."""

from __future__ import annotations

import doctest
import inspect

import pytest

import kcensus
from kcensus.analyses import analyses
from tests.running import recorded_analyses

pytestmark = pytest.mark.ends

NAMES = sorted(name for name in dir(kcensus) if not name.startswith("_"))
EXAMPLES = {
    name: tests
    for name in NAMES
    if inspect.isfunction(getattr(kcensus, name))
    and (tests := doctest.DocTestFinder(recurse=False).find(getattr(kcensus, name), name))
}


def test_every_public_function_has_an_example() -> None:
    functions = {name for name in NAMES if inspect.isfunction(getattr(kcensus, name))}
    assert {"objects", "as_object", "paths", "open_target", "report", "patches"} <= functions
    assert {"slab", "dentries", "list_lru", "kcopyd"} <= functions
    lacking = {name for name in functions if not any(one.examples for one in EXAMPLES[name])}
    assert lacking == set()


# Those of analyses run on the sample, so it has to hold what they read.
NOT_RECORDED = {name.replace("-", "_") for name in {*analyses()} - {*recorded_analyses()}}


_SLOW = {"diff", "validate", "report"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in _SLOW))
        for name in ("kcensus", *EXAMPLES)
        if name not in NOT_RECORDED
    ],
)
def test_examples(name: str) -> None:
    place = kcensus if name == "kcensus" else getattr(kcensus, name)
    (example,) = doctest.DocTestFinder(recurse=False).find(place, name)
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert outcome.failed == 0
    assert outcome.attempted > 0
