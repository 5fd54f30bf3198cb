# SPDX-License-Identifier: LGPL-2.1-or-later
"""A dump and the trace of the same guest, which goes on after the dump."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kcensus.analyses.iosched.both import pairs
from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.run import run
from kcensus.analyses.iosched.trace.figures import Figures as Traced
from kcensus.kernel.block import MODULES
from kcensus.kernel.kernel import Kernel
from kcensus.sources import open_target
from kcensus.trace.files import read_trace
from tests.lab import build
from tests.vm.iosched.cases import SCHEDULERS, STARVED, usually

pytestmark = usually

# Of struct blk_io_trace: time, action, and the length of what follows.
_EVENT = struct.Struct("<8xQ12xI14xH")
_NOTIFY = 1 << 26


def _start(directory: Path) -> int:
    """Return CLOCK_MONOTONIC of the first event."""
    times: list[int] = []
    for path in directory.glob("trace.blktrace.*"):
        data, at, action = path.read_bytes(), 0, _NOTIFY
        while action & _NOTIFY:
            time, action, more = _EVENT.unpack_from(data, at)
            at += _EVENT.size + more
        times.append(time)
    return min(times)


@pytest.mark.parametrize("scenario", SCHEDULERS)
def test_the_trace_has_the_requests_of_the_dump(kernel: str, scenario: str) -> None:
    dump = build(kernel, scenario)
    traces = dump.path / "traces"
    target = open_target(str(dump.formats["elf"]), dump.debug)
    target.need_modules(*MODULES)
    answer = run(Kernel(target.prog), trace=str(traces))
    figures = Figures(Kernel(target.prog))
    both = pairs(figures, Traced(read_trace(str(traces))))
    assert abs(both.offset_ns - _start(traces)) < 20e6
    rows, requests = answer.tables["requests_traced"].frame, answer.tables["requests"].frame
    assert answer.summary["requests_traced"].value == len(rows) > 0
    own = requests[(requests["disk"] == "vda") & (requests["sector"] >= 0)]
    assert set(rows["address"]) <= set(own["address"])
    # What is lacking was allocated before the trace began, or has no G in it, as writes of the log
    # with flushes, or a time before its G: newer kernels read the clock once for a plug of bios.
    end = (figures.clock.ns - both.offset_ns) / 1e9
    traced = own[(own["age"] < end) & ~own["owner"].str.startswith("xlog")]
    assert rows["address"].isin(traced["address"]).sum() >= 0.7 * len(traced) > 0
    # Since when it is in the scheduler is the same in both; without expiry, since it was allocated.
    inserted = rows[(rows["state"] == "inserted") & rows["inserted"].between(0, end)]
    longer = inserted["waiting"] - (end - inserted["inserted"])
    assert longer.between(-0.1, 2).all()
    if scenario in STARVED:
        is_async = (traced["kind"] == "async") & (traced["state"] == "inserted")
        assert set(traced[is_async]["address"]) <= set(rows["address"])
        async_ = inserted[inserted["kind"] == "async"]
        assert (async_["overtaken_by"] > 100).all()
        assert async_["sleepers"].sum() > 0
