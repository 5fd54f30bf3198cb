# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ten million dentries against one and a half: time and memory per dentry.

``python -m tests.bench.dentries_large`` builds a dump that nothing else uses: that takes several
minutes, 5 GB of memory and 3 GB of disk.
"""

from __future__ import annotations

from kcensus.sources import open_target
from tests.bench.timing import best, peak_memory
from tests.lab import build
from tests.running import on, runner

run = runner("dentries")


def measure(scenario: str) -> tuple[int, float, int]:
    """Dentries, seconds, and peak memory."""
    dump = build("6.12", scenario)
    target = open_target(str(dump.formats["elf"]), dump.debug)
    context = on(target.prog)
    result = run(context)
    total, _, _, _, negative, _ = map(int, dump.truth["dentry-state"].split())
    assert result.summary["dentries"].value == total
    assert result.summary["negative"].value == negative
    seconds = best(lambda: run(on(target.prog)), 3)
    memory = peak_memory("runner('dentries')(on(prog))", dump.formats["elf"], dump.debug)
    print(f"{scenario}: {total:,} dentries, {seconds / total * 1e9:.0f} ns and ", end="")
    print(f"{memory / total:.1f} bytes each, {memory / 2**20:.0f} MiB", flush=True)
    return total, seconds, memory


def main() -> None:
    few, few_seconds, few_bytes = measure("negatives")
    many, many_seconds, many_bytes = measure("negatives-large")
    slower = (many_seconds / many) / (few_seconds / few) - 1
    growth = (many_bytes - few_bytes) / (many - few)
    print(f"time per dentry: {slower:+.1%}; memory: {growth:.1f} bytes for each more")
    assert many >= 10_000_000
    assert slower <= 0.25
    assert growth <= 48


if __name__ == "__main__":
    main()
