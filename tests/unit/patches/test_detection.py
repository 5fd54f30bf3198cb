# SPDX-License-Identifier: LGPL-2.1-or-later
"""Detection of patches on *synthetic* sets of types of kernels that the lab cannot boot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcensus.catalogue import Detected, Prober, State, detect, modules
from kcensus.catalogue.model import Probe
from tests.catalogue import CATALOGUE
from tests.unit import distributions as known
from tests.unit.distributions import Distribution

PRESENT, ABSENT, SUPERSEDED = State.PRESENT, State.ABSENT, State.SUPERSEDED
UNDETERMINED, PARTIAL = State.UNDETERMINED, State.PARTIALLY_APPLIED

LIST_LRU = {"list-lru-memory", "list-lru-per-memcg-arrays", "list-lru-on-demand", "list-lru-xarray"}

KERNELS: dict[str, Distribution] = {
    # list_lrus know no cgroups, copies are without limit, CFQ is there and its fix leaves no trace.
    "RHEL 7.4": known.RHEL_7_4,
    # list_lrus are split by cgroup, in arrays; everything else as before, but no vendor.
    "4.19": known.MAINLINE_4_19,
    # The schedulers of 4.19: no classes in mq-deadline, no injection in BFQ.
    "4.19 with BFQ": known.MAINLINE_4_19_BFQ,
    # "4.18" with the injection of 5.2.
    "RHEL 8.1 with BFQ": known.RHEL_8_1_BFQ,
    # The limit is there in its first form, which can deadlock: the rework is not.
    "4.19 stable, before the rework": known.STABLE_4_19_SEMAPHORE,
    # "4.18" with dm of 5.4 and blk-mq only; memory cgroups still have caches of their own.
    "RHEL 8.3": known.RHEL_8_3,
    # "4.18" with the slab controller of 5.9 and 5.11 and the vendor's own limit to dentries; the
    # owner's word in struct page is in a union that keeps the vendor's binary interface.
    "RHEL 8.10": known.RHEL_8_10,
    # "5.14" as it was: arrays, and no vendor's limit.
    "RHEL 9.0": known.RHEL_9_0,
    # "5.14" with the list_lru series of 5.18, struct slab of 5.17, an xarray of hardware queues.
    "RHEL 9.2": known.RHEL_9_2,
    "RHEL 9.4": known.RHEL_9_4,
    # The series behind a pointer of Oracle's.
    "UEK 7": known.UEK_7,
}
STATES = {"+": PRESENT, "-": ABSENT, "s": SUPERSEDED, "?": UNDETERMINED}
TRUTH = """
..++....... bfq-async-tags
..--....... bfq-cgroup-tags
..-+....... bfq-injection
..--....... bfq-wakers
..?+....... bfq-write-overcharge
..-........ blk-mq-async-depth
--...------ blk-mq-hctx-array
-....-.-+.. blk-mq-hctx-table
???..ss..s. cfq-async-starvation
--.+.+++... cfq-removal
--...------ dentry-limit-sysctl
--..++++... dm-kcopyd-callback-list
-....-++... dm-name-tree
--..-+++.++ dm-snapshot-cow-in-progress
--..+ss..s. dm-snapshot-cow-semaphore
........+.. kmem-cache-alloc-lru
.-.....-+.. list-lru-cleanup
--...------ list-lru-deferred-split
--...------ list-lru-explicit-memcg
.-.....+... list-lru-memcg-aware
.-.....-+.+ list-lru-memcg-id
-+...++++.+ list-lru-memcg-lists
--..----+++ list-lru-memory
--..----+++ list-lru-on-demand
--..----+++ list-lru-per-memcg-arrays
--...------ list-lru-split-lock
--..----+++ list-lru-xarray
--...------ memcg-objcg-per-node
..-........ mq-deadline-head-fifo-time
..--....... mq-deadline-prio-aging
-.-..-++... mq-deadline-priorities
..-........ mq-deadline-sync-tags
..-........ mq-deadline-tag-reservation
?-...------ negative-dentry-bloat
--...++.... negative-dentry-counter
--...------ negative-dentry-dir-limit
--...-+--.- negative-dentry-fs-klimit
?-...------ negative-dentry-hash-limit
--...------ negative-dentry-limit-2020
?-...------ negative-dentry-sibling-tail
--...----.- negative-dentry-sysctl-limit
--...------ negative-dentry-track-limit
--...------ negative-dentry-unlink-drop
--...------ negative-dentry-unlink-sysctl
..-........ sbitmap-shallow-depth
--...-++... slab-memcg-data
--...------ slab-no-cpu-slab
--...------ slab-obj-exts
--...------ slab-obj-exts-placement
--...------ slab-objcg-bit
--...-+++.+ slab-objcg-controller
--...------ slab-page-type
--...------ slab-sheaves
--....--++- slab-struct-slab
--...------ workqueue-cpu-pwq
-....-++... workqueue-inactive-works
--...------ workqueue-max-active
--...------ workqueue-progress-stamp
"""
"""Of each patch, its state on each of KERNELS; a dot where its sources were not looked at."""


def truth() -> dict[str, dict[str, State]]:
    states: dict[str, dict[str, State]] = {name: {} for name in KERNELS}
    for row in TRUTH.strip().splitlines():
        letters, patch = row.split()
        for name, letter in zip(KERNELS, letters, strict=True):
            if letter != ".":
                states[name][patch] = STATES[letter]
    return states


def detected(kernel: Distribution, lacking: tuple[str, ...] = ()) -> dict[str, Detected]:
    return detect(CATALOGUE.patches, Prober(kernel.program(), lacking))


def without(kernel: Distribution, *structs: str) -> Distribution:
    left = {name: members for name, members in kernel.structs.items() if name not in structs}
    return replace(kernel, structs=left)


@pytest.mark.parametrize("name", KERNELS)
def test_synthetic_distribution(name: str) -> None:
    found, expected = detected(KERNELS[name]), truth()[name]
    assert {patch: found[patch].state for patch in expected} == expected
    assert all(found[patch].reason for patch in found)


def test_every_patch_has_a_truth_on_some_synthetic_kernel() -> None:
    told = {patch for states in truth().values() for patch in states}
    # Not checked in the sources of these kernels, only on the kernels of the lab.
    locking = {each.id for each in CATALOGUE.patches.values() if "/locking/" in each.file}
    assert len(locking) == 7
    assert set(CATALOGUE.patches) - told == {"fsnotify-lazy-parent-watched"} | locking


def test_a_reason_names_what_was_found() -> None:
    older, newer = detected(known.RHEL_9_0), detected(known.RHEL_9_2)
    for found, patch, reason in (
        (newer, "list-lru-xarray", "struct list_lru has xa"),
        (older, "list-lru-xarray", "struct list_lru has no xa, struct list_lru has no ext"),
        (newer, "negative-dentry-unlink-sysctl", "no symbol dentry_negative_policy"),
        (newer, "dm-snapshot-cow-semaphore", "superseded by dm-snapshot-cow-in-progress"),
    ):
        assert reason in found[patch].reason


def test_evidence_where_types_cannot_tell() -> None:
    found = detected(known.RHEL_7_4)["cfq-async-starvation"]
    assert found.state is UNDETERMINED
    assert "best evidence" in found.reason
    assert "changelog" in found.reason


def test_the_limit_of_a_vendor_is_known_by_its_variable() -> None:
    symbols = (*known.RHEL_7_4.symbols, "dcache_negative_dentry_limit_sysctl")
    found = detected(replace(known.RHEL_7_4, symbols=symbols))
    assert found["negative-dentry-sysctl-limit"].state is PRESENT


def test_missing_types_of_an_unloaded_module_are_undetermined() -> None:
    assert " ".join(modules(CATALOGUE.patches)) == "bfq dm_bufio dm_mod dm_snapshot mq_deadline"
    kernel = without(known.RHEL_9_2, "dm_snapshot", "dm_kcopyd_client", "hash_cell")
    found = detected(kernel)
    for patch in ("dm-snapshot-cow-in-progress", "dm-snapshot-cow-semaphore", "dm-name-tree"):
        assert found[patch].state is UNDETERMINED
        assert "is not loaded" in found[patch].reason
    lacking = ("debug info of module dm_mod of kernel x is missing: install it",)
    found = detected(kernel, lacking)
    assert found["dm-kcopyd-callback-list"].reason == (
        "no struct dm_kcopyd_client; dm_mod is loaded without debug info"
    )
    assert "dm_snapshot is not loaded" in found["dm-snapshot-cow-in-progress"].reason
    # What is built in is not affected.
    assert found["list-lru-memory"].state is PRESENT


def test_kernels_without_kernel_memory_accounting() -> None:
    structs = known.MAINLINE_4_19.without_members(mem_cgroup=("kmemcg_id",))
    structs["list_lru_node"] = ("lock", "lru", "nr_items")
    kernel = replace(known.MAINLINE_4_19, structs=structs, symbols=())
    found = detected(kernel)
    for patch in (*LIST_LRU, "list-lru-memcg-lists", "slab-objcg-controller", "list-lru-memcg-id"):
        assert found[patch].state is UNDETERMINED, patch
        assert "without kernel memory accounting" in found[patch].reason


def test_a_partially_applied_series() -> None:
    structs = known.RHEL_9_0.structs | {"list_lru_memcg": ("rcu", "node")}
    found = detected(replace(known.RHEL_9_0, structs=structs))
    series = found["list-lru-memory"]
    assert (series.state, series.stage) == (PARTIAL, "list-lru-per-memcg-arrays")
    assert "list-lru-xarray is absent" in series.reason
    assert found["list-lru-on-demand"].state is UNDETERMINED
    # The dentry series in a vendor's kernel.
    names = (*known.RHEL_9_2.enumerators, "D_WALK_SKIP_SIBLINGS")
    found = detected(replace(known.RHEL_9_2, enumerators=names))
    assert found["negative-dentry-sibling-tail"].state is PRESENT
    assert found["negative-dentry-hash-limit"].state is UNDETERMINED
    assert found["negative-dentry-bloat"].state is UNDETERMINED


def test_a_type_that_is_only_declared_is_unknown() -> None:
    prog = known.RHEL_9_2.program()
    declared = prog.struct_type("xa_only", None, None)

    def find(prog: object, kinds: object, name: str, file: object) -> object:
        return declared if name == "xa_only" else None

    prog.register_type_finder("declared", find, enable_index=0)
    prober = Prober(prog)
    for probe in (Probe(type="struct xa_only"), Probe(member="struct xa_only.xa")):
        answer = prober.ask(probe)
        assert answer.value is None
        assert "only declared" in answer.reason


@pytest.mark.parametrize("name", ["struct", "const", "struct int", "struct x\u00b2"])
def test_invalid_type_names_do_not_exist(name: str) -> None:
    prober = Prober(known.RHEL_9_2.program())
    assert prober.ask(Probe(type=name)).value is False
    assert prober.ask(Probe(member=f"{name}.x")).value is False


def test_members_behind_pointers_and_in_anonymous_unions() -> None:
    prober = Prober(known.UEK_7.program())

    def there(path: str, kernel: Prober = prober) -> bool | None:
        return kernel.ask(Probe(member=path)).value

    assert there("struct list_lru.ext.xa") is True
    assert there("struct list_lru.ext.gone") is False
    assert there("struct list_lru.node.xa") is False  # not a struct
    assert there("struct page.memcg_data", Prober(known.RHEL_8_10.program())) is True
    assert there("struct page.rh_reserved_mem_cgroup", Prober(known.RHEL_8_10.program())) is True


def test_a_rule_that_ignores_modules_leaves_them_to_the_next_rule() -> None:
    patch = "mq-deadline-tag-reservation"
    unloaded = without(known.MAINLINE_4_19, "deadline_data")
    assert detected(unloaded)[patch].state is UNDETERMINED
    for symbol, state in (("dd_to_word_depth", PRESENT), ("__map_depth_with_shallow", SUPERSEDED)):
        kernel = replace(known.MAINLINE_4_19, symbols=(symbol,))
        assert detected(kernel)[patch].state is state


def test_parameters_of_modules() -> None:
    probe = Probe(parameter="dm_snapshot.snapshot_cow_threshold")
    plain = known.RHEL_9_2
    assert Prober(plain.program()).ask(probe).value is None  # perhaps it is not loaded
    symbols = (*plain.symbols, "__param_snapshot_cow_threshold")
    assert Prober(replace(plain, symbols=symbols).program()).ask(probe).value is True
