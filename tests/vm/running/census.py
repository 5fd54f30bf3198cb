# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs in a guest: repeats analyses of its kernel, and reads the kernel's counters around each.

Opens the kernel once, because that takes a minute under emulation. Prints one JSON object per line:
for each repetition of each analysis its answer, what the counters were before and after, and what
memory this process has. Round -1 is with the load frozen, by who starts this, so that the kernel is
at rest but for this process; after the last one, writes of the load wait for a suspended device.
``census.py ROUNDS [ANALYSIS...]``
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kcensus
from kcensus.analyses import analyses
from kcensus.api.answers import Result
from kcensus.sources import Target, open_target

_COUNTERS = {
    "meminfo": "/proc/meminfo",
    "vmstat": "/proc/vmstat",
    "mounts": "/proc/self/mounts",
    "cgroup.stat": "/sys/fs/cgroup/cgroup.stat",
    "slabinfo": "/proc/slabinfo",
    "dentry-state": "/proc/sys/fs/dentry-state",
}


_ORIGIN = "origin"
_CGROUPS = "/sys/fs/cgroup"
_FOLD = Path("/proc/sys/vm/stat_refresh")
"""Adds what CPUs have counted apart to the counters of vmstat."""


def _counters() -> dict[str, str]:
    _FOLD.read_text()
    read = {name: Path(path).read_text() for name, path in _COUNTERS.items()}
    # Only those of the controller have the file; the root is one of them.
    # os.walk() passes over what goes away meanwhile.
    memcgs = sum("memory.stat" in names for _, _, names in os.walk(_CGROUPS))
    return {
        **read,
        "memcgs": str(memcgs),
        "tasks": "".join(_states()),
        "inflight": " ".join(path.read_text() for path in Path("/sys/block").glob("vd*/inflight")),
        "snapshots": _output("dmsetup", "status", "--target", "snapshot"),
    }


def _states() -> Iterator[str]:
    """Yield a line for each task, with its PID and state."""
    for path in Path("/proc").glob("[0-9]*/task/*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            yield f"{path.parent.name} {path.read_text().rpartition(')')[2].split()[0]}\n"


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _memory() -> dict[str, int]:
    status = Path("/proc/self/status").read_text()
    return {name: int(size) for name, size in re.findall(r"^(Vm\w+|Rss\w+):\s+(\d+)", status, re.M)}


def _run(target: Target, name: str) -> dict[str, object]:
    before = _counters()
    start = time.monotonic()
    try:
        result = getattr(kcensus, name.replace("-", "_"))(target)
    except Exception as error:
        return {"analysis": name, "error": f"{type(error).__name__}: {error}"}
    seconds = time.monotonic() - start
    return {
        "analysis": name,
        "seconds": seconds,
        "before": before,
        "after": _counters(),
        "summary": result.summary,
        "gaps": [[gap.what, gap.reason, gap.count] for gap in result.gaps],
        "checks": [[check.name, check.ours, check.counter] for check in result.checks],
        "caches": _caches(result) if name == "slab" else {},
        "pids": result.tables["tasks"]["pid"].tolist() if name == "waits" else [],
        "memory": _memory(),
    }


def _caches(result: Result) -> dict[str, list[int]]:
    """Return how many objects fit in the slabs of each cache, and how many slabs it has."""
    frame = result.tables["caches"].set_index("cache")[["objects_total", "slabs"]]
    return {str(name): [int(each) for each in row] for name, row in frame.T.items()}


def _main(rounds: int, names: list[str]) -> None:
    start = time.monotonic()
    target = open_target(None)
    opened = {"opened": time.monotonic() - start, "memory": _memory()}
    print(json.dumps(opened), flush=True)
    for name in names or analyses():
        _print(-1, target, name)
    subprocess.run(["load", "thaw"], check=True)
    for number in range(rounds):
        for name in names or analyses():
            _print(number, target, name)
    with _suspended():
        for name in ("waits", "kcopyd"):
            _print(rounds, target, name)


def _print(number: int, target: Target, name: str) -> None:
    print(json.dumps({"round": number, **_run(target, name)}), flush=True)


@contextmanager
def _suspended() -> Iterator[None]:
    """Let writes wait for a device; it is absent for a moment where its snapshot is replaced."""
    while subprocess.run(["dmsetup", "suspend", _ORIGIN], capture_output=True).returncode:
        time.sleep(1)
    time.sleep(2)
    yield
    _output("dmsetup", "resume", _ORIGIN)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
