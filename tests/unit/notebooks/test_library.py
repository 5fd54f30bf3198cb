# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files of notebooks: what the command reads of them, and that they are clean."""

from __future__ import annotations

import re
from pathlib import Path

import jupytext
import pytest

from kcensus import history
from kcensus.actions.notebooks.library import PACKAGED, Parameter, notebooks, packaged_directory
from kcensus.sources import open_target

KNOWN = notebooks()
TARGETS = {
    "capacity_report": ["target"],
    "explore": ["target"],
    "growth": ["store"],
    "patch_validation": ["before", "after"],
}


def test_there_are_notebooks() -> None:
    assert {name: [each.name for each in KNOWN[name].targets] for name in KNOWN} == TARGETS
    assert Path(__file__).parents[3] / "notebooks" == PACKAGED


def test_a_wheel_has_them_beside_the_code(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    assert packaged_directory(tmp_path) == tmp_path / "notebooks"


@pytest.mark.parametrize("name", KNOWN)
def test_a_notebook_is_as_jupytext_reads_it(name: str) -> None:
    notebook, node = KNOWN[name], jupytext.read(KNOWN[name].path)
    assert node.cells[0].source.startswith(f"# {notebook.title}\n\n{notebook.summary[:20]}")
    assert notebook.summary.endswith(".")
    tagged = [cell for cell in node.cells if "parameters" in cell.metadata.get("tags", ())]
    assert len(tagged) == 1
    values: dict[str, object] = {}
    exec(tagged[0].source, values)
    for key in ("__builtins__", "__annotations__"):
        values.pop(key, None)
    assert {each.name: each.default for each in notebook.parameters.values()} == values


@pytest.mark.parametrize("name", KNOWN)
def test_a_notebook_is_text_without_outputs(name: str) -> None:
    node = jupytext.read(KNOWN[name].path)
    code = [cell for cell in node.cells if cell.cell_type == "code"]
    assert code
    assert not any(cell.outputs or cell.execution_count for cell in code)
    # Nothing that Jupyter adds to a file when somebody works on it.
    assert {key for cell in node.cells for key in cell.metadata} <= {"tags"}
    assert not re.search("^# *!|^%", "\n".join(cell.source for cell in code), re.MULTILINE)


@pytest.mark.parametrize("name", KNOWN)
def test_a_notebook_starts_on_what_comes_with_kcensus(name: str) -> None:
    for parameter in KNOWN[name].targets:
        assert parameter.help
        if name == "growth":
            assert len(history(str(parameter.default))) > 1000
        else:
            assert open_target(str(parameter.default)).kind == "capsule"


def parameter(default: str | int | float | bool | list[str]) -> Parameter:
    return Parameter("x", default, "", False)


def test_values_have_the_type_of_the_default() -> None:
    assert parameter("a").parse("1") == "1"
    assert parameter(10).parse("20") == 20
    assert parameter(0.5).parse(".25") == 0.25
    assert parameter(False).parse("Yes") is True
    assert parameter(["a"]).parse("b,c") == ["b", "c"]
    assert parameter(["a"]).parse("") == []


@pytest.mark.parametrize(
    ("default", "text"), [(10, "1.5"), (10, ""), (10, "0"), (10, "-1"), (0.5, "nan"), (True, "on?")]
)
def test_other_values_are_refused(default: float, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parameter(default).parse(text)
