# SPDX-License-Identifier: LGPL-2.1-or-later
"""A report of a compressed dump: how often each page is read, and what worker processes gain."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.engine.memory import Memory
from kcensus.sources import open_target
from tests.bench.timing import Cost, cost, report
from tests.lab import build
from tests.running import on, runner


def _measured(path: Path, debug: list[Path], jobs: int, repeat: int) -> Cost:
    def run() -> None:
        context = on(open_target(str(path), debug).prog, jobs=jobs)
        for name in analyses():
            runner(name)(context)

    costs = [cost(run) for _ in range(repeat)]
    return Cost(min(each.elapsed for each in costs), min(each.cpu for each in costs))


@pytest.mark.long
@pytest.mark.parametrize("form", ["kdump-lzo", "kdump-zlib"])
def test_report_of_a_compressed_dump(
    form: str, slack: float, bench_smoke: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump, repeat = build("6.1", "negatives"), 1 if bench_smoke else 3
    path, plain = dump.formats[form], dump.formats["kdump-elf"]
    one, two = (_measured(path, dump.debug, jobs, repeat) for jobs in (1, 2))
    uncompressed = _measured(plain, dump.debug, 1, repeat)

    pages: Counter[int] = Counter()
    read = Memory._read

    def counting(memory: Memory, address: int, size: int) -> bytes:
        pages.update(
            range(address >> memory.page_shift, ((address + size - 1) >> memory.page_shift) + 1)
        )
        return read(memory, address, size)

    monkeypatch.setattr(Memory, "_read", counting)
    _measured(path, dump.debug, 1, 1)
    report(
        f"report, 6.1 negatives, {form}",
        cpu_s=one.cpu,
        cpu_to_uncompressed=one.cpu / uncompressed.cpu,
        two_jobs_faster=one.elapsed / two.elapsed,
        two_jobs_cpu_to_one=two.cpu / one.cpu,
        times_a_page_is_read=pages.total() / len(pages),
    )
    assert pages.total() / len(pages) <= 1.15
    assert two.cpu <= 1.25 * slack * one.cpu
