# SPDX-License-Identifier: LGPL-2.1-or-later
"""Peak memory above the debug information, on dumps of every kernel; all with ``--all``."""

from __future__ import annotations

import pytest

from tests.bench.timing import peak_memory, report
from tests.lab import build, kernels_of, scenarios
from tests.lab.scenario import load

LIMIT = 300 << 20

BODIES = {
    "slab": "runner('slab')(on(prog))",
    "objects": "frame = objects(prog, 'struct dentry', ['d_inode', 'd_flags', 'd_parent'])",
}


@pytest.mark.usually("6.1 mixed")
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    ("release", "scenario"),
    [
        (release, scenario)
        for scenario in scenarios()
        for release in kernels_of(scenario)
        if not load(scenario, release).live
    ],
)
def test_peak(release: str, scenario: str, body: str) -> None:
    dump = build(release, scenario)
    for format_, path in dump.formats.items():
        peak = peak_memory(BODIES[body], path, dump.debug)
        report(f"peak memory, {body}, {release} {scenario} {format_}", MiB=peak / 2**20)
        assert peak < LIMIT
