# SPDX-License-Identifier: LGPL-2.1-or-later
"""Documents of the samples follow the published schema."""

from __future__ import annotations

import json

import pytest

from kcensus import cli
from kcensus.render.schema import errors
from tests.running import recorded_analyses


@pytest.mark.parametrize(
    "words",
    [
        ["report", "sample"],
        ["report", "sample-after"],
        *([name, "sample"] for name in recorded_analyses()),
        ["patches", "sample"],
        ["patches"],
        ["patches", "show", "list-lru-memory"],
        ["diff", "sample", "sample-after"],
        ["doctor", "sample"],
    ],
    ids=" ".join,
)
def test_documents_follow_the_schema(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words, "--json"]) == 0
    out = capsys.readouterr().out
    document = json.loads(out)
    assert out.startswith('{\n  "schema": 2,\n')
    assert list(errors(document)) == []
    document["surprise"] = 1
    del document["schema"]
    assert list(errors(document)) != []
