# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules of other hosts have the cause of their sample."""

from __future__ import annotations

from pathlib import Path

import pytest

import kcensus
from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.fleets.causes import features
from kcensus.reports import Report, report
from tests.varied import CAUSES, Varied, fleet


def reported(path: str) -> Report:
    return report(Context.of(kcensus.open_target(path)), [analyses()["waits"]])


def test_host_boot_and_time_differ_and_the_cause_does_not(tmp_path: Path) -> None:
    first, second = (str(tmp_path / name) for name in ("1.capsule", "2.capsule"))
    Varied.of("sample-arm64").write(Path(first), "one")
    Varied.of("sample-arm64").write(Path(second), "two.example.net", 7, 86400)
    one, two = reported(first), reported(second)
    machines = [each.head.machine for each in (one, two)]
    assert [each.host for each in machines if each] == ["one", "two.example.net"]
    assert machines[0]
    assert machines[1]
    assert machines[0].boot != machines[1].boot
    assert (machines[1].time or 0.0) - (machines[0].time or 0.0) == 86400
    assert [*features(one)] == [*features(two)] != []


def test_two_samples_of_one_cause_have_its_features_in_common() -> None:
    x86, arm = ({*features(reported(name))} for name in ("sample-waits", "sample-arm64"))
    assert CAUSES["sample-waits"] == CAUSES["sample-arm64"]
    assert x86 & arm == x86


@pytest.mark.slow
def test_hosts_of_a_fleet_have_dumps_of_one_cause(tmp_path: Path) -> None:
    made = fleet(tmp_path, 2, dumps=2)
    assert [Path(path).name for path in made] == ["00000-0.capsule", "00000-1.capsule"]
    assert len({*made.values()}) == 1
