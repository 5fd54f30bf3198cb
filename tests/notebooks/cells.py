# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs the cells of a notebook in the process of a test, to read back what they draw."""

from __future__ import annotations

import re
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer

import kcensus
from kcensus.commands.notebook.library import cells, notebooks

_ADDENDS = {
    "largest": ("slab", "caches", "cache", ["bytes"]),
    "waste": ("slab", "waste", "cache", ["free_bytes", "padding_bytes", "tail_bytes"]),
    "fill": ("slab", "fill", "fill", ["slabs"]),
    "directories": ("dentries", "directories", "directory", ["negative"]),
    "patterns": ("dentries", "patterns", "pattern", ["negative"]),
    "projection": ("list-lru", "projection", "stage", ["bytes"]),
    "jobs": ("kcopyd", "clients", "device", ["jobs"]),
    "pins": ("memcgs", "pins", "kind", ["memcgs"]),
}
"""By plot of ``capacity_report``: analysis, table, names of bars, and what adds up to them."""
_ORDERED = ("fill", "projection")
"""Plots that show all rows in the order of the table, also empty ones."""


def run(name: str, monkeypatch: pytest.MonkeyPatch, **parameters: object) -> dict[str, Any]:
    notebook = notebooks()[name]
    variables: dict[str, Any] = {}
    monkeypatch.setattr(plt, "show", lambda: None)
    for marker, source in cells(notebook.path.read_text(encoding="utf-8")):
        if "[markdown]" not in marker:
            exec(compile(source, notebook.path, "exec"), variables)
        if "parameters" in marker:
            variables.update(parameters)
    return variables


def bars(ax: Axes) -> list[tuple[str, float]]:
    containers = [each for each in ax.containers if isinstance(each, BarContainer)]
    lengths = pd.DataFrame([[bar.get_width() for bar in parts] for parts in containers]).sum()
    # The bar of a merged cache: "bio-3 + 1 merged".
    names = [re.sub(r" \+ [\d,]+ merged$", "", each.get_text()) for each in ax.get_yticklabels()]
    return list(zip(names, lengths.astype(float), strict=True))


def assert_plots_show(variables: dict[str, Any], report: kcensus.Report) -> None:
    for plot, (analysis, table, names, addends) in _ADDENDS.items():
        rows = report.results[analysis].tables[table]
        amounts = rows[addends].sum(axis=1).astype(float)
        expected = pd.Series(amounts.to_numpy(), index=rows[names])
        if plot not in _ORDERED:
            expected = expected[expected > 0].groupby(level=0).sum()
            expected = expected.sort_values(ascending=False).head(10)
        drawn = bars(variables[plot])
        assert [length for _, length in drawn] == expected.to_list(), plot
        whole = [(name, length) for name, length in drawn if "…" not in name]
        assert whole or not drawn
        # Bars of one length are in any order, and some may be among those that are left out.
        everything = pd.Series(amounts.to_numpy(), index=rows[names]).groupby(level=0).sum()
        assert [(name, everything[name]) for name, _ in whole] == whole, plot
    slab = report.results["slab"]
    line = variables["utilization"].lines[1]
    assert line.get_xdata() == pytest.approx([slab.summary["utilization"]] * 2)
    machine = slab.result.machine
    assert machine is not None
    for bar in ("ram", "analysed"):
        assert sum(length for _, length in bars(variables[bar])) == machine.ram_bytes, bar
