# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/howto/agents.md: its table has all tools, and its example the answers of the server."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from kcensus.agents.tools import tools
from tests.pages import ROOT, blocks
from tests.sample.agents.asking import answered

_PAGE = ROOT / "docs" / "howto" / "agents.md"


def test_the_table_has_all_tools() -> None:
    listed = _PAGE.read_text("utf-8").partition("| tool |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE) == [*tools()]


def test_the_table_has_all_arguments() -> None:
    listed = _PAGE.read_text("utf-8").partition("| tool |")[2].partition("\n\n")[0]
    for name, cell in re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", listed, re.MULTILINE):
        schema = tools()[name].schema()
        needed, known = schema.get("required", []), schema["properties"]
        written = [each if each in needed else f"[{each}]" for each in known]
        assert sorted(cell.replace("`", "").split(", ")) == sorted(written), name


def is_part(part: Any, whole: Any) -> bool:
    """Return whether a document has all that another one shows: the first elements of lists."""
    if isinstance(part, dict):
        return all(key in whole and is_part(each, whole[key]) for key, each in part.items())
    if isinstance(part, list) and part:
        return len(part) <= len(whole) and all(map(is_part, part, whole))
    return bool(part == whole)


def test_the_example_is_answered_so() -> None:
    documents = [json.loads(each.text) for each in blocks(_PAGE) if each.language == "json"]
    pairs = [pair for pair in itertools.pairwise(documents) if "tool" in pair[0]]
    assert len(pairs) == 2
    for call, shown in pairs:
        assert is_part(shown, answered(call["tool"], call["arguments"]))
