# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules of other hosts, boots and times than the bundled ones, with the causes of these."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kcensus.samples import capsule
from kcensus.sources import open_target
from kcensus.sources.capsule.container import BLOCK_PAGES, RUN, Reader, writing


@dataclass(frozen=True)
class Varied:
    """The pages of a capsule, and where they name the host, the boot and the time."""

    reader: Reader
    pages: bytes
    page_size: int
    host: slice
    boot: slice
    time: slice

    @staticmethod
    @functools.cache
    def of(sample: str) -> Varied:
        """Read a capsule: the name of a bundled one, or a path."""
        path = capsule(sample) or Path(sample)
        target, reader = open_target(sample), Reader(str(path))
        size = int(target.prog["PAGE_SIZE"])
        index = reader.index(size)
        blocks = range(len(index.offsets) - 1)
        pages = b"".join(reader.block(index, number, size) for number in blocks)

        def place(address: int, length: int) -> slice:
            page = target.prog.read(address - address % size, size)
            assert pages.count(page) == 1
            start = pages.index(page) + address % size
            return slice(start, start + length)

        prog = target.prog
        # Since Linux kernel commit 22c62b9a84b8 ("timekeeping: Introduce auxiliary timekeepers")
        # (in v6.17), tk_core is a macro for an element of an array.
        try:
            core = prog["timekeeper_data"][0]
        except LookupError:
            core = prog["tk_core"]
        return Varied(
            reader, pages, size,
            place(prog["init_uts_ns"].name.nodename.address_, 65),
            place(prog["init_task"].stack_canary.address_, 8),
            place(core.timekeeper.xtime_sec.address_, 8),
        )  # fmt: skip

    def write(self, path: Path, host: str, boot: int = 0, later: float = 0) -> None:
        """Write the capsule of another host, boot and time.

        :param boot: identifies the boot of the host; 0 for that of the sample
        :param later: seconds between the time of the sample and that of the capsule
        """
        pages = bytearray(self.pages)
        pages[self.host] = host.encode().ljust(65, b"\0")
        if boot:
            pages[self.boot] = boot.to_bytes(8, "little")
        time = int.from_bytes(pages[self.time], "little") + int(later)
        pages[self.time] = time.to_bytes(8, "little")
        index = self.reader.index(self.page_size)
        runs = np.zeros(len(index.first), RUN)
        for name, values in zip(
            RUN.names or (), (index.first, index.pages, index.status), strict=True
        ):
            runs[name] = values
        step = BLOCK_PAGES * self.page_size
        manifest = dict(self.reader.manifest)
        with writing(path, level=1) as writer:
            for name in manifest.pop("sections"):
                if name not in ("pages", "index"):
                    writer.section(name, self.reader.section(name))
            blocks = (bytes(pages[start : start + step]) for start in range(0, len(pages), step))
            writer.pages(lambda: runs, blocks)
            writer.manifest(manifest)


CAUSES = {
    "sample": "copies without a limit",
    "sample-after": "waits for copies",
    "sample-io": "starved requests",
    "sample-waits": "deadlock",
    "sample-arm64": "deadlock",
}
"""The cause that each sample is made to have; two have the same one."""


def fleet(directory: Path, number: int, dumps: int = 3) -> dict[str, str]:
    """Write capsules of a fleet: hosts with several dumps over days, all of one cause.

    :param dumps: capsules of each host, a day apart, in one boot
    :return: the cause of each capsule, by path
    """
    made = {}
    for at in range(number):
        host = at // dumps
        sample = [*CAUSES][host % len(CAUSES)]
        path = directory / f"{host:05}-{at % dumps}.capsule"
        later = 86400 * (at % dumps) + 60 * host
        Varied.of(sample).write(path, f"host-{host:05}.example.net", host + 1, later)
        made[str(path)] = CAUSES[sample]
    return made
