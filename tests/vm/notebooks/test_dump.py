# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every notebook runs on a real dump, from a clean kernel."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest
from nbformat import NotebookNode

import kcensus
from kcensus import cli
from kcensus.commands import Exit
from tests.lab import Dump, build, symbols
from tests.notebooks.cells import assert_plots_show, run
from tests.notebooks.test_run import forms, outputs

_BEFORE = "5.10"
"""A kernel without the list_lru series and without a limit of copies."""


def make(name: str, *dumps: Dump, output: Path) -> NotebookNode:
    targets = [str(dump.core) for dump in dumps]
    debug = symbols(path for dump in dumps for path in dump.debug)
    arguments = ["notebook", name, *targets, "-o", str(output), "--no-progress"]
    assert cli.main([*arguments, *debug]) == Exit.DONE
    return check(output)


def check(output: Path) -> NotebookNode:
    node: NotebookNode = nbformat.read(output, as_version=4)
    assert {output.output_type for output in outputs(node)} <= {"display_data", "execute_result"}
    return node


@pytest.mark.usually("6.1")
@pytest.mark.parametrize(
    ("name", "plots"), [("capacity_report", 9), ("explore", 2), ("patch_validation", 4)]
)
def test_a_notebook_runs_on_a_dump(
    mixed_dump: Dump, kernel: str, name: str, plots: int, tmp_path: Path
) -> None:
    dumps = [build(_BEFORE, "mixed"), mixed_dump] if name == "patch_validation" else [mixed_dump]
    node = make(name, *dumps, output=tmp_path / "report.ipynb")
    assert len(forms(node, "image/svg+xml")) >= plots


@pytest.mark.usually("6.1 patch_validation")
@pytest.mark.parametrize("name", ["capacity_report", "explore", "patch_validation"])
def test_a_notebook_runs_where_kcopyd_is_not_in_use(kernel: str, name: str, tmp_path: Path) -> None:
    idle = build(kernel, "idle")
    dumps = [build(_BEFORE, "idle"), idle] if name == "patch_validation" else [idle]
    node = make(name, *dumps, output=tmp_path / "report.ipynb")
    says_so = any(text.startswith("kcopyd is not in use") for text in forms(node, "text/plain"))
    assert says_so == (name != "explore")


@pytest.mark.usually("6.1")
def test_plots_show_the_results_of_a_dump(
    mixed_dump: Dump, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    debug = [*map(str, mixed_dump.debug)]
    variables = run("capacity_report", monkeypatch, target=str(mixed_dump.core), symbols=debug)
    target = kcensus.open_target(str(mixed_dump.core), mixed_dump.debug)
    assert_plots_show(variables, kcensus.report(target))
    plt.close("all")


@pytest.mark.usually("6.1")
def test_growth_of_two_dumps_is_no_trend(mixed_dump: Dump, kernel: str, tmp_path: Path) -> None:
    """A store with too few records has no trend, and the notebook says so."""
    store, output = tmp_path / "store", tmp_path / "growth.ipynb"
    dumps = [mixed_dump, build(kernel, "idle")]
    arguments = ["record", *(str(dump.core) for dump in dumps), "--store", str(store)]
    debug = symbols(path for dump in dumps for path in dump.debug)
    assert cli.main([*arguments, "--no-progress", *debug]) == Exit.DONE
    assert cli.main(["notebook", "growth", str(store), "-o", str(output)]) == Exit.DONE
    # One chart, which says why there is no forecast.
    assert len(forms(check(output), "image/svg+xml")) == 1
    result = kcensus.trend(str(store))
    assert result.tables["growing"].empty
    assert not result.tables["forecasts"]["expected"].any()
