# SPDX-License-Identifier: LGPL-2.1-or-later
"""What every finder of waits must have to be found, and not to hide another one."""

from __future__ import annotations

import importlib
from collections import defaultdict
from pathlib import Path

import pytest

from kcensus.kernel.waiting import finders as rooms
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.finders import finders

_FOLDER = Path(rooms.__file__).parent
_MODULES = sorted(path for path in _FOLDER.rglob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", _MODULES, ids=lambda path: path.stem)
def test_a_module_defines_a_finder_that_is_found(path: Path) -> None:
    parts = path.relative_to(_FOLDER).with_suffix("").parts
    finder = importlib.import_module(".".join([rooms.__name__, *parts])).FINDER
    assert issubclass(finder, Finder)
    assert finder in finders(), f"{path.parent.name} has no __init__.py"
    assert finder.about
    does = [finder.find is not Finder.find, finder.note is not Finder.note]
    assert any([*does, finder.kinds, finder.sleeps, finder.queues, finder.lists, finder.pointers])


def test_an_explanation_is_beside_its_finder() -> None:
    alone = [path for path in _FOLDER.rglob("*.toml") if not path.with_suffix(".py").exists()]
    assert alone == []


def test_no_two_finders_claim_a_type_or_a_queue() -> None:
    owners = defaultdict(set)
    for finder in finders():
        for name in (*(type_ for kind in finder.kinds for type_ in kind.types), *finder.queues):
            owners[name].add(finder)
    assert {name: each for name, each in owners.items() if len(each) > 1} == {}
