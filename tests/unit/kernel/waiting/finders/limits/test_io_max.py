# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits of block cgroups of *synthetic* kernels, and the bios that they hold."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.kernel.block.bios import Bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.limits.cgroups import BlockCgroup
from kcensus.kernel.block.limits.throttles import Throttles, throttles
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.io.direct_io import IO
from kcensus.kernel.waiting.finders.limits import io_max
from kcensus.kernel.waiting.finders.limits.io_max import LIMIT, IoLimits
from kcensus.kernel.waiting.graph import SERVED
from kcensus.kernel.waiting.joined import Joins, held
from kcensus.results import Severity
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = """
struct task_struct 64
struct request_queue 64 : 0 struct throtl_data * td
struct throtl_data 64
"""
_DIO, _GROUP, _BLKG = 0xFFFF_8881_0000_3000, 0xFFFF_8881_0000_4000, 0xFFFF_8881_0000_5000
_ALL = (1 << 64) - 1
_NONE = (1 << 32) - 1


class Limited(Sleepers):
    """A task waits for a bio that a limit of vda holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cgroup: BlockCgroup) -> None:
        super().__init__(_TYPES, "__iomap_dio_rw")
        self.wait(0, _DIO, "struct iomap_dio")
        self.waits.kind[0] = WaitKind.REQUEST
        disk = SimpleNamespace(address=1, name="vda", device="254:0")
        self.remember(block_devices, SimpleNamespace(disks=[disk]))
        none, zero = words(), np.zeros(3, np.int64)
        bios = Bios(words(1, 2, 3), zero, none, none, none, none, none, zero, none, none)
        limits = Throttles(
            address=words(_GROUP),
            disk=np.array([0]),
            group=words(_BLKG),
            rates=np.array([[1000, _ALL]], np.uint64),
            operations=np.array([[_NONE, 5]], np.uint64),
            next_ns=np.array([2_000_000_000]),
            bios=bios,
            chain=np.array([0]),
        )
        self.remember(throttles, limits)
        proof = ["bio.bi_private"]
        self.remember(held, Joins(np.array([0]), np.array([0]), np.array([True]), proof))
        monkeypatch.setattr(io_max, "block_cgroups", lambda *_: {_BLKG: cgroup})


def test_a_limit_holds_the_io_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Limited(monkeypatch, BlockCgroup("/batch jobs", "/sys/fs/cgroup", is_unified=True))
    graph, finder = scene.run(IoLimits)
    assert links(graph) == {(IO, _DIO, SERVED, _GROUP, int(Strength.PROVEN))}
    found = finder.finding(LIMIT, _GROUP, Stall(frozenset({100}), 1, 12.0))
    assert found is not None
    assert (found.id, found.severity) == (
        "waits-io-limit:io.max of cgroup /batch jobs on vda",
        Severity.WARNING,
    )
    line = "254:0 rbps=1000 wbps=max riops=max wiops=5"
    assert found.evidence == f"limit: {line}; it holds 3 bios, of which the next may go in 2.0 s"
    (remedy,) = found.remedies
    path = "'/sys/fs/cgroup/batch jobs/io.max'"
    assert remedy.command == f"echo '254:0 rbps=max wbps=max riops=max wiops=max' > {path}"
    assert remedy.undo == f"echo '{line}' > {path}"
    assert finder.finding(IO, _GROUP, Stall(frozenset(), 0, 0.0)) is None


def test_the_files_of_cgroup_v1(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Limited(monkeypatch, BlockCgroup("/a", "/sys/fs/cgroup/blkio", is_unified=False))
    _, finder = scene.run(IoLimits)
    found = finder.finding(LIMIT, _GROUP, Stall(frozenset({100}), 1, 1.0))
    assert found is not None
    files = [
        f"/sys/fs/cgroup/blkio/a/blkio.throttle.{name}_device"
        for name in ("read_bps", "write_iops")
    ]
    command = " && ".join(f"echo '254:0 0' > {path}" for path in files)
    assert found.remedies[0].command == command
    assert finder.names[LIMIT, _GROUP] == "blkio.throttle of cgroup /a on vda"


@pytest.mark.parametrize("path", ["", "/x\x1b"])
def test_no_command_for_an_unknown_path(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    scene = Limited(monkeypatch, BlockCgroup(path, "/sys/fs/cgroup", is_unified=True))
    _, finder = scene.run(IoLimits)
    found = finder.finding(LIMIT, _GROUP, Stall(frozenset({100}), 1, 1.0))
    assert found is not None
    assert found.remedies == ()
    assert "254:0" in found.no_remedy
    assert "\x1b" not in found.title
