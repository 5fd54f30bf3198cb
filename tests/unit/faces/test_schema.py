# SPDX-License-Identifier: LGPL-2.1-or-later
"""The schema that ``kcensus --json-schema`` prints."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from kcensus import cli
from kcensus.analyses import analyses
from kcensus.render.schema import schema


def test_it_is_the_published_one_with_all_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--json-schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == schema()
    common = json.loads(files("kcensus.render").joinpath("schema.json").read_text("utf-8"))
    assert printed["oneOf"] == common["oneOf"]
    assert {*printed["$defs"]} > {*common["$defs"]}


def test_it_describes_every_column() -> None:
    parts = schema()["$defs"]
    conditions = [
        each["if"]["properties"]["analysis"]["const"] for each in parts["result"]["allOf"]
    ]
    assert conditions == list(analyses())
    for name, analysis in analyses().items():
        tables = parts[f"tables_{name.replace('-', '_')}"]["properties"]
        for spec in analysis.tables():
            columns = tables[spec.name]["items"]["properties"]
            assert {key: each["description"] for key, each in columns.items()} == {
                key: column.help for key, column in spec.columns.items()
            }


def test_no_part_has_the_name_of_another() -> None:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in pairs]
        assert len(names) == len({*names})
        return dict(pairs)

    text = files("kcensus.render").joinpath("schema.json").read_text("utf-8")
    assert json.loads(text, object_pairs_hook=unique)
