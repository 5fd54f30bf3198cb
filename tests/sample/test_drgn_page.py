# SPDX-License-Identifier: LGPL-2.1-or-later
"""The recipes of docs/drgn.md that the sample has memory for print what the page shows."""

from __future__ import annotations

import doctest

from drgn.cli import default_globals

import kcensus
from kcensus.sources import open_target
from tests.pages import RECIPES_PAGE, sessions


def test_recipes_on_the_sample() -> None:
    page, _, _ = RECIPES_PAGE.partition("## Recipes for a dump")
    # As `kcensus shell sample` has them.
    names = default_globals(open_target("sample").prog) | {"kcensus": kcensus}
    session = doctest.DocTestParser().get_doctest("\n".join(sessions(page)), names, "page", None, 0)
    outcome = doctest.DocTestRunner().run(session)
    assert outcome.failed == 0
    assert outcome.attempted > 30
