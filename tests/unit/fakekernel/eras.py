# SPDX-License-Identifier: LGPL-2.1-or-later
"""The layouts that a *synthetic* kernel can have, each after an era of the real one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Era:
    """What kernels of an era have, as far as slab pages and their owners go."""

    name: str
    vector: str = ""
    """Member of the slab that leads to its vector of obj_cgroups; none before 5.9."""
    children: bool = False
    """Memory cgroups have caches of their own."""
    hardened: bool = True
    swab: bool = True
    struct_slab: bool = True
    page_type: bool = True
    """A slab page is told by the word over ``_mapcount``, not by PG_slab."""
    memdesc_flags: bool = False
    cpu_slab: bool = True
    sheaves: bool = False
    per_node: bool = False
    """The barn's pointer stands beside that of the kmem_cache_node, not in it."""
    stride: bool = False
    needs_objcg: bool = False
    codetag: bool = False
    """Memory allocation profiling is on: vector elements have a second word."""
    compound: str = "compound_head"
    compound_mask: bool = False


ERAS = {
    era.name: era
    for era in (
        Era("4.18", children=True, hardened=False, struct_slab=False, page_type=False),
        Era("4.19", children=True, swab=False, struct_slab=False, page_type=False),
        Era("5.9", "obj_cgroups", struct_slab=False, page_type=False),
        Era("5.17", "memcg_data", page_type=False),
        Era("6.10", "obj_exts"),
        Era("6.18", "obj_exts", memdesc_flags=True, sheaves=True),
        Era("7.0", "obj_exts", memdesc_flags=True, sheaves=True, cpu_slab=False, stride=True),
        Era(
            "7.3",
            "obj_exts",
            memdesc_flags=True,
            sheaves=True,
            cpu_slab=False,
            per_node=True,
            needs_objcg=True,
            compound="compound_info",
            compound_mask=True,
        ),
    )
}


def table(era: Era) -> dict[str, tuple[int, str]]:
    """The types of an era, for :func:`add_types`."""
    flags = "memdesc_flags_t" if era.memdesc_flags else "unsigned long"
    barn = "struct node_barn *"
    # The names that struct slab has for the page's words came and went; only these are looked at.
    slab = """
        24 struct kmem_cache * slab_cache
        32 void * freelist
        40 unsigned int inuse:16
        42 unsigned int objects:15
        43.7 unsigned int frozen:1"""
    if era.vector:
        slab += f"\n56 unsigned long {era.vector}"
    if era.stride:
        slab += "\n44 unsigned int stride"
    if era.needs_objcg:
        slab += "\n44 unsigned int obj_exts_in_object:1"
        slab += "\n44.1 unsigned int obj_exts_needs_objcg:1"
    page = f"""
        0 {flags} flags
        8 unsigned long {era.compound}
        48 atomic_t _mapcount"""
    cache = """
        8 unsigned long flags
        16 struct kobject kobj
        24 unsigned int size
        28 unsigned int object_size
        32 unsigned int offset
        40 struct kmem_cache_order_objects oo
        48 int refcount
        52 unsigned int red_left_pad
        56 const char * name
        64 struct list_head list"""
    for wanted, line in (
        (era.cpu_slab, "0 struct kmem_cache_cpu * cpu_slab"),
        (era.hardened, "80 unsigned long random"),
        (not era.page_type, "44 struct kmem_cache_order_objects max"),
        (era.children, "88 struct memcg_cache_params memcg_params"),
        (era.sheaves, "112 struct slub_percpu_sheaves * cpu_sheaves"),
        (era.sheaves, "120 unsigned int sheaf_capacity"),
        (era.per_node, "128 struct kmem_cache_per_node_ptrs [8] per_node"),
        (not era.per_node, "128 struct kmem_cache_node * [8] node"),
    ):
        cache += f"\n{line}" if wanted else ""
    node = """
        8 struct list_head partial
        24 atomic_long_t nr_slabs
        32 atomic_long_t total_objects"""
    if era.sheaves and not era.per_node:
        node += f"\n40 {barn} barn"
    active = "slab" if era.struct_slab else "page"
    types = {
        "struct page": (64, page if era.struct_slab else page + slab),
        "struct zone": (64, "8 void * vmemmap_tails" * era.compound_mask),
        "struct pglist_data": (
            64,
            """0 int node_id
            8 atomic_long_t [4] vm_stat
            40 struct per_cpu_nodestat * per_cpu_nodestats""",
        ),
        "struct per_cpu_nodestat": (8, "0 signed char [4] vm_node_stat_diff"),
        "struct cpumask": (8, "0 unsigned long [1] bits"),
        "typedef nodemask_t": (0, "struct nodemask"),
        "struct nodemask": (8, "0 unsigned long [1] bits"),
        "typedef atomic_t": (0, "struct atomic"),
        "struct atomic": (4, "0 int counter"),
        "typedef atomic_long_t": (0, "struct atomic_long"),
        "struct atomic_long": (8, "0 long counter"),
        "struct kmem_cache": (256, cache),
        "struct kmem_cache_order_objects": (4, "0 unsigned int x"),
        "struct kmem_cache_node": (64, node),
        "struct kmem_cache_cpu": (
            24,
            f"0 void * freelist\n8 unsigned long tid\n16 struct {active} * {active}",
        ),
        # A third of a page in: nothing may take a css for its mem_cgroup.
        "struct mem_cgroup": (512, "128 struct cgroup_subsys_state css"),
        "struct cgroup_subsys_state": (
            128,
            """0 struct cgroup * cgroup
            24 struct list_head sibling
            40 struct list_head children
            60 unsigned int flags""",
        ),
        "struct cgroup": (64, "32 struct kernfs_node * kn"),
        "struct kernfs_node": (
            96,
            """16 const char * name
            24 struct rb_node rb
            48 struct kernfs_elem_dir dir
            56 struct kernfs_elem_symlink symlink
            64 void * priv
            72 unsigned short flags""",
        ),
        "struct kernfs_elem_dir": (8, "0 struct rb_root children"),
        "struct kernfs_elem_symlink": (8, "0 struct kernfs_node * target_kn"),
        "struct rb_root": (8, "0 struct rb_node * rb_node"),
        "struct rb_node": (24, "8 struct rb_node * rb_right\n16 struct rb_node * rb_left"),
        "struct kobject": (8, "0 struct kernfs_node * sd"),
        "struct kset": (64, "8 struct kobject kobj"),
        "struct obj_cgroup": (64, "24 struct mem_cgroup * memcg"),
    }
    if era.struct_slab:
        types["struct slab"] = (64, f"0 {flags} __page_flags" + slab)
    if era.memdesc_flags:
        types["typedef memdesc_flags_t"] = (0, "struct memdesc_flags")
        types["struct memdesc_flags"] = (8, "0 unsigned long f")
    if era.children:
        types["struct memcg_cache_params"] = (
            24,
            "8 struct kmem_cache * root_cache\n16 struct mem_cgroup * memcg",
        )
    if era.sheaves:
        types |= {
            "struct slub_percpu_sheaves": (
                32,
                """8 struct slab_sheaf * main
                16 struct slab_sheaf * spare
                24 struct slab_sheaf * rcu_free""",
            ),
            "struct slab_sheaf": (
                32,
                "0 struct list_head barn_list\n24 unsigned int size\n32 void * [0] objects",
            ),
            "struct node_barn": (40, "0 int lock\n8 struct list_head sheaves_full"),
            "struct kmem_cache_per_node_ptrs": (
                16,
                f"0 {barn} barn\n8 struct kmem_cache_node * node",
            ),
        }
    if era.vector == "obj_exts":
        second = "\n8 unsigned long ref" * (era.codetag and not era.needs_objcg)
        name = "_objcg" if era.needs_objcg else "objcg"
        types["struct slabobj_ext"] = (
            16 if second else 8,
            f"0 struct obj_cgroup * {name}" + second,
        )
    if era.needs_objcg and era.codetag:
        types["struct static_key_false"] = (8, "0 struct static_key key")
        types["struct static_key"] = (8, "0 atomic_t enabled")
    return types
