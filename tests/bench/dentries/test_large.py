# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ten million dentries against one and a half: what each takes, and what worker processes gain.

The dump of ten million is built by the first test that needs it: in several minutes, with 5 GB of
memory and 2 GB of disk. With ``KCENSUS_BENCH_HUGE=1`` it is that of 55 million.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.bench.dentries.cgroup import forget, limited
from tests.bench.timing import Cost, cost, peak_memory, report
from tests.lab import Dump, build
from tests.running import on, runner
from tests.vm.cases import opened

FEW = "totals,super_blocks,directories"
LARGE = "negatives-huge" if os.environ.get("KCENSUS_BENCH_HUGE") else "negatives-large"
run = runner("dentries")


@dataclass(frozen=True)
class Measured:
    """What all tables of one dump take."""

    dentries: int
    all_tables: Cost
    few_tables: Cost
    two_jobs: Cost
    memory: int

    def each(self, what: float) -> float:
        """Return seconds or bytes per dentry, in nanoseconds or bytes."""
        return what / self.dentries * (1e9 if isinstance(what, float) else 1)


@cache
def measured(scenario: str, repeat: int) -> Measured:
    dump = build("6.12", scenario)
    prog = opened(dump, form="elf").prog
    result = run(on(prog))
    total, _, _, _, negative, _ = map(int, dump.truth["dentry-state"].split())
    assert result.summary["dentries"].value == total
    assert result.summary["negative"].value == negative

    def least(jobs: int, only: str | None) -> Cost:
        costs = [cost(lambda: run(on(prog, jobs=jobs), only=only)) for _ in range(repeat)]
        return Cost(min(each.elapsed for each in costs), min(each.cpu for each in costs))

    return Measured(
        total,
        least(1, None),
        least(1, FEW),
        least(2, None),
        peak_memory("runner('dentries')(on(prog))", dump.formats["elf"], dump.debug),
    )


@pytest.fixture
def sizes(bench_smoke: bool) -> tuple[Measured, Measured]:
    """The smaller and the larger dump."""
    repeat = 1 if bench_smoke else 3
    few, many = measured("negatives", 3 * repeat), measured(LARGE, repeat)
    for each in (few, many):
        report(
            f"dentries, {each.dentries:,}",
            all_tables_ns_each=each.each(each.all_tables.cpu),
            few_tables_ns_each=each.each(each.few_tables.cpu),
            bytes_each=each.memory / each.dentries,
            MiB=each.memory / 2**20,
            two_jobs_cpu_ns_each=each.each(each.two_jobs.cpu),
            two_jobs_cpu_to_one=each.two_jobs.cpu / each.all_tables.cpu,
            two_jobs_faster=each.all_tables.elapsed / each.two_jobs.elapsed,
        )
    return few, many


def test_time_is_linear(sizes: tuple[Measured, Measured], slack: float) -> None:
    few, many = sizes
    slower = many.each(many.all_tables.cpu) / few.each(few.all_tables.cpu)
    tables = many.all_tables.cpu / many.few_tables.cpu
    report("dentries, many against few", time_each=slower, all_tables_to_few=tables)
    # With few dentries, half of the time is that of everything else.
    assert slower <= 1.1 * slack
    assert tables <= 4 * slack


def test_memory_of_a_dentry(sizes: tuple[Measured, Measured]) -> None:
    few, many = sizes
    growth = (many.memory - few.memory) / (many.dentries - few.dentries)
    report("dentries, many against few", bytes_for_each_more=growth)
    assert growth <= 27, "1.5 GB for 55 million"


def test_two_jobs(sizes: tuple[Measured, Measured], slack: float) -> None:
    few, many = sizes
    assert many.all_tables.elapsed / many.two_jobs.elapsed >= 1.15 / slack
    # What bounds the gain on idle processors: on a busy machine, elapsed time says little.
    assert many.two_jobs.cpu <= 1.2 * slack * many.all_tables.cpu
    assert few.two_jobs.elapsed <= 1.05 * slack * few.all_tables.elapsed


def _command(name: str, dump: Dump, group: Path | None = None) -> tuple[bytes, Cost]:
    """Run a whole command on a dump that is not in the page cache."""
    symbols = [word for path in dump.debug for word in ("-s", str(path))]
    words = [sys.executable, "-m", "kcensus", name, str(dump.formats["elf"]), *symbols, "--json"]
    forget(dump.formats["elf"])
    done: list[subprocess.CompletedProcess[bytes]] = []

    if group is not None:
        # The shell joins the group, and becomes the command.
        words = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group), *words]

    def run() -> None:
        done.append(subprocess.run(words, check=True, stdout=subprocess.PIPE))

    took = cost(run)
    return done[0].stdout, took


def test_less_memory_than_the_dump(slack: float) -> None:
    dump = build("6.12", LARGE)
    most = dump.formats["elf"].stat().st_size * 4 // 14
    whole, free = _command("dentries", dump)
    with limited(most) as group:
        again, tight = _command("dentries", dump, group)
    _, everything = _command("report", dump)
    report(
        f"whole commands, {LARGE}, not in the page cache",
        dentries_cpu_s=free.cpu,
        report_cpu_s=everything.cpu,
        memory_to_dump=4 / 14,
        limited_cpu_to_free=tight.cpu / free.cpu,
        limited_elapsed_to_free=tight.elapsed / free.elapsed,
    )
    assert again == whole
    assert tight.cpu <= 1.5 * slack * free.cpu
