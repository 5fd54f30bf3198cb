# SPDX-License-Identifier: LGPL-2.1-or-later
"""Analyses of guests that go on working while they are read, once and again and again."""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.api.objects import IncompleteWarning, objects
from kcensus.results import CheckStatus
from kcensus.sources import open_target
from tests.lab import live

pytestmark = pytest.mark.filterwarnings(
    f"ignore::{IncompleteWarning.__module__}.{IncompleteWarning.__name__}"
)

_MAX_SECONDS = 300
"""Of one analysis; it takes one or two, and a busy host stops for half a minute."""
_ROUNDS = 1000
_MAX_RATIO = 20
"""Of the CPU time of an analysis to its median."""
_MAX_DRIFT = 2000
"""Of small counters, and of the items on lists that were freed meanwhile."""
_MAX_GROWTH = 1.05
"""Of the memory in the last third of the rounds to that in the second: in the first, drgn reads the
debug info of each function and type that it meets."""


class Endless(BaseException):
    """An analysis does not end; what catches errors of an analysis does not catch this."""


@contextmanager
def deadline(what: str) -> Iterator[None]:
    """Raise ``Endless`` in an analysis that does not end."""

    def expire(_signal: int, _frame: object) -> None:
        raise Endless(f"{what} took more than {_MAX_SECONDS} s")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.alarm(_MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.usually
def test_repetitions(kernel: str) -> None:
    expected = {"dentries", "dentry lists", "charged slab objects"}
    seconds: dict[str, list[float]] = defaultdict(list)
    resident: list[int] = []  # pages
    moved: set[str] = set()
    with live(kernel, "churn-all") as guest:
        context = Context.of(open_target(f"qmp:{guest.qmp}", guest.debug))
        context.load_modules([*analyses().values()])
        for number in itertools.count():
            # On a busy host, the guest may stand still for some rounds.
            if number >= _ROUNDS and (expected <= moved or number >= 10 * _ROUNDS):
                break
            for name, analysis in analyses().items():
                own = replace(context, kernel=context.kernel.renewed())
                start = time.process_time()
                with deadline(name):
                    result = own.run(analysis)
                seconds[name].append(time.process_time() - start)
                moved |= {check.name for check in result.checks if check.moved}
                for check in result.checks:
                    # What differs, differs by a size, and never silently.
                    if check.status is CheckStatus.DIFFER:
                        assert check.beyond
                        assert check.note or check.moved is not None
                    # Whatever is torn, no figure is of another order than the kernel's.
                    bound = max(check.counter or 0, _MAX_DRIFT)
                    assert abs(check.difference or 0) <= bound, (name, check)
            resident.append(int(Path("/proc/self/statm").read_text().split()[1]))
        guest.stop()
        for analysis in analyses().values():
            result = replace(context, kernel=context.kernel.renewed()).run(analysis)
            assert {check.moved for check in result.checks} <= {None, 0}
    assert expected <= moved
    for name, times in seconds.items():
        assert max(times) < max(_MAX_RATIO * statistics.median(times), 5), name
    third = _ROUNDS // 3
    second = statistics.mean(resident[third : 2 * third])
    assert statistics.mean(resident[2 * third :]) < _MAX_GROWTH * second


def kcensus(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kcensus", *arguments], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.usually
def test_slab_on_a_working_guest(kernel: str) -> None:
    with live(kernel, "churn") as guest:
        options = [f"qmp:{guest.qmp}", "-s", str(guest.vmlinux)]
        result = json.loads(kcensus("slab", *options, "--json"))
        assert result["live"] is True
        summary = result["summary"]
        assert 0 < summary["objects_active"] <= summary["objects_total"]
        assert 0 < summary["active_bytes"] <= summary["slab_bytes"]
        # Torn data moves figures a little; it must not make them nonsense.
        for check in result["checks"]:
            if check["name"].startswith(("nr_slabs, all", "total_objects, all")):
                assert abs(check["difference"]) < 0.1 * check["counter"]
        shown = kcensus("slab", *options).splitlines()
        assert any(line.split()[:1] == ["Live"] for line in shown[:12])
        prog = open_target(f"qmp:{guest.qmp}", [guest.vmlinux]).prog
        sizes = [len(objects(prog, "struct dentry", ["d_inode", "d_parent"])) for _ in range(5)]
        assert min(sizes) > 1000
