# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus collect`` on a kernel under load, short of memory, and killed."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.reports import examine
from kcensus.sources import open_target
from tests.lab.system import Running
from tests.sample.collect.test_archive import manifest_of, unpacked

pytestmark = pytest.mark.usually  # each run takes minutes under emulation

_LONG = 3600.0
_DIRECTORY = "/run/collect"
_OUT = f"{_DIRECTORY}/case.tar.zst"
_FREE_MIB = 100
_MAX_OFF = 0.02
"""Most of a counter that a figure is off by, under load: 5 % where slabs are of several moments."""
_ALL = ("dentries", "nr_slabs, all caches", "total_objects, all caches", "dentry lists")
"""Checks of counters with so many objects."""
_SECONDS = (0, 2, 5, 10, 20, 30, 45, 60, 90, 120)
"""CPU time until a moment: the first process imports, the second does, opens, and analyses."""


@pytest.fixture(autouse=True)
def _nothing_harmed(guest: Running) -> Iterator[None]:
    """Neither the kernel nor systemd kills a program of the guest, and nothing is left."""
    guest.run(f"rm -rf {_DIRECTORY}; mkdir {_DIRECTORY}").check()
    state = (
        "grep -E '^(oom_kill|pswpout) ' /proc/vmstat; ls -d /sys/fs/cgroup/*/; "
        "systemctl show systemd-journald --property=NRestarts"
    )
    before = guest.run(state).check()
    yield
    assert guest.run(state).check() == before
    assert guest.run("pgrep -f '[k]census.*(collect|child)'").status == 1


def fetched(guest: Running, tmp_path: Path) -> dict[str, bytes]:
    path = tmp_path / "case.tar.zst"
    path.write_bytes(base64.b64decode(guest.run(f"base64 {_OUT}").check()))
    return unpacked(path)


def test_under_load(guest: Running, tmp_path: Path) -> None:
    """The archive is complete, and its capsule gives the figures of its report."""
    guest.run(f"kcensus collect -o {_OUT} --max-time 60m --max-size 1G", timeout=_LONG).check()
    files = fetched(guest, tmp_path)
    assert manifest_of(files)["left_out"] == []
    report = json.loads(files["1/report.json"])
    assert report["failed"] == {}
    assert {*report["analyses"]} == {*analyses(), "patches"}
    checks = [check for each in report["analyses"].values() for check in each.get("checks", ())]
    off = {
        check["name"]: (abs(check["difference"]) - abs(check["moved"] or 0)) / check["counter"]
        for check in checks
        if check["name"] in _ALL
    }
    assert {*off} == {*_ALL}
    assert max(off.values()) < _MAX_OFF, off
    capsule = tmp_path / "case.capsule"
    capsule.write_bytes(files["1/case.capsule"])
    replayed = examine(Context.of(open_target(capsule))).results
    for name in analyses():
        plain = {key: figure.value for key, figure in replayed[name].summary.items()}
        assert plain == pytest.approx(report["analyses"][name]["summary"], nan_ok=True), name


def test_redacted(guest: Running, tmp_path: Path) -> None:
    """No file of the archive has a name that the guest has."""
    names = guest.run("ls /srv/load/files | head -50; hostname").check().split()
    done = guest.run(
        f"kcensus collect -o {_OUT} --max-time 60m --redact names --max-memory 800M", timeout=_LONG
    )
    assert done.status == 0, done.stderr
    files = fetched(guest, tmp_path)
    assert manifest_of(files)["redacted"] == ["names"]
    texts = {name: data for name, data in files.items() if name != "1/case.capsule"}
    for name in filter(lambda each: len(each) > 5, names):
        assert not [file for file, data in texts.items() if name.encode() in data], name


def test_little_memory(guest: Running) -> None:
    """It takes none, and says so; nothing else is killed or waits for memory."""
    fill = (
        "free=$(sed -n 's/MemAvailable: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo); "
        f"head -c $((free / 1024 - {_FREE_MIB}))M /dev/zero >/dev/shm/fill"
    )
    guest.run("mount -o remount,size=95% /dev/shm 2>/dev/null || "
              "mount -t tmpfs -o size=95% none /dev/shm").check()  # fmt: skip
    try:
        done = guest.run(f"{fill}; kcensus collect -o {_OUT} --max-time 10m", timeout=_LONG)
    finally:
        guest.run("rm -f /dev/shm/fill").check()
    assert done.status == 3, done.stderr
    assert "320.0 MiB" in done.stderr
    assert guest.run(f"ls -A {_DIRECTORY}").check() == ""
    assert guest.run("load alive").status == 0


@pytest.mark.parametrize(("seconds", "number"), [*zip(_SECONDS, cycle(("KILL", "TERM")))])
def test_killed(guest: Running, seconds: int, number: str) -> None:
    """Ten moments, by the CPU time of both processes: no process and no file is left."""
    until = (
        "used() { cat /proc/[0-9]*/stat 2>/dev/null | "
        "awk -v p=$pid '$1 == p || $4 == p { n += $14 + $15 } END { print n + 0 }'; }; "
        f'until [ "$(used)" -ge {100 * seconds} ] || ! kill -0 $pid 2>/dev/null; do sleep 0.2; done'
    )
    try:
        guest.run(
            f"kcensus collect -o {_OUT} --max-time 60m >/dev/null 2>&1 & pid=$!; {until}; "
            f"kill -{number} $pid; wait $pid; sleep 1",
            timeout=_LONG,
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError("collect does not end") from error
    assert guest.run(f"ls -A {_DIRECTORY}").check() == ""
