# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shares of a disk by io.cost on *synthetic* kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.limits.cgroups import BlockCgroup
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.limits import io_cost
from kcensus.kernel.waiting.finders.limits.io_cost import COST, IoCosts
from tests.unit.kernel.waiting.making import Sleepers

_TYPES = """
struct task_struct 64
struct wait_queue_head 16
struct request_queue 64
struct gendisk 64
struct blkg_policy_data 16 : 0 struct blkcg_gq * blkg
struct blkcg_gq 64 : 0 struct request_queue * q
struct rq_qos 16 : 0 struct gendisk * disk
struct ioc_params 64 : 0 unsigned int [6] qos
struct ioc 128 : 0 struct rq_qos rqos; 32 struct ioc_params params
struct ioc_gq 128
    0 struct blkg_policy_data pd; 16 struct ioc * ioc; 24 unsigned int weight
    28 unsigned int hweight_inuse; 32 struct wait_queue_head waitq; 64 long saved_margin
"""
_QUEUE = "struct wait_queue_head"


class Shared(Sleepers):
    """Two tasks wait for the shares of two cgroups, of which one is damaged."""

    def __init__(self, part: int, types: str = _TYPES, weight: int = 100 << 16) -> None:
        super().__init__(types, "ioc_rqos_throttle", "ioc_rqos_throttle")
        queue, gendisk = self.k.alloc("struct request_queue"), self.k.alloc("struct gendisk")
        block = self.k.alloc("struct blkcg_gq", q=queue)
        owner = self.k.alloc("struct ioc")
        self.k.set(owner.rqos.disk, int(gendisk.address_))
        self.k.set(owner.params.qos[4], 250_000)
        self.k.set(owner.params.qos[5], 1_000_000)
        self.groups = []
        for lane, ioc in enumerate((owner, self.k.alloc("struct ioc"))):
            group = self.k.alloc(
                "struct ioc_gq", ioc=ioc, weight=weight, hweight_inuse=(part << 16) // 100
            )
            self.k.set(group.pd.blkg, int(block.address_))
            self.wait(lane, int(group.waitq.address_), _QUEUE)
            self.groups.append(int(group.address_))
        disk = SimpleNamespace(
            address=int(gendisk.address_), queue=int(queue.address_), name="sda", device="8:0"
        )
        devices = SimpleNamespace(
            disks=[disk], disk_rows=lambda queues: np.where(queues == disk.queue, 0, -1)
        )
        self.remember(block_devices, devices)


def test_a_weight_before_it_was_a_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Shared(25, _TYPES.replace("; 64 long saved_margin", ""), 100)
    cgroup = BlockCgroup("/spare", "/sys/fs/cgroup", is_unified=True)
    monkeypatch.setattr(
        io_cost, "block_cgroups", lambda _, groups: dict.fromkeys(groups.tolist(), cgroup)
    )
    _, finder = scene.run(IoCosts)
    found = finder.finding(COST, scene.groups[0], Stall(frozenset({100}), 1, 3.0))
    assert found is not None
    assert found.evidence.startswith("parts of 8:0 by cgroup: /spare 25.0% (io.weight 100);")


@pytest.mark.parametrize(("part", "commands"), [(25, 1), (100, 0)])
def test_a_share(monkeypatch: pytest.MonkeyPatch, part: int, commands: int) -> None:
    scene = Shared(part)
    cgroup = BlockCgroup("/spare", "/sys/fs/cgroup", is_unified=True)
    monkeypatch.setattr(
        io_cost, "block_cgroups", lambda _, groups: dict.fromkeys(groups.tolist(), cgroup)
    )
    _, finder = scene.run(IoCosts)
    address = scene.groups[0]
    assert finder.names == {(COST, address): "io.cost of cgroup /spare on sda"}
    assert scene.waits.type == ["struct ioc_gq", _QUEUE]
    found = finder.finding(COST, address, Stall(frozenset({100}), 1, 3.0))
    assert found is not None
    assert found.id == "waits-io-cost:sda"
    assert found.evidence.startswith(f"parts of 8:0 by cgroup: /spare {part}.0% (io.weight 100);")
    assert "25 % to 100 %" in found.evidence
    assert len(found.remedies) == commands
    assert ("io.cost.model takes sda for slower" in found.no_remedy) == (not commands)
    if commands:
        assert found.remedies[0].command == "echo '8:0 10000' > /sys/fs/cgroup/spare/io.weight"


@pytest.mark.parametrize("path", ["", "/a\x1b"])
def test_a_small_share_of_an_unknown_cgroup(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    scene = Shared(25)
    cgroup = BlockCgroup(path, "/sys/fs/cgroup", is_unified=True)
    monkeypatch.setattr(
        io_cost, "block_cgroups", lambda _, groups: dict.fromkeys(groups.tolist(), cgroup)
    )
    _, finder = scene.run(IoCosts)
    found = finder.finding(COST, scene.groups[0], Stall(frozenset({100}), 1, 3.0))
    assert found is not None
    assert found.remedies == ()
    # Its model is not at fault.
    assert "io.weight" in found.no_remedy
    assert "io.cost.model" not in found.no_remedy


@pytest.mark.parametrize(
    ("freezes", "words"),
    [(True, "only when they have gone on"), (False, "does not freeze"), (None, "may freeze")],
)
def test_a_slow_model(monkeypatch: pytest.MonkeyPatch, freezes: bool | None, words: str) -> None:
    scene = Shared(100)
    cgroup = BlockCgroup("/spare", "/sys/fs/cgroup", is_unified=True)
    monkeypatch.setattr(
        io_cost, "block_cgroups", lambda _, groups: dict.fromkeys(groups.tolist(), cgroup)
    )
    _, finder = scene.run(IoCosts)
    monkeypatch.setattr(finder.draft.sites, "calls", lambda *_: freezes)
    found = finder.finding(COST, scene.groups[0], Stall(frozenset({100}), 1, 3.0))
    assert found is not None
    assert words in found.no_remedy
