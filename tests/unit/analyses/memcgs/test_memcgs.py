# SPDX-License-Identifier: LGPL-2.1-or-later
"""Offline memory cgroups of *synthetic* kernels: their pages, and what releases them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kcensus.analyses.memcgs.figures import Figures
from kcensus.analyses.memcgs.findings import findings
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg import charges as module
from kcensus.kernel.memcg.charges import ANON, FILE, KERNEL, SHMEM, Charges, charges
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.memcg.pins import KINDS, Pins
from kcensus.kernel.memcg.structures import Structures, _first_of_cgroup
from kcensus.results import Severity
from tests.unit.fakekernel import FakeKernel, Memcg

FLAGS = {"swapbacked": 19, "dirty": 4, "writeback": 15, "lru": 5, "unevictable": 20}


class Pages:
    """A kernel with charged pages; eras with ``memcg_data`` in struct page."""

    def __init__(self, era: str) -> None:
        self.k = FakeKernel(era)
        for name, bit in FLAGS.items():
            self.k.constant(f"PG_{name}", bit)
        self.online = self.k.memcg("online", self.k.root)
        self.gone = self.k.memcg("gone", self.k.root, flags=0)
        self.k.memcg("late", self.gone, flags=0)

    def charge(
        self, owner: int, *flags: str, mapping: int = 0, order: int = 0, mapped: bool = False
    ) -> None:
        """Make a page, or a compound page, that is charged."""
        k = self.k
        page = k.page(k.pages(order))
        word = page.flags.f if k.era.memdesc_flags else page.flags
        k.set(word, int(word) | sum(1 << FLAGS[flag] for flag in flags))
        k.set(page.mapping, mapping)
        k.set(page.memcg_data, owner)
        if mapped:
            k.set(page._mapcount.counter, 0)

    def found(self) -> Charges:
        return charges(Kernel(self.k.prog))


def address(group: Memcg) -> int:
    return int(group.object.address_)


@pytest.mark.parametrize("era", ["5.17", "6.10", "7.3"])
def test_pages_by_kind(era: str) -> None:
    made = Pages(era)
    gone, mapping = address(made.gone), 0xFFFF_8880_0000_1000
    made.charge(gone, "lru", mapping=mapping)
    made.charge(gone, "lru", "dirty", mapping=mapping)
    made.charge(gone, "lru", mapping=mapping, mapped=True)
    made.charge(gone, "lru", "swapbacked", mapping=mapping + 4096, order=3)
    made.charge(gone, "swapbacked", mapping=mapping + 1)
    made.charge(gone)
    # The kernel's, by way of an obj_cgroup that belongs to the memory cgroup.
    made.charge(int(made.gone.objcg.address_) | 2)
    # These are not: of others, and the vector of a slab.
    made.charge(address(made.online), "lru", mapping=mapping)
    made.charge(gone | 1)
    found, row = made.found(), 2
    expected = {FILE: 3, SHMEM: 8, ANON: 1, KERNEL: 2}
    assert {kind: int(found.pages[row, kind]) for kind in expected} == expected
    assert found.pages.sum() == 14
    # A compound page holds one reference.
    assert found.refs[row].tolist() == [3, 1, 1, 2]
    assert (found.clean[row], found.on_lru[row]) == (1, 11)
    mappings = found.mappings.set_index("mapping")["pages"].to_dict()
    assert mappings == {mapping: 3, mapping + 4096: 8}
    assert found.is_complete


def test_without_offline_ones_no_page_is_looked_at() -> None:
    k = FakeKernel("6.10")
    k.memcg("online", k.root)
    found = charges(Kernel(k.prog))
    assert found.is_complete
    assert found.pages.shape == (2, 4)
    assert not found.pages.any()
    assert found.mappings.empty


def test_a_kernel_whose_pages_have_no_owner() -> None:
    """Its debug info lacks members: a gap, not a zero."""
    k = FakeKernel("4.14")
    k.memcg("gone", k.root, flags=0)
    assert not charges(Kernel(k.prog)).is_complete


def figures(
    parents: list[int], refs: list[int], clean: list[int], *, online: int = 0, **held: list[int]
) -> Figures:
    """Figures of memory cgroups given by row, online up to a row; each has 1 MiB of structures."""
    k = FakeKernel("6.10")
    groups: list[Memcg] = [k.root]
    for row, parent in enumerate(parents[1:], 1):
        groups.append(k.memcg(f"g{row}", groups[parent], flags=2 if row <= online else 0))
    made = object.__new__(Figures)
    count = len(parents)
    zeros, kinds = np.zeros(count, np.int64), np.zeros((count, 4), np.int64)
    made.kernel = Kernel(k.prog)
    made.kernel.ram_bytes = 1 << 29
    made.groups = memcgs(made.kernel)
    made.offline = ~made.groups.online
    made.page_size = 4096
    made.footprint = SimpleNamespace()  # type: ignore[assignment]
    kinds[:, FILE] = clean
    made.charges = Charges(
        pages=kinds,
        refs=kinds,
        clean=kinds[:, FILE],
        clean_refs=kinds[:, FILE],
        on_lru=zeros,
        is_complete=True,
        mappings=pd.DataFrame(),
    )
    columns = dict.fromkeys(KINDS, zeros) | {"page cache": kinds[:, FILE]}
    columns |= {kind: np.array(values) for kind, values in held.items()}
    files: dict[str, Any] = {"memcg": [], "kind": [], "pages": [], "refs": [], "path": []}
    files |= {"mount": [], "at_home": [], "named": [], "deleted": []}
    made.pins = Pins(np.array(refs), columns, zeros, pd.DataFrame(files), pd.DataFrame())
    made.structures = Structures(zeros, np.where(made.offline, 1 << 20, 0), zeros)
    made.bytes = made.structures.bytes + kinds[:, FILE] * 4096
    return made


def released(found: Figures) -> list[int]:
    return np.flatnonzero(found.released(found.charges.clean_refs)).tolist()


def with_files(found: Figures, *files: dict[str, Any]) -> Figures:
    """Add pages of tmpfs files, which are named and seen by init unless they say otherwise."""
    usual = {"kind": "shmem", "pages": 1, "refs": 1, "mount": "/run"}
    usual |= {"named": True, "deleted": False, "at_home": True}
    found.pins = replace(found.pins, files=pd.DataFrame([usual | file for file in files]))
    return found


def test_what_goes_with_its_children() -> None:
    # 1 is online; 2 is below it, 3 and 4 below 2, 5 below 4.
    found = figures(
        [-1, 0, 1, 2, 2, 4], refs=[0, 0, 3, 4, 2, 1], clean=[0, 0, 1, 4, 1, 1], online=1
    )
    assert found.groups.path == ["/", "/g1", "/g1/g2", "/g1/g2/g3", "/g1/g2/g4", "/g1/g2/g4/g5"]
    assert found.ancestor.tolist() == [-1, 0, 1, 1, 1, 1]
    assert released(found) == [2, 3, 4, 5]
    # Something else holds the lowest one, and with it those above.
    found.pins.refs[5] = 2
    assert released(found) == [3]
    assert found.dropped_bytes(inodes=False) == 7 * 4096 + (1 << 20)
    # Without a reference count, none is taken to go.
    found.pins.refs[:] = -1
    assert released(found) == []


def test_inodes_hold_writeback() -> None:
    found = figures([-1, 0, 0], refs=[0, 6, 5], clean=[0, 5, 5], writeback=[0, 1, 0])
    assert found.dropped_bytes(inodes=False) == 10 * 4096 + (1 << 20)
    assert found.dropped_bytes(inodes=True) == 10 * 4096 + (2 << 20)


def test_the_finding_and_its_remedies() -> None:
    found = figures([-1, 0, 0, 0], refs=[0, 5, 5, 3], clean=[0, 5, 5, 0], sockets=[0, 0, 0, 3])
    (finding,) = findings(found)
    assert finding.id == "memcgs-offline"
    assert finding.severity is Severity.NOTICE
    assert finding.holds == finding.figures["bytes"].value == (3 << 20) + 10 * 4096
    assert finding.figures["kept_bytes"].value == 3 << 20  # the rest is page cache
    assert finding.figures["memcgs_offline"].value == 3
    assert finding.figures["pinned_by_sockets"].value == 1
    (drop,) = finding.remedies
    assert drop.returns == (2 << 20) + 10 * 4096
    assert drop.is_upper_bound
    assert "sockets" in finding.no_remedy
    # Below the threshold of memory, their number does not matter.
    found.kernel.ram_bytes = 1 << 40
    assert findings(found) == []
    # Nothing can be dropped.
    (finding,) = findings(figures([-1, 0], refs=[0, 3], clean=[0, 0], sockets=[0, 3]))
    assert finding.remedies == ()
    assert "Restart" in finding.no_remedy


@pytest.mark.parametrize(
    ("mounts", "place"), [(["/run", "/run"], " on /run:"), (["/a", "/b"], " on /a, /b:")]
)
def test_files_to_remove_are_named_by_mount(mounts: list[str], place: str) -> None:
    found = figures([-1, 0, 0], refs=[0, 1, 1], clean=[0, 0, 0], shmem=[0, 1, 1])
    first, second = mounts
    one, other = {"memcg": 1, "path": "/1"}, {"memcg": 2, "path": "/2"}
    (finding,) = findings(with_files(found, one | {"mount": first}, other | {"mount": second}))
    (remedy,) = (each for each in finding.remedies if each.command.startswith("rm -i"))
    assert place in remedy.effect


def test_a_safe_remedy_that_returns_little_is_not_the_first() -> None:
    found = figures([-1, 0, 0], refs=[0, 1, 1], clean=[0, 1, 0], shmem=[0, 0, 1])
    equal = findings(with_files(found, {"memcg": 2, "path": "/2"}))[0].remedies
    assert [each.command.split()[0] for each in equal] == ["echo", "rm"]
    found.pins.refs[1] = 2
    little = findings(found)[0].remedies
    assert [each.command.split()[0] for each in little] == ["rm", "echo"]
    assert little[1].returns == 4096


def test_only_files_of_inits_mount_namespace_are_to_be_removed() -> None:
    found = figures([-1, 0], refs=[0, 9], clean=[0, 0])
    file = {"memcg": 1, "pages": 9, "refs": 9, "path": "/dev/shm/a", "mount": "/dev/shm"}
    assert with_files(found, file, file | {"at_home": False}).removable.tolist() == [True, False]


def test_a_cgroup_counts_once() -> None:
    """Since the memory controller was enabled again, it has an offline and an online memcg."""
    k = FakeKernel("6.10")
    old, new = k.memcg("a", k.root, flags=0), k.memcg("b", k.root)
    groups = memcgs(Kernel(k.prog))
    assert _first_of_cgroup(groups).all()
    shared = replace(groups, cgroup=groups.cgroup[[0, 2, 2]])
    is_first = dict(zip(groups.address.tolist(), _first_of_cgroup(shared).tolist(), strict=True))
    assert not is_first[address(old)]
    assert is_first[address(new)]


def test_more_files_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ROWS", 0)
    monkeypatch.setattr(module, "_SAMPLED", 3)
    made = Pages("5.17")
    for file in range(10):
        for _ in range(file + 1):
            made.charge(address(made.gone), "lru", mapping=0xFFFF_8880_0000_0000 + file * 4096)
    found = made.found()
    assert found.pages[2, FILE] == 55
    assert found.mappings["pages"].tolist() == [10, 9, 8]
