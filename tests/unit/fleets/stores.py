# SPDX-License-Identifier: LGPL-2.1-or-later
"""Small stores of fleets, made without any target."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from kcensus.fleets.store import FIGURES, writer
from kcensus.fleets.tables import arrow
from kcensus.store.layout import SCHEMA

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
GIB = 1 << 30


@dataclass(frozen=True)
class Target:
    """A target as the tests need it."""

    name: str
    host: str = "web"
    day: float = 0.0
    boot: str = "b00f"
    release: str = "6.1"
    findings: Mapping[str, str] = field(default_factory=dict)
    """Severity by kind."""
    features: Sequence[tuple[str, str, float]] = ()
    """Kind, text and weight of those that are not findings."""
    figures: Mapping[str, int] = field(default_factory=dict)
    """Bytes by key of the summary of slab."""
    patches: Mapping[str, float] = field(default_factory=dict)
    """Costs in bytes of the missing fixes."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of ``targets``."""


WEIGHTS = {"critical": 3.0, "warning": 2.0, "notice": 0.5}


def rows(target: Target) -> dict[str, pa.Table]:
    """Return the rows of a target, by table."""
    time = START + datetime.timedelta(days=target.day)
    common = {"day": f"{time:%Y-%m-%d}", "attempt": target.name, "host": target.host}
    own = {
        "target": f"/srv/{target.name}/vmcore", "state": "done", "time": time, "boot": target.boot,
        "release": target.release, "record": f"r-{target.name}",
        "sha256": target.name,
    }  # fmt: skip
    features = [("finding", kind, WEIGHTS[severity]) for kind, severity in target.findings.items()]
    tables: dict[str, list[dict[str, Any]]] = {
        "targets": [{**own, **target.row}],
        "findings": [
            {"analysis": "a", "finding": kind, "kind": kind, "severity": severity,
             "title": f"{kind} of {target.host}", "part_of": ""}
            for kind, severity in target.findings.items()
        ],
        "features": [
            {"kind": kind, "feature": text, "weight": weight}
            for kind, text, weight in (*features, *target.features)
        ],
        "patches": [
            {"release": target.release, "patch": patch, "kind": "fix", "state": "absent",
             "cost_bytes": cost}
            for patch, cost in target.patches.items()
        ],
    }  # fmt: skip
    made = {name: arrow(name, each, common) for name, each in tables.items()}
    figures = [
        {"host": target.host, "day": common["day"], "record": own["record"], "time": time,
         "boot": target.boot, "release": target.release, "analysis": "slab", "part": "summary",
         "metric": key, "unit": "bytes", "value": float(value), "ram_bytes": GIB}
        for key, value in target.figures.items()
    ]  # fmt: skip
    if figures:
        made[FIGURES] = pa.Table.from_pylist(figures, SCHEMA)
    return made


def made(path: Path, targets: Sequence[Target]) -> Path:
    """Write a store of targets."""
    with writer(path) as store:
        store.add([*map(rows, targets)])
    return path
