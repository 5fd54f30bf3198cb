# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opening a dump with a type pack, in place of a vmlinux with DWARF."""

from __future__ import annotations

import time
from pathlib import Path

from kcensus.sources import open_target
from kcensus.sources.debuginfo.lookups import lookups
from kcensus.sources.debuginfo.packs.maker import make
from tests.bench.timing import best, report
from tests.lab import Dump

MAX_SECONDS = 0.3


def test_opening(mixed_dump: Dump, tmp_path: Path, slack: float) -> None:
    made = make(mixed_dump.vmlinux, [], lookups())
    (tmp_path / made.head.file_name).write_bytes(made.data)

    def opening(symbols: Path) -> float:
        def run() -> None:
            target = open_target(mixed_dump.core, [symbols])
            # drgn reads DWARF when it is first asked.
            assert target.prog.type("struct task_struct").size
            assert target.prog.symbol("init_task").address

        run()  # into the page cache
        return best(run, 3, time.process_time)

    dwarf, pack = opening(mixed_dump.vmlinux), opening(tmp_path)
    report(
        f"opening, {mixed_dump.kernel} ELF",
        pack_seconds=pack,
        times_faster_than_dwarf=dwarf / pack,
        MB=len(made.data) / 1e6,
    )
    assert pack <= MAX_SECONDS * slack
    assert pack <= dwarf * slack
