# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who waits for whom among 20,000 tasks, of which 5,000 form a chain."""

from __future__ import annotations

import time

import pytest

from kcensus.analyses import analyses
from kcensus.results import Result
from tests.bench.timing import peak_memory, report
from tests.bench.waits.crowd import Crowd
from tests.lab import build
from tests.running import on
from tests.vm.cases import opened

pytestmark = pytest.mark.usually("6.1")

_SMALL, _LARGE = (2_000, 500), (20_000, 5_000)
"""All tasks, and those of the chain."""
_MOST_RATIO = 10
_MOST_MEMORY = 256 << 20


def _run(kernel: str, count: int, chain: int) -> tuple[Result, float]:
    prog = opened(build(kernel, "waits-convoy"), form="elf").prog
    own = int(prog["nr_threads"])
    Crowd(prog, count, chain)
    # What else the machine does takes no time of this process.
    start = time.process_time()
    result = on(prog).run(analyses()["waits"])
    seconds = time.process_time() - start
    (tasks,) = (check for check in result.checks if check.name == "tasks")
    assert tasks.ours == own + count
    return result, seconds


@pytest.mark.long
def test_a_crowd_and_a_chain(kernel: str, slack: float) -> None:
    seconds = {}
    for count, chain in (_SMALL, _SMALL, _LARGE):
        result, seconds[count] = _run(kernel, count, chain)
        # All wait for the one at the end of the chain, half of them for its first task.
        behind = {f.figures["tasks"].value for f in result.findings if f.kind == "waits-behind"}
        assert 2 * chain in behind
        assert result.amount("deadlocks") == 0
        assert result.amount("tasks_undetermined") == 0
    ratio = seconds[_LARGE[0]] / seconds[_SMALL[0]]
    report("waits, chain of 5,000 tasks", seconds=seconds[_LARGE[0]], times_a_tenth=ratio)
    assert ratio <= _MOST_RATIO * slack


@pytest.mark.long
def test_peak_memory(kernel: str) -> None:
    dump = build(kernel, "waits-convoy")
    body = f"""
from tests.bench.waits.crowd import Crowd
Crowd(prog, {_LARGE[0]}, {_LARGE[1]})
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
runner("waits")(on(prog))
"""
    peak = peak_memory(body, dump.formats["elf"], dump.debug)
    report("waits, chain of 5,000 tasks", MiB=peak / 2**20)
    assert peak < _MOST_MEMORY
