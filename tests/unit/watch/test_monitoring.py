# SPDX-License-Identifier: LGPL-2.1-or-later
"""The dashboard, the rules and the page about them are about metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.watch.metrics import Metrics
from tests.unit.watch import making

MONITORING = Path(__file__).parents[3] / "docs" / "monitoring"


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """Names of all metrics of a recorded kernel."""
    made = Metrics(rows=1)
    sample = making.sampler(*analyses().values()).take()
    made.set(sample, every=10, cpu_seconds=1, resident_bytes={"anonymous": 1})
    return {family.name for family in made.collect()}


@pytest.mark.parametrize("name", ["kcensus.json", "alerts.yml", "README.md"])
def test_metrics_exist(name: str, exported: set[str]) -> None:
    named = {*re.findall(r"\bkcensus_[a-z0-9_]+\b", (MONITORING / name).read_text())}
    assert len(named) > 6
    assert named - exported == set()


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads((MONITORING / "kcensus.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    for panel in panels:
        assert panel["description"]
        assert all("$instance" in target["expr"] for target in panel["targets"])
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
