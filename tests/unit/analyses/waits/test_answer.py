# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the analysis says of *synthetic* graphs."""

from __future__ import annotations

import pytest

from kcensus.analyses.waits.figures.log import Log
from kcensus.analyses.waits.findings import findings as told_by
from kcensus.analyses.waits.findings.known import KNOWN, patch_behind, patch_of
from kcensus.analyses.waits.findings.stalls import exited
from kcensus.analyses.waits.run import summary
from kcensus.analyses.waits.selection import selection
from kcensus.analyses.waits.tables import tables
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.locks.futexes import FUTEX
from kcensus.kernel.waiting.finders.locks.locks import MUTEX
from kcensus.kernel.waiting.graph import QUEUE, NodeKind
from kcensus.results import Danger, Severity
from tests.catalogue import PATCHES
from tests.unit.analyses.waits.making import Scene, findings, owned

_SURE, _LIKELY, _MAYBE = Strength.PROVEN, Strength.DERIVED, Strength.POSSIBLE
_ABBA = Scene(4, {0: 1, 1: 0, 2: 0}, owned(2))
_CONVOY = dict.fromkeys(range(1, 13), 0)


def test_a_deadlock() -> None:
    figures = _ABBA.figures()
    (finding,) = findings(figures)
    assert finding.id == "waits-deadlock:100"
    assert (finding.severity, finding.danger) == (Severity.CRITICAL, Danger.DEADLOCK)
    values = {key: figure.value for key, figure in finding.figures.items()}
    assert values == {"tasks": 2, "behind": 1, "oldest": 3.0}
    assert len(finding.story) == 2
    assert finding.no_remedy
    assert not finding.remedies
    keys = ("deadlocks", "tasks_blocked", "tasks_in_deadlocks", "tasks_behind_deadlocks")
    values = {key: figure.value for key, figure in summary(figures).items()}
    assert [values[key] for key in (*keys, "tasks_undetermined")] == [1, 3, 2, 1, 0]
    # The kernel's log may report it.
    figures.hung = {101: 120, 102: 120}
    assert "1 of these 2" in findings(figures)[0].evidence


def test_without_stacks_it_is_not_known_that_there_is_none() -> None:
    figures = Scene(4, {}, {}).figures()
    waits = figures.waiting.waits
    assert summary(figures)["deadlocks"].value == 0
    for known, expected in ((2, 0), (1, None)):
        waits.function[:] = ["mutex_lock"] * known + [""] * (4 - known)
        assert summary(figures)["deadlocks"].value == expected
    waits.function[:] = [""] * len(waits)
    sure = _ABBA.figures()
    sure.waiting.waits.function[:] = [""] * len(sure.waiting.waits)
    assert summary(sure)["deadlocks"].value == 1


def test_many_deadlocks() -> None:
    waits = {task: task ^ 1 for task in range(24)}
    held = {task: (task, _MAYBE if task in (0, 2) else _SURE) for task in range(24)}
    figures = Scene(24, waits, held).figures()
    assert len(figures.cycles) == 12
    found = findings(figures)
    assert [each.kind for each in found] == ["waits-deadlock"] * 8
    assert [len(each.story) for each in found] == [2] * 7 + [3]
    assert found[-1].story[-1].startswith("4 more")
    assert summary(figures)["deadlocks"].value == 10


def test_the_tables_of_a_deadlock() -> None:
    made = tables(_ABBA.figures())
    # The one that has slept longest is first.
    assert made["cycles"].frame["pid"].tolist() == [101, 100]
    assert made["cycles"].frame["held_by"].tolist() == ["task-0 (PID 100)", "task-1 (PID 101)"]
    tasks = made["tasks"].frame.set_index("pid")
    assert tasks.loc[102, "held_by"] == "task-0 (PID 100)"
    assert tasks["cycle"].to_dict() == {100: 1, 101: 1, 102: 0}
    assert made["objects"].frame["behind"].tolist() == [3, 3]
    assert len(made["nodes"].frame) == 5
    assert made["edges"].frame["strength"].tolist() == ["proven"] * 5
    stacks = made["stacks"].frame
    assert stacks["pid"].tolist() == [101, 100]
    assert stacks["frame"].tolist() == [0, 0]
    assert set(stacks["function"]) == {"mutex_user"}
    assert all(int(place, 16) >= 1 << 63 for place in stacks["place"])


@pytest.mark.parametrize(
    ("scene", "name", "figures"),
    [
        (
            Scene(2, {0: 1, 1: 0}, {0: (0, _SURE), 1: (1, _MAYBE)}),
            "waits-deadlock-possible:100",
            {"tasks": 2, "behind": 0, "oldest": 2.0},
        ),
        (Scene(13, _CONVOY, owned(1)), "waits-behind:100", {"tasks": 12, "oldest": 13.0}),
        (Scene(13, _CONVOY), "waits-unheld:", {"tasks": 12, "oldest": 13.0}),
        (Scene(200, {150: 0}, owned(1)), "waits-behind:100", {"tasks": 1, "oldest": 151.0}),
        (Scene(200, {150: 0, 100: 1}), "waits-alone", {"tasks": 1, "longest": 151.0}),
    ],
)
def test_what_is_found(scene: Scene, name: str, figures: dict[str, float]) -> None:
    (finding,) = findings(scene.figures())
    assert finding.id.startswith(name)
    assert (finding.severity, finding.remedies) == (Severity.WARNING, ())
    assert {key: figure.value for key, figure in finding.figures.items()} == figures
    values = {key: figure.value for key, figure in summary(scene.figures()).items()}
    possible = int(finding.kind == "waits-deadlock-possible")
    assert (values["deadlocks"], values["deadlocks_possible"]) == (0, possible)


@pytest.mark.parametrize(
    "scene", [Scene(3, {1: 0, 2: 0}, owned(1)), Scene(200, {100: 0}, owned(1))]
)
def test_what_is_usual(scene: Scene) -> None:
    assert findings(scene.figures()) == []


def test_what_can_be_killed() -> None:
    scene = Scene(2, {0: 1, 1: 0}, {0: (0, _SURE), 1: (1, _LIKELY)}, interruptible={1})
    (finding,) = findings(scene.figures())
    assert [remedy.command for remedy in finding.remedies] == ["kill -KILL 101"]
    assert "restart" not in finding.no_remedy


@pytest.mark.parametrize("exited", [0, 1])
def test_a_task_that_has_exited_is_told_of_alone(exited: int) -> None:
    waits = dict.fromkeys(range(2, 12), 0)
    scene = Scene(12, waits, owned(1), also={0: 1}, exited={exited})
    ids = {finding.id for finding in findings(scene.figures())}
    assert {each.partition(":")[0] for each in ids} == {"waits-exited", "waits-behind"}
    assert f"waits-behind:{101 - exited}" in ids


@pytest.mark.parametrize("names", [[], ["dd (PID 1)"], ["dd (PID 1)", "cp (PID 2)"]])
def test_a_task_that_an_oops_killed_has_the_name_in_the_log(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on no list, and its memory may be that of another task by now."""
    found = Scene(2, {1: 0}, owned(1)).figures()
    owner = next(node for node in found.task_nodes if found.tasks.pid(node) == 100)
    found.log = Log(oopses=names)
    pid = found.tasks.pid
    monkeypatch.setattr(found.tasks, "pid", lambda node: 0 if node == owner else pid(node))
    finding = exited(found, owner).finding
    assert finding.id == f"waits-exited:{found.graph.address[owner]:x}"
    assert all(name in finding.title for name in names)
    assert ("oops" in finding.title) == bool(names)
    assert f"{found.graph.address[owner]:x}" in f"{finding.title} {finding.evidence}"


def test_the_tree_of_a_long_chain_and_of_a_wide_one() -> None:
    chain = Scene(300, {n: n - 1 for n in range(1, 300)}, owned(299))
    drawn = selection(chain.figures()).lines
    assert max(line.depth for line in drawn) < 20
    assert drawn[-1].node == -1
    wide = Scene(100, dict.fromkeys(range(1, 100), 0), owned(1))
    drawn = selection(wide.figures()).lines
    assert len(drawn) == 2 + 4 + 1
    assert "95" in drawn[-1].text
    # Late tasks have stacks, for other analyses.
    frame = tables(Scene(30, {5: 0, 15: 0, 16: 0}).figures())["stacks"].frame
    # The first task behind each root, and those that users notice.
    assert frame["pid"].tolist() == [105, 116, 115]


def test_a_wait_queue_is_no_lock_and_its_waiters_have_stacks() -> None:
    scene = Scene(40, dict.fromkeys(range(20, 40), 0), kind=QUEUE)
    figures = scene.figures()
    (told,) = told_by(figures)
    finding = told.finding
    assert finding.id.startswith("waits-unheld:")
    assert finding.is_generic
    assert "search -t" not in finding.no_remedy
    assert "--table stacks" in finding.no_remedy
    assert {*tables(figures, [told])["stacks"].frame["pid"]} == {*range(120, 140)}


def test_names_are_escaped() -> None:
    scene = Scene(2, {0: 1, 1: 0}, owned(2), names={0: "a\x1b[31m\nx"})
    assert "\x1b" not in findings(scene.figures())[0].title


def test_functions_are_named_with_their_modules() -> None:
    figures = _ABBA.figures()
    stacks = figures.waiting.waits.stacks
    assert set(stacks.names.values()) == {"mutex_user"}
    stacks.modules.update(dict.fromkeys(stacks.names, "dm_x"))
    made = tables(figures)
    assert set(made["cycles"].frame["function"]) == {"mutex_user [dm_x]"}
    assert set(made["tasks"].frame["function"]) - {""} == {"mutex_user [dm_x]"}
    assert any(row.text.endswith("in mutex_user [dm_x]") for row in selection(figures).lines)
    assert stacks.described(0) == ["mutex_user [dm_x]"]


@pytest.mark.parametrize(
    ("kind", "holder", "found"),
    [
        (MUTEX, None, ["waits-unheld"]),
        (FUTEX, None, []),
        (FUTEX, Strength.POSSIBLE, ["waits-unheld"]),
        (FUTEX, Strength.DERIVED, ["waits-behind"]),
    ],
)
def test_threads_that_are_idle(kind: NodeKind, holder: Strength | None, found: list[str]) -> None:
    held = {} if holder is None else {0: (200, holder)}
    scene = Scene(201, dict.fromkeys(range(200), 0), held, interruptible=set(range(200)), kind=kind)
    assert [each.kind for each in findings(scene.figures())] == found


# The four threads of the posting of 2020-08-12, from the outermost function inwards.
_SEED = (
    "device_offline memory_subsys_offline offline_pages __offline_pages",
    "css_killed_work_fn mem_cgroup_css_offline memcg_offline_kmem.part.0 "
    "memcg_deactivate_kmem_caches get_online_mems",
    "do_coredump elf_core_dump dump_emit __kernel_write pipe_write pipe_wait",
    "ksys_read vfs_read seq_read proc_single_show proc_cgroup_show",
)


def test_the_deadlock_of_four_threads() -> None:
    functions = {0: "__offline_pages", 1: "mem_cgroup_css_offline"}
    scene = Scene(2, {0: 1, 1: 0}, owned(2), functions=functions)
    (finding,) = findings(scene.figures())
    assert finding.patch == "slab-objcg-controller"
    assert findings(_ABBA.figures())[0].patch == ""
    stacks = [names.split() for names in _SEED]
    assert patch_of(stacks) == "slab-objcg-controller"
    assert patch_of(list(reversed(stacks))) == "slab-objcg-controller"
    assert patch_of(stacks[2:]) == ""
    assert patch_of(stacks[:1]) == ""


def test_each_needs_a_task_of_its_own() -> None:
    for known in KNOWN:
        together = [name for names in known.tasks for name in names]
        assert patch_of([together]) == ""
        assert patch_of([[next(iter(names))] for names in known.tasks]) == known.patch


def test_the_catalogue_has_their_patches_and_postings() -> None:
    assert len(KNOWN) >= 7
    for known in KNOWN:
        assert PATCHES[known.patch].postings, known.patch


def test_a_task_that_loops_and_those_behind_it() -> None:
    # offline_pages() does not sleep until pages are migrated: it tries again and again.
    offline = ["preempt_schedule_common", "migrate_pages.part.0", "__offline_pages"]
    killer = ["percpu_down_read", "memcg_deactivate_kmem_caches", "process_one_work"]
    assert patch_behind(offline, [["vfs_read"], killer]) == "slab-objcg-controller"
    assert patch_behind(["vfs_read"], [offline, killer]) == ""
    assert patch_behind(offline, [["vfs_read"]]) == ""
