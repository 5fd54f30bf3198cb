# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus watch`` on guests that go on working, and what Prometheus says of its metrics."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kcensus.analyses import analyses
from kcensus.watch.sampler import CPU_SHARE
from tests.lab import Live, live
from tests.lab.debian.files import promtool

RULES = Path(__file__).parents[3] / "docs" / "monitoring" / "alerts.yml"
_MAX_CPU_SHARE = 0.02 - CPU_SHARE
"""Of one CPU: what samples at the default interval may take beside censuses."""
_INTERVAL = 10
"""Seconds, by default."""


@pytest.fixture(scope="module")
def guest(kernel: str) -> Iterator[Live]:
    with live(kernel, "churn") as made:
        yield made


def command(guest: Live, *arguments: str) -> list[str]:
    options = [f"qmp:{guest.qmp}", "-s", str(guest.vmlinux), "--interval", "2s"]
    return ["-m", "kcensus", "watch", *options, *arguments]


@pytest.mark.usually("6.1")
def test_samples_of_a_working_guest(guest: Live, tmp_path: Path) -> None:
    path = tmp_path / "kcensus.prom"
    words = command(guest, "--count", "5", "--census", "3", "--json", "--metrics", str(path))
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    # A machine with much else to do is late.
    errors = [line for line in done.stderr.splitlines() if "takes longer than" not in line]
    assert errors == []
    samples = [json.loads(line) for line in done.stdout.splitlines()]
    assert [sample["sample"] for sample in samples] == [1, 2, 3, 4, 5]
    assert [sample["census"] is not None for sample in samples] == [True, False, False, True, False]
    # Memory that changes may be torn, but not each time.
    failed = Counter(name for sample in samples for name in sample["failed"])
    assert max(failed.values(), default=0) < len(samples) - 1, failed
    # The first one finds types that the others know.
    whole = [each for each in samples[1:] if {*each["gauges"], *each["failed"]} == {*analyses()}]
    assert whole, "no sample has all counters"
    assert min(each["cpu_seconds"] for each in whole) < _MAX_CPU_SHARE * _INTERVAL
    counted = [sample["gauges"]["dentries"]["nr_dentry"] for sample in samples]
    assert len({*counted}) > 1, "nothing moved"
    census = samples[3]["census"]
    assert {*census["summary"]} == {*analyses()}
    low, high = sorted(counted[3:])  # before the census, and after
    assert 0.9 * low < census["summary"]["dentries"]["dentries"] < 1.1 * high

    families = {each.name: each for each in text_string_to_metric_families(path.read_text())}
    (dentries,) = families["kcensus_dentries_nr_dentry"].samples
    assert dentries.value == counted[-1]
    with path.open() as file:
        checked = subprocess.run([promtool(), "check", "metrics"], stdin=file, check=False)
    assert checked.returncode == 0


@pytest.mark.usually("6.1")
def test_the_terminal_is_left_as_it_was(guest: Live) -> None:
    words = command(guest, "--census", "0")
    words.insert(3, "dentries")
    # Without an environment it gets C's, where pytest's readline sets COLUMNS.
    environment = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    with pexpect.spawn(
        sys.executable, words, dimensions=(24, 80), timeout=120, encoding="utf-8", env=environment
    ) as child:
        child.expect(r"\x1b\[\?1049h")
        child.expect("sample 2")
        child.setwinsize(40, 120)
        child.expect(" {100}")  # part of an empty line, which has 80 before
        child.sendintr()
        child.expect(r"\x1b\[\?1049l")
        child.expect(r"stopped after \d+ samples")
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0


def test_rules() -> None:
    done = subprocess.run([promtool(), "check", "rules", str(RULES)], check=False)
    assert done.returncode == 0


_UP = {"kcensus_up": "1x800"}
_ALIVE = {**_UP, "kcensus_last_census_timestamp_seconds": "0+60x800"}
_DEADLOCK = {"kcensus_waits_deadlocks": "1x800"}
_STANDING = {"kcensus_iosched_inserted": "7x800", "kcensus_iosched_worst_wait_seconds": "40x800"}
_BAD = {**_DEADLOCK, **_STANDING}
_LONG_WAIT = {
    "kcensus_waits_longest_wait_seconds": "0+60x800",
    "kcensus_waits_nr_uninterruptible": "3x800",
}
_STALE = {"kcensus_last_sample_timestamp_seconds": "0x800", "kcensus_interval_seconds": "300x800"}
_SHARE = "kcensus_memcgs_share_of_ram_ratio"
_OUTSIDE = ("per_cpu", "shmem", "anon", "kernel")
_SAMPLED = {"kcensus_up": "1x7000"}


def _filling(each: float) -> dict[str, str]:
    """Return series of a kernel whose memory grows by so many GB a minute, of 8 GB; no kcopyd."""
    outside = {f"kcensus_memcgs_{name}_bytes": "0x7000" for name in _OUTSIDE}
    outside["kcensus_memcgs_shmem_bytes"] = f"0+{each * 1e9 / 2}x7000"
    ratio = {"kcensus_slab_share_of_ram_ratio": f"0.125+{each / 16}x7000"}
    slab = f"1e9+{each * 1e9 / 2}x7000"
    slabs = {f"kcensus_slab_{name}_bytes": slab for name in ("slab", "unreclaimable")}
    return {**_SAMPLED, **outside, **ratio, **slabs}


_TOTAL, _AVAILABLE = "node_memory_MemTotal_bytes", "node_memory_MemAvailable_bytes"


def _cut(series: dict[str, str], minutes: int) -> dict[str, str]:
    """Return series that end after some minutes."""
    return {name: values.replace("x800", f"x{minutes}") for name, values in series.items()}


@pytest.mark.parametrize(
    ("alert", "time", "series"),
    [
        ("KernelTasksBlocked", "45m", {**_ALIVE, **_DEADLOCK}),
        ("KernelTasksBlocked", "90m", {**_ALIVE, **_LONG_WAIT}),
        ("KernelMemoryGrowsWithoutEnd", "10h", {**_ALIVE, _SHARE: "0.01+0.0001x800"}),
        ("KernelRequestsNotDispatched", "45m", {**_ALIVE, **_STANDING}),
        ("KernelMemoryFullInAWeek", "100h", _filling(0.0006)),
        ("", "100h", _filling(0.0001)),
        (
            "HostMemoryFullInAWeek",
            "100h",
            {**_SAMPLED, _TOTAL: "9e9x7000", _AVAILABLE: "8e9-6e5x7000"},
        ),
        ("KcensusStale", "50m", {**_ALIVE, **_STALE}),
        ("KcensusAbsent", "30m", {"kcensus_up": "1x5 _x55"}),
        ("", "45m", {**_UP, "kcensus_last_census_timestamp_seconds": "0x800", **_DEADLOCK}),
        ("", "28m", {**_ALIVE, **_BAD}),
        ("", "55m", _cut({**_ALIVE, **_BAD}, 40)),
        ("", "45m", {**_ALIVE, **_BAD, "kcensus_up": "1x38 0x40"}),
        (
            "KernelTasksBlocked",
            "45m",
            {**_ALIVE, **_DEADLOCK, "kcensus_up": "1x12 _x5 1x24 _ 1x20"},
        ),
        ("", "10h", {**_ALIVE, _SHARE: "0.03x480 0.03+0.005x60 0.33x200"}),
        (
            "",
            "45m",
            {**_ALIVE, "kcensus_iosched_inserted": "7x9", "kcensus_waits_deadlocks": "0x800"},
        ),
    ],
)
def test_rules_fire(tmp_path: Path, alert: str, time: str, series: dict[str, str]) -> None:
    names = re.findall(r"- alert: (\w+)", RULES.read_text())
    fired = subprocess.run(
        [promtool(), "test", "rules", _case(tmp_path, names, time, series)],
        capture_output=True,
        text=True,
        check=False,
    )
    # promtool compares with no alert at all, and says which there are.
    got = {*re.findall(r'alertname="(\w+)"', fired.stdout + fired.stderr)}
    assert got == ({alert} if alert else set()), fired.stdout + fired.stderr
    assert fired.returncode == (1 if alert else 0)


def _case(directory: Path, names: list[str], time: str, series: dict[str, str]) -> Path:
    """Write a test of rules that expects no alert. JSON is YAML."""
    case = directory / "case.yml"
    inputs = [
        {"series": f'{name}{{instance="host"}}', "values": values}
        for name, values in series.items()
    ]
    expected = [{"eval_time": time, "alertname": name, "exp_alerts": []} for name in names]
    test = {"interval": "1m", "input_series": inputs, "alert_rule_test": expected}
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
    case.write_text(json.dumps(document))
    return case
