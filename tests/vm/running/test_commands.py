# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands on the running kernel, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kcensus.analyses import analyses
from tests.lab.system import Running

pytestmark = pytest.mark.usually  # each command takes a minute under emulation

_OUTPUT = "/run/output"


def test_the_machine_computes_right(guest: Running) -> None:
    """An emulated CPU may not, and then no other test of this folder shows anything."""
    command = ["memcgs", "sample", "--json"]
    here = subprocess.run(
        [sys.executable, "-m", "kcensus", *command], capture_output=True, text=True, check=True
    )
    assert guest.run(f"kcensus {' '.join(command)}").check() == here.stdout


def test_report(guest: Running) -> None:
    report = json.loads(guest.run("kcensus report --json", timeout=1200).check())
    assert {*report["analyses"]} >= {*analyses()}
    assert report["failed"] == {}


def test_doctor(guest: Running) -> None:
    doctor = json.loads(guest.run("kcensus doctor --json").check())
    works = {row["analysis"]: row["works"] for row in doctor["tables"]["analyses"]}
    assert works == dict.fromkeys(analyses(), "yes")


def test_shell(guest: Running) -> None:
    done = guest.run("kcensus shell -e \"print(int(prog['init_task'].pid))\"")
    assert done.check().strip() == "0"


def test_two_at_once(guest: Running) -> None:
    commands = [f"kcensus {name} --json >{_OUTPUT}-{name} & " for name in ("memcgs", "list-lru")]
    guest.run("".join(commands) + "wait").check()
    for name in ("memcgs", "list-lru"):
        answer = json.loads(guest.run(f"cat {_OUTPUT}-{name}; rm {_OUTPUT}-{name}").check())
        assert answer["summary"]["memcgs_online"] > 1


_READING = (
    "until ls -l /proc/$!/fd | grep -q /proc/kcore; do sleep 0.5; done; "
    "used() { cut -d ' ' -f 14 /proc/$!/stat; }; begin=$(used); "
    'until [ "$(used)" -ge $((begin + 100)) ]; do sleep 0.1; done'
)
"""Waits until the command in the background has read the kernel for a second of CPU time."""


@pytest.mark.parametrize(
    ("command", "until", "left"),
    [
        (f"report --json {_OUTPUT}/report.json --html {_OUTPUT}/report.html", _READING, []),
        # Makes the store, before there is anything in it.
        (
            f"record --store {_OUTPUT}/series",
            _READING,
            [f"{_OUTPUT}/series/_delta_log/{0:020}.json"],
        ),
        # Complete, and its alert fires.
        (
            f"watch dentries --metrics {_OUTPUT}/kcensus.prom",
            f"until [ -e {_OUTPUT}/kcensus.prom ]; do sleep 0.5; done",
            [f"{_OUTPUT}/kcensus.prom"],
        ),
    ],
    ids=["report", "record", "watch"],
)
def test_killed(guest: Running, command: str, until: str, left: list[str]) -> None:
    """SIGKILL leaves no process and no file that is not complete."""
    places = f"/tmp /var/tmp /dev/shm /root /home {_OUTPUT}"
    files = f"find {places} -type f 2>/dev/null | sort"
    guest.run(f"rm -rf {_OUTPUT}; mkdir {_OUTPUT}").check()
    before = guest.run(files).stdout.splitlines()
    guest.run(f"kcensus {command} >/dev/null 2>&1 & {until}; kill -KILL $!").check()
    assert guest.run("pgrep -f '[k]census (report|record|watch)'").status == 1
    assert guest.run(files).stdout.splitlines() == sorted([*before, *left])
    ends = {path: guest.run(f"tail -n 1 {path}").check().strip() for path in left}
    assert all(end.endswith(("# EOF", "}")) for end in ends.values()), ends
