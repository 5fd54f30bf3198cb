# SPDX-License-Identifier: LGPL-2.1-or-later
"""The same figures from every format of a dump, and honest ones from a damaged dump."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drgn.helpers.linux.mm import follow_phys

from kcensus.analyses import analyses
from kcensus.api.objects import IncompleteWarning, objects
from kcensus.engine.memory import Faults, Memory
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.parked import parked
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.kernel.kernel import VECTOR_MEMBERS
from kcensus.kernel.memcg.objcg import OwnerVectors
from kcensus.sources import open_target
from tests.lab import Dump, build
from tests.vm import cases
from tests.vm.cases import opened
from tests.vm.elf_edit import truncated, without_pages

pytestmark = pytest.mark.newest

MEMBERS = ["d_inode", "d_flags", "d_parent", "d_lockref.count"]
PAGE = 4096


def document(dump: Dump, path: Path, *, jobs: int = 1, allow_truncated: bool = False) -> Any:
    """The JSON document of ``kcensus slab``, but for the target's own name."""
    target = open_target(str(path), dump.debug, allow_truncated=allow_truncated)
    return json.loads(cases.document(target, analyses()["slab"], jobs))


@pytest.fixture(
    scope="module", params=["6.1", pytest.param("6.1-arm64", marks=pytest.mark.usually)]
)
def crashed(request: pytest.FixtureRequest) -> Dump:
    """One crash of 6.1, dumped by its own crash kernel in three formats."""
    # On arm64, a guest that looks up a million names takes five minutes.
    return build(request.param, "negatives" if request.param == "6.1" else "one")


@pytest.mark.parametrize("format_", ["kdump-lzo", "kdump-zlib"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_formats_of_one_crash_agree(crashed: Dump, format_: str, jobs: int) -> None:
    expected = document(crashed, crashed.formats["kdump-elf"])
    assert expected["gaps"] == []
    assert document(crashed, crashed.formats[format_], jobs=jobs) == expected


@pytest.mark.parametrize("format_", ["kdump-lzo", "kdump-zlib"])
def test_objects_of_one_crash_agree(crashed: Dump, format_: str) -> None:
    frames = [
        objects(opened(crashed, form=name).prog, "struct dentry", MEMBERS)
        for name in ("kdump-elf", format_)
    ]
    pd.testing.assert_frame_equal(frames[0], frames[1])
    assert (frames[0]["d_inode"] == 0).sum() >= (1_400_000 if crashed.kernel == "6.1" else 1)


class Edited:
    """A real dump, and what of it is going to be missing in a copy."""

    def __init__(self, dump: Dump) -> None:
        self.dump = dump
        self.prog = opened(dump).prog
        self.slab_map = SlabMap(Memory(self.prog), VECTOR_MEMBERS)
        self.dentry = find_caches(self.slab_map, "struct dentry")
        self.slabs = self.slab_map.index(self.dentry, ScanReport())
        self.pfns = self.slab_map.pages.pfn(self.slabs.address)
        self.before = document(dump, dump.core)

    def without(self, path: Path, missing: list[int]) -> Any:
        """Return the document of a copy that lacks pages."""
        without_pages(self.dump.core, path, missing)
        return document(self.dump, path)


@pytest.fixture(scope="module")
def edited(mixed_dump: Dump) -> Edited:
    return Edited(mixed_dump)


def test_missing_slab_pages_mask_their_objects(edited: Edited, tmp_path: Path) -> None:
    missing = edited.pfns[::37].tolist()
    without_pages(edited.dump.core, tmp_path / "vmcore", missing)
    prog = open_target(str(tmp_path / "vmcore"), edited.dump.debug).prog
    whole = objects(edited.prog, "struct dentry", MEMBERS)
    with pytest.warns(IncompleteWarning):
        rest = objects(prog, "struct dentry", MEMBERS)
    page = edited.slab_map.pages.pfn(whole.index.to_numpy())
    pd.testing.assert_frame_equal(rest, whole[~np.isin(page, missing)])
    report = rest.attrs["report"]
    assert report.slabs == {"not in the dump": len(missing)}
    # Parked objects, and the first of a free list, are known to be free without reading their slab.
    parked_pages = edited.slab_map.pages.pfn(parked(edited.slab_map, edited.dentry).address)
    free = int(np.isin(parked_pages, missing).sum()) + int((edited.slabs.freelist[::37] != 0).sum())
    assert report.objects_unreadable == int(edited.slabs.objects[::37].sum()) - free
    assert (report.slabs_torn, report.objects_uncertain) == (0, 0)


def test_missing_slab_pages_leave_the_census_alone(edited: Edited, tmp_path: Path) -> None:
    """Struct pages, vectors and CPU stores have it all, but the users of kmalloc()."""
    before = deepcopy(edited.before)
    full = edited.slabs[edited.slabs.freelist == 0]
    full = full[np.arange(0, len(full), 37)]
    pages = edited.slab_map.pages
    missing = pages.pfn(full.address).tolist()
    after = edited.without(tmp_path / "vmcore", missing)
    parked_pages = pages.pfn(parked(edited.slab_map, edited.dentry).address)
    unreadable = int(full.objects.sum()) - int(np.isin(parked_pages, missing).sum())
    # What names of dentries take of kmalloc() is read from the dentries.
    gap = "slots of objects with pointers to kmalloc() objects"
    assert [(each["what"], each["count"]) for each in after["gaps"]] == [(gap, unreadable)]
    attributed = [each["summary"].pop("kmalloc_attributed_bytes") for each in (after, before)]
    assert attributed[0] < attributed[1]
    for each in (after, before):
        del each["tables"]["kmalloc"], each["gaps"]
    assert after == before


def test_missing_vectors_are_a_gap(edited: Edited, tmp_path: Path) -> None:
    reader = OwnerVectors(edited.slab_map)
    vectors = reader.find(edited.slabs)
    pages = edited.slab_map.pages
    # Some vectors outlive all that was charged through them; take what is not empty.
    owners, _ = reader.read(edited.slabs, vectors, Faults())
    charged = np.isin(vectors.slab, owners.slab)
    holders = np.unique(pages.pfn(vectors.address[charged]))
    # Nor a page with the free list of a CPU, which would be missed as well.
    on_cpus = parked(edited.slab_map, edited.slab_map.caches).address
    holders = np.setdiff1d(holders, pages.pfn(on_cpus))
    # Vectors inside their own slab (7.0 and later) are as good as those of their own.
    after = edited.without(tmp_path / "vmcore", holders[:3].tolist())
    gap = next(gap for gap in after["gaps"] if gap["what"] == "obj_cgroup vectors")
    assert gap["reason"] == "not in the dump"
    before = edited.before["summary"]
    assert after["summary"]["objects_charged"] < before["objects_charged"]
    for name in ("slab_bytes", "objects_active", "objects_total", "utilization", "caches"):
        assert after["summary"][name] == before[name]
    rows = {row["memcg"]: row["objects"] for row in after["tables"]["memcgs"]}
    assert sum(rows.values()) == after["summary"]["objects_active"]


def test_missing_struct_pages_are_a_gap(edited: Edited, tmp_path: Path) -> None:
    pages = edited.slab_map.pages
    at = int(pages.struct_page(edited.pfns[len(edited.pfns) // 2 :][:1])[0]) & ~(PAGE - 1)
    physical = int(follow_phys(edited.prog["init_mm"].address_of_(), at))
    first = (at - pages.base) // pages.struct_size
    per_page = PAGE // pages.struct_size
    after = edited.without(tmp_path / "vmcore", [physical // PAGE])
    gap = next(gap for gap in after["gaps"] if "struct page" in gap["what"])
    assert gap["count"] == 1
    inside = (edited.pfns >= first) & (edited.pfns < first + per_page)
    assert inside.any()
    before, now = (
        next(row["slabs"] for row in found["tables"]["caches"] if row["cache"] == "dentry")
        for found in (edited.before, after)
    )
    assert before - now == inside.sum()
    check = next(check for check in after["checks"] if check["name"] == "nr_slabs, dentry")
    assert (check["status"], check["difference"]) == ("differ", int(inside.sum()))


def test_truncated_dump_gives_what_is_there(edited: Edited, tmp_path: Path) -> None:
    path = tmp_path / "vmcore"
    truncated(edited.dump.core, path, edited.dump.core.stat().st_size - (8 << 20))
    after = document(edited.dump, path, allow_truncated=True)
    assert after["summary"]["slab_bytes"] > 0
    # Only struct pages, vectors or structures of CPUs can have been there; whatever was, is named.
    assert after["gaps"] or after["summary"] == edited.before["summary"]
