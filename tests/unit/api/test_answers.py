# SPDX-License-Identifier: LGPL-2.1-or-later
"""Results at a prompt and in a notebook."""

from __future__ import annotations

from kcensus.api.answers import Result
from tests.unit.synthetic import synthetic_result


def test_a_result_shows_its_first_tables() -> None:
    first, every = Result(synthetic_result(), ("empty",)), Result(synthetic_result())
    for shown in (repr(first), first._repr_html_()):
        assert "Nothing at all" in shown
        assert "Caches by memory" not in shown
    for shown in (repr(every), every._repr_html_()):
        assert "Caches by memory" in shown
        assert "\x1b" not in shown
