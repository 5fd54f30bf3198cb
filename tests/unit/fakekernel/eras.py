# SPDX-License-Identifier: LGPL-2.1-or-later
"""One table of eras: the layouts of the kernel, by the release that introduced them.

Two have the real types of the kernels of bundled capsules (5.10 and 6.12); the others, and those
that a test changes, are synthetic.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

from tests.unit.fakekernel.layouts import LAYOUTS
from tests.unit.fakekernel.types import declared, real_types


@dataclass(frozen=True)
class Era:
    """Features of the kernels from a release on; the defaults are those of the oldest."""

    name: str
    sample: str = ""
    """The bundled capsule that has real types of this era."""

    # Slabs and their owners
    children: bool = True
    """Memory cgroups have caches of their own (until 5.8)."""
    vector: str = ""
    """Member of the slab that points to its vector of obj_cgroups."""
    hardened: bool = False
    swab: bool = False
    struct_slab: bool = False
    page_type: bool = False
    """The word over ``_mapcount`` marks slab pages, not PG_slab."""
    memdesc_flags: bool = False
    cpu_slab: bool = True
    sheaves: bool = False
    per_node: bool = False
    """The barn's pointer is beside that of the kmem_cache_node, not in it."""
    stride: bool = False
    needs_objcg: bool = False
    codetag: bool = False
    """Memory allocation profiling is on: vector elements have a second word."""
    compound_info: bool = False
    """Tail pages have a mask in ``compound_info`` instead of ``compound_head``."""

    # List_lrus
    list_lrus: bool = False
    header: int = 0
    """Bytes of the rcu_head of ``list_lru_memcg`` (4.16)."""
    aware_flag: bool = False
    aware_only: bool = False
    """The kernel's list has only those that know memory cgroups (5.16)."""
    xarray: bool = False
    ext: bool = False
    """UEK7: the new members are behind a pointer."""
    locks: bool = False
    ida_radix: bool = True

    # Dentries and mounts
    child_in_union: bool = True
    type_shift: int = 24
    """The lowest bit of the type of entry in ``d_flags``."""
    hash_mask: bool = True
    negative_counter: bool = False
    hlist: bool = False
    shortname: bool = False
    flags_enum: bool = False
    own_mount_list: bool = False

    @property
    def obj_exts(self) -> bool:
        return self.vector == "obj_exts"

    @property
    def compound(self) -> str:
        return "compound_info" if self.compound_info else "compound_head"

    @property
    def element(self) -> int:
        return 16 if self.codetag and not self.needs_objcg else 8

    @property
    def list_size(self) -> int:
        return 32 if self.locks else 24


_eras: dict[str, Era] = {}
_changed: dict[str, dict[str, Era]] = {"slabs": {}, "lrus": {}, "files": {}}


def _since(release: str, subjects: str, features: str, **changes: Any) -> None:
    """Add an era that differs from the one before in these features, hence in these layouts."""
    era = Era(release) if not _eras else [*_eras.values()][-1]
    changes |= {name.removeprefix("!"): not name.startswith("!") for name in features.split()}
    _eras[release] = replace(era, name=release, **changes)
    for subject in subjects.split():
        _changed[subject][release] = _eras[release]


_since("RHEL 7.4", "files", "")
_since("4.14", "files lrus", "list_lrus !child_in_union", type_shift=20)
_since("4.18", "files slabs", "!hash_mask", header=16)
_since("4.19", "lrus slabs", "hardened")
_5_9 = "!children swab aware_flag !ida_radix negative_counter"
_since("5.9", "files lrus slabs", _5_9, sample="sample", vector="obj_cgroups")
_since("UEK7", "lrus", "xarray ext", sample="")
_since("5.17", "slabs", "struct_slab aware_only !xarray !ext", vector="memcg_data")
_since("5.18", "lrus", "xarray")
_since("6.10", "files lrus slabs", "page_type hlist", sample="sample-after", vector="obj_exts")
_since("6.13", "lrus", "locks", sample="")
_since("6.15", "files", "shortname", type_shift=19)
_since("6.18", "slabs", "memdesc_flags sheaves flags_enum")
_since("7.0", "slabs", "!cpu_slab stride")
_since("7.3", "files slabs", "!stride per_node needs_objcg compound_info own_mount_list")

ERAS, LRU_ERAS, FILE_ERAS = _changed["slabs"], _changed["lrus"], _changed["files"]
"""The eras that changed layouts of slabs, of list_lrus, and of dentries or mounts, by name."""


def era_of(release: str) -> Era:
    if release in _eras:
        return _eras[release]
    began = [name for name in _eras if name[0].isdigit() and _order(name) <= _order(release)]
    return _eras[began[-1]]


def _order(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


def table(era: Era) -> dict[str, tuple[int, str]]:
    return dict(_table(era))


@cache
def _table(era: Era) -> dict[str, tuple[int, str]]:
    properties = ("compound", "element", "list_size")
    values = asdict(era) | {name: getattr(era, name) for name in properties}
    types = declared(LAYOUTS.format_map(values), partial(_has, era))
    if era.sample and era == _eras[era.name]:
        types |= dict.fromkeys(real_types(era.sample), (0, "@" + era.sample))
    return types


def _has(era: Era, feature: str) -> bool:
    return not getattr(era, feature[1:]) if feature.startswith("!") else bool(getattr(era, feature))
