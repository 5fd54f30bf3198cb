# SPDX-License-Identifier: LGPL-2.1-or-later
"""One table of eras: the layouts of the kernel, by the release that introduced them.

Two eras have real types, those of the kernels that the bundled capsules were recorded from (5.10
and 6.12). The others are synthetic: no capsule of such a kernel is bundled, the lab cannot boot
kernels of RHEL and UEK, and the newest ones are not released. An era that a test changes is
synthetic as well.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from tests.unit.fakekernel.layouts import LAYOUTS
from tests.unit.fakekernel.real import real_types


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
    """Super blocks have list_lrus (3.12)."""
    header: int = 0
    """Bytes of the rcu_head of ``list_lru_memcg`` (4.16)."""
    aware_flag: bool = False
    """``list_lru.memcg_aware`` (5.2)."""
    aware_only: bool = False
    """The kernel's list has only those that know memory cgroups (5.16)."""
    xarray: bool = False
    ext: bool = False
    """UEK7: the new members are behind a pointer."""
    locks: bool = False
    """Each list has a lock of its own (6.13)."""
    ida_radix: bool = True
    """An IDA is a radix tree (until 4.19)."""

    # Dentries and mounts
    child_in_union: bool = True
    """``d_u.d_child`` (until 3.18)."""
    type_shift: int = 24
    """The lowest bit of the type of entry in ``d_flags``."""
    hash_mask: bool = True
    """``d_hash_mask`` (until 4.15)."""
    negative_counter: bool = False
    """``nr_dentry_negative`` (5.0)."""
    hlist: bool = False
    """``d_children``/``d_sib`` (6.8) rather than ``d_subdirs``/``d_child``."""
    shortname: bool = False
    """``d_shortname`` (6.14) rather than ``d_iname``."""
    flags_enum: bool = False
    """``enum dentry_flags`` is visible (6.17)."""
    own_mount_list: bool = False
    """``mount.mnt_next_for_sb``."""

    @property
    def obj_exts(self) -> bool:
        return self.vector == "obj_exts"

    @property
    def compound(self) -> str:
        return "compound_info" if self.compound_info else "compound_head"

    @property
    def element(self) -> int:
        """Bytes of a ``slabobj_ext``."""
        return 16 if self.codetag and not self.needs_objcg else 8

    @property
    def list_size(self) -> int:
        """Bytes of a ``list_lru_one``."""
        return 32 if self.locks else 24


_eras: dict[str, Era] = {}
_changed: dict[str, dict[str, Era]] = {"slabs": {}, "lrus": {}, "files": {}}


def _since(release: str, subjects: str, **changes: Any) -> None:
    """Add an era that differs from the one before in these features, hence in these layouts."""
    era = Era(release) if not _eras else [*_eras.values()][-1]
    _eras[release] = replace(era, name=release, **changes)
    for subject in subjects.split():
        _changed[subject][release] = _eras[release]


_since("RHEL 7.4", "files")
_since("4.14", "files lrus", list_lrus=True, child_in_union=False, type_shift=20)
_since("4.18", "files slabs", hash_mask=False, header=16)
_since("4.19", "lrus slabs", hardened=True)
_since(
    *("5.9", "files lrus slabs"),
    sample="sample",
    children=False,
    vector="obj_cgroups",
    swab=True,
    aware_flag=True,
    ida_radix=False,
    negative_counter=True,
)
_since("UEK7", "lrus", sample="", xarray=True, ext=True)
_since(
    *("5.17", "slabs"),
    struct_slab=True,
    vector="memcg_data",
    aware_only=True,
    xarray=False,
    ext=False,
)
_since("5.18", "lrus", xarray=True)
_since(
    *("6.10", "files lrus slabs"),
    sample="sample-after",
    page_type=True,
    vector="obj_exts",
    hlist=True,
)
_since("6.13", "lrus", sample="", locks=True)
_since("6.15", "files", shortname=True, type_shift=19)
_since("6.18", "slabs", memdesc_flags=True, sheaves=True, flags_enum=True)
_since("7.0", "slabs", cpu_slab=False, stride=True)
_since(
    *("7.3", "files slabs"),
    stride=False,
    per_node=True,
    needs_objcg=True,
    compound_info=True,
    own_mount_list=True,
)

ERAS, LRU_ERAS, FILE_ERAS = _changed["slabs"], _changed["lrus"], _changed["files"]
"""The eras that changed layouts of slabs, of list_lrus, and of dentries or mounts, by name."""


def era_of(release: str) -> Era:
    """Return the era of a release: the last one that began before or with it."""
    if release in _eras:
        return _eras[release]
    began = [name for name in _eras if name[0].isdigit() and _order(name) <= _order(release)]
    return _eras[began[-1]]


def _order(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


def table(era: Era) -> dict[str, tuple[int, str]]:
    """Return the types of an era by ``struct tag``, for :func:`.types.add_types`."""
    return dict(_table(era))


@cache
def _table(era: Era) -> dict[str, tuple[int, str]]:
    properties = ("compound", "element", "list_size")
    values = asdict(era) | {name: getattr(era, name) for name in properties}
    types: dict[str, tuple[int, str]] = {}
    full = ""
    for line in LAYOUTS.format_map(values).splitlines():
        text, _, features = line.partition("?")
        has_all = all(_has(era, feature) for feature in features.split())
        if text and not text.startswith(" "):
            head, _, text = text.partition(" : ")
            keyword, tag, rest = head.split(None, 2)
            full = f"{keyword} {tag}" if has_all else ""
            if full:
                types[full] = (0, rest) if keyword == "typedef" else (int(rest), "")
        if full and has_all and text.strip():
            size, members = types[full]
            types[full] = size, members + text.replace(";", "\n") + "\n"
    if era.sample and era == _eras[era.name]:
        types |= dict.fromkeys(real_types(era.sample), (0, "@" + era.sample))
    return types


def _has(era: Era, feature: str) -> bool:
    return not getattr(era, feature[1:]) if feature.startswith("!") else bool(getattr(era, feature))
