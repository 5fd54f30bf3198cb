# SPDX-License-Identifier: LGPL-2.1-or-later
"""The recipes of docs/drgn.md on real kernels, against walks with drgn's own helpers."""

from __future__ import annotations

import doctest
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace
from typing import Any

import drgn
import pytest
from drgn.cli import default_globals
from drgn.helpers.linux.fs import dentry_path
from drgn.helpers.linux.mm import compound_head, virt_to_page
from drgn.helpers.linux.pid import for_each_task
from drgn.helpers.linux.sched import task_state_to_char
from drgn.helpers.linux.slab import (
    find_slab_cache,
    get_slab_cache_aliases,
    slab_cache_for_each_allocated_object,
)

import kcensus
from kcensus.api.objects import MergedCacheWarning
from tests.lab import Dump
from tests.pages import RECIPES_PAGE, recipes
from tests.vm.oracles.dentries import children

pytestmark = pytest.mark.newest

RECIPES = recipes(RECIPES_PAGE)
DUMP_RECIPES = [
    each
    for each in recipes(RECIPES_PAGE.partition("## Recipes for a dump")[2])
    if each != "What do the tasks do?"
]
Oracle = Callable[[SimpleNamespace], None]
_oracles: dict[str, Oracle] = {}


def oracle(heading: str) -> Callable[[Oracle], Oracle]:
    """Let a function check the names that a recipe leaves, given the beginning of its heading."""

    def register(check: Oracle) -> Oracle:
        (whole,) = (each for each in RECIPES if each.startswith(heading))
        _oracles[whole] = check
        return check

    return register


@pytest.fixture(scope="module")
def prog(mixed_dump: Dump) -> drgn.Program:
    """The dump as drgn's command line opens it."""
    prog = drgn.Program()
    prog.set_core_dump(mixed_dump.formats["elf"])
    prog.load_debug_info(mixed_dump.debug)
    return prog


def run(prog: drgn.Program, recipe: str) -> tuple[SimpleNamespace, str]:
    names = default_globals(prog) | {"kcensus": kcensus}
    with redirect_stdout(StringIO()) as printed:
        for example in doctest.DocTestParser().get_examples(recipe):
            exec(compile(example.source, "<recipe>", "single"), names)
    return SimpleNamespace(**names, printed=printed.getvalue()), printed.getvalue()


@pytest.mark.filterwarnings(f"ignore::{MergedCacheWarning.__module__}.MergedCacheWarning")
@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe(heading: str, prog: drgn.Program) -> None:
    names, printed = run(prog, RECIPES[heading])
    assert printed
    _oracles[heading](names)


@pytest.mark.usually("6.1")
@pytest.mark.filterwarnings(f"ignore::{MergedCacheWarning.__module__}.MergedCacheWarning")
@pytest.mark.parametrize("heading", DUMP_RECIPES)
def test_the_page_shows_what_a_recipe_prints(heading: str, prog: drgn.Program, kernel: str) -> None:
    """Numbers differ from boot to boot, and so do the first tasks in each state."""
    recipe = RECIPES[heading]
    shown = "".join(each.want for each in doctest.DocTestParser().get_examples(recipe))
    _, printed = run(prog, recipe)
    forms = [re.sub(r"[\d.]+", "N", re.sub(r" +", " ", text)) for text in (shown, printed)]
    assert forms[0] == forms[1]


def dentries(prog: drgn.Program) -> Iterator[Any]:
    cache = find_slab_cache(prog, "dentry")
    return slab_cache_for_each_allocated_object(cache, "struct dentry")


def path(block: Any, name: str) -> Any:
    """Return a dentry of a file system, given its path there, from the root down."""
    dentry = block.s_root
    for part in name.split("/"):
        (dentry,) = (
            each for each in children(dentry) if each.d_name.name.string_() == part.encode()
        )
    return dentry


@oracle("Which slab caches hold objects")
def _(names: SimpleNamespace) -> None:
    memcg = kcensus.as_object(names.prog, names.group)
    assert memcg.type_.type_name() == "struct mem_cgroup *"
    same = kcensus.rows(names.groups, memcg)
    assert same["memcg"].tolist() == [names.group["memcg"]]
    assert names.charged["objects"].sum() == names.group["objects"] > 0
    dentries = kcensus.objects(names.prog, "struct dentry", memcg=True)
    charged = (dentries["memcg"] == names.group["memcg"]).sum()
    assert names.charged.set_index("cache")["objects"].get("dentry", 0) == charged


@oracle("What does the kernel know about the directory")
def _(names: SimpleNamespace) -> None:
    directory = names.directory
    assert names.row["directory"].endswith("/" + dentry_path(directory).decode())
    negative = sum(not child.d_inode for child in children(directory))
    assert names.row["negative"] == negative > 1000


@oracle("What are the oldest and the newest")
def _(names: SimpleNamespace) -> None:
    """The workload made these names in the order of their numbers."""
    assert len(names.by_age) == len(names.newest_first) > 10000
    assert dentry_path(names.parent) == b"fragments"
    numbers = [int(each.rpartition("/")[2]) for each in names.by_age["path"]]
    assert numbers == [*range(len(numbers))][::-1]
    negatives = path(names.parent.d_sb, "tree/a")
    made = [each.d_name.name.string_() for each in children(negatives) if not each.d_inode]
    counted = [int(name) for name in made if name.isdigit()]
    assert len(counted) > 1000
    assert counted == sorted(counted, reverse=True)


@oracle("Which copies does one snapshot have")
def _(names: SimpleNamespace) -> None:
    cache = find_slab_cache(names.prog, "kcopyd_job")
    jobs = slab_cache_for_each_allocated_object(cache, "struct kcopyd_job")
    walked = {job.value_() for job in jobs if job.kc.value_() == names.client}
    assert {*names.jobs.index} == walked
    counter = names.snapshot.kcopyd_client.nr_jobs.counter.value_()
    assert len(walked) == counter == names.snapshots["in_flight"].iloc[0] > 10


@oracle("How many dentries does each file system")
def _(names: SimpleNamespace) -> None:
    walked = Counter((dentry.d_sb.value_(), not dentry.d_inode) for dentry in dentries(names.prog))
    for address, row in names.by_block.iterrows():
        negative, positive = walked[address, True], walked[address, False]
        assert (row["dentries"], row["negative"]) == (negative + positive, negative)
    assert names.by_block["negative"].max() > 40000


@oracle("How full are the slabs")
def _(names: SimpleNamespace) -> None:
    cache = find_slab_cache(names.prog, "xfs_inode")
    assert cache is not None
    slots = names.table.set_index("cache").loc["xfs_inode", "objects_per_slab"]
    in_use = Counter(
        compound_head(virt_to_page(names.prog, each)).value_()
        for each in slab_cache_for_each_allocated_object(cache, "struct xfs_inode")
    )
    full = sum(count == slots for count in in_use.values())
    assert names.slabs["slabs full"] == full > 100
    assert names.slabs.drop("slabs empty").sum() == len(in_use)


@oracle("Which caches are merged")
def _(names: SimpleNamespace) -> None:
    aliases = Counter(get_slab_cache_aliases(names.prog).values())
    listed = names.merged.set_index("cache")["aliases"].str.split(", ").map(len)
    assert listed.to_dict() == aliases


@oracle("What are the inode numbers")
def _(names: SimpleNamespace) -> None:
    walked = {
        dentry.value_(): dentry.d_inode.i_ino.value_()
        for dentry in dentries(names.prog)
        if dentry.d_inode
    }
    assert names.positive["i_ino"].to_dict() == walked


@oracle("Whose inodes fill the page cache")
def _(names: SimpleNamespace) -> None:
    inodes = {each.d_inode.value_(): each.d_inode for each in dentries(names.prog) if each.d_inode}
    walked: Counter[int] = Counter()
    for inode in inodes.values():
        walked[inode.i_sb.value_()] += inode.i_data.nrpages.value_()
    assert names.pages["pages"].to_dict() == walked
    assert names.pages["inodes"].sum() == len(inodes)


@oracle("What do the tasks do")
def _(names: SimpleNamespace) -> None:
    walked = {each.value_(): each for each in for_each_task(names.prog)}
    more = names.tasks[~names.tasks.index.isin([*walked])]
    assert len(names.tasks) - len(more) == len(walked) > 50
    # Idle tasks, and those that have exited.
    assert ((more["pid"] == 0) | (more["exit_state"] != 0)).all()
    states = Counter(task_state_to_char(each) for each in walked.values())
    printed: Counter[str] = Counter()
    for line in names.printed.splitlines():
        printed[line[0]] += int(line.split()[1])
    states.update(
        task_state_to_char(drgn.Object(names.prog, "struct task_struct *", value=each))
        for each in more.index.tolist()
    )
    assert printed == states


@oracle("What else is in the slab")
def _(names: SimpleNamespace) -> None:
    page = names.page.value_()
    walked = {
        each.value_()
        for each in dentries(names.prog)
        if compound_head(virt_to_page(names.prog, each)).value_() == page
    }
    assert {*names.neighbours.index} == walked
    assert len(walked) > 1


@oracle("How do I get from drgn's own loop")
def _(names: SimpleNamespace) -> None:
    assert len(names.walked) == len(names.found) == len(names.frame) > 50000
    assert names.printed.endswith("True\n")


def test_every_recipe_is_checked() -> None:
    assert {*_oracles} == {*RECIPES}
    assert len(RECIPES) >= 10
    assert len(DUMP_RECIPES) == 4
