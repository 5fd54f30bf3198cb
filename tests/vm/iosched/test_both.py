# SPDX-License-Identifier: LGPL-2.1-or-later
"""A dump, and a trace of the same guest, of another one, or none."""

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
from kcensus.sources.blktrace.files import read_trace
from tests.lab import build
from tests.lab.debian.store import is_compiled
from tests.vm.cases import command, opened
from tests.vm.iosched.cases import SCHEDULERS, STARVED, usually

pytestmark = pytest.mark.machines

# Of struct blk_io_trace: time, action, and the length of what follows.
_EVENT = struct.Struct("<8xQ12xI14xH")
_NOTIFY = 1 << 26


def _start(directory: Path) -> int:
    times: list[int] = []
    for path in directory.glob("trace.blktrace.*"):
        data, at, action = path.read_bytes(), 0, _NOTIFY
        while action & _NOTIFY:
            time, action, more = _EVENT.unpack_from(data, at)
            at += _EVENT.size + more
        times.append(time)
    return min(times)


@usually
@pytest.mark.parametrize("scenario", SCHEDULERS)
def test_the_trace_has_the_requests_of_the_dump(kernel: str, scenario: str) -> None:
    if is_compiled(kernel):
        pytest.skip("compiled without FTRACE, which blktrace needs")
    dump = build(kernel, scenario)
    traces = dump.path / "traces"
    prog = opened(dump, *MODULES).prog
    answer = run(Kernel(prog), trace=str(traces))
    figures = Figures(Kernel(prog))
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


@pytest.mark.parametrize("has_text", [False, True])
def test_a_trace_of_another_guest_is_not_joined(
    has_text: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = build("6.1", "iosched-starved")
    trace = build("6.1", "iosched-starved-deadline").path / "traces"
    if has_text:
        (tmp_path / "trace.txt").write_text(
            "254,0    0        1     0.000000000   103  Q  RS 8 + 8 [direct-read]\n"
            "254,0    0        2     0.000000100   103  G  RS 8 + 8 [direct-read]\n"
            "254,0    0        3     0.000000200   103  I  RS 8 + 8 [direct-read]\n"
        )
        trace = tmp_path / "trace.txt"
    status, found, _ = command(capsys, "iosched", *dump.arguments, "--trace", str(trace))
    assert status == 0
    assert found["summary"]["requests_traced"] == 0
    assert not found["tables"]["requests_traced"]
    reasons = [gap["reason"] for gap in found["gaps"]]
    # Guests that were started in the same second are not told apart by their clocks.
    assert any("or machine" in reason for reason in reasons)
    # Those of the trace are parts of each other at most.
    parents = {each["id"]: each["part_of"] for each in found["findings"] if each["part_of"]}
    assert all(
        parent.startswith("trace-") == name.startswith("trace-") for name, parent in parents.items()
    )


def test_a_trace_that_is_not_there_costs_nothing_of_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["iosched", *build("6.1", "iosched-starved").arguments]
    (_, alone, _), (status, found, _) = (
        command(capsys, *words, *more) for more in ([], ["--trace", str(tmp_path / "sda")])
    )
    assert status == 0
    assert found["summary"] == alone["summary"]
    assert found["gaps"][0]["what"] == "trace"
