# SPDX-License-Identifier: LGPL-2.1-or-later
"""What guests report about tasks that wait, in the words of each kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lab import dumps, image, scenario
from tests.lab.debian.store import alike, is_compiled, kernels, like, usual_scenarios
from tests.lab.truth import waits
from tests.unit.project.test_lab_io import KERNEL, packed
from tests.vm.waits.scenarios import FOUND, MADE

_CLAIMS = """\
<6>[    3.471579] kcensus_waits: task 84 inverse-1 holds rwsem ffffffffc02a3d20 read
<6>[    3.473378] kcensus_waits: task 85 inverse-2 holds rwsem ffffffffc02a3d48 read
<6>[    3.480434] kcensus_waits: task 86 again-read holds rwsem ffffffffc02a3d70 read
<6>[    3.482041] kcensus_waits: task 90 self holds mutex ffffffffc02a3e00 exclusive
<6>[    3.489138] kcensus_waits: task 84 inverse-1 waits rwsem ffffffffc02a3d48 write
<6>[    3.497098] kcensus_waits: task 87 again-write waits rwsem ffffffffc02a3d70 write
<6>[    3.497356] kcensus_waits: task 85 inverse-2 waits rwsem ffffffffc02a3d20 write
<6>[    3.505183] kcensus_waits: task 86 again-read waits rwsem ffffffffc02a3d70 read
<6>[    3.505201] kcensus_waits: task 90 self waits mutex ffffffffc02a3e00 exclusive
<6>[    3.505333] kcensus_waits: task 91 behind waits mutex ffffffffc02a3e00 exclusive
<6>[    3.505416] kcensus_waits: task 92 kworker/0:1 waits page 0000000000000000 read
"""
_LISTED = {
    "5.10": "task:abba-1          state:D stack:    0 pid:   84 ppid:     2 flags:0x00004000",
    "6.1": "task:abba-1          state:D stack:0     pid:84    ppid:2      flags:0x00004000",
    "6.12": "task:abba-1 state:D stack:0     pid:84    tgid:83    ppid:2      flags:0x00004000",
    "7.3": "task:abba-1 state:D stack:0     pid:84    tgid:83    ppid:2      task_flags:0x208040",
}
_FRAMES = """\
<6>[   12.177493] Call Trace:
<6>[   12.177506]  <TASK>
<6>[   12.177531]  __schedule+0x34d/0xa00
<6>[   12.177599]  __mutex_lock.constprop.0+0x39d/0x720
<6>[   12.177615]  ? act+0x130/0x130 [kcensus_waits]
<6>[   12.177641]  act+0x10f/0x130 [kcensus_waits]
"""


def _task(pid: int, state: str = "D", stack: str = "[<0>] act+0x10f/0x130 [m]\n") -> dict[str, str]:
    directory = f"/proc/84/task/{pid}"
    return {
        f"{directory}/comm": f"abba-{pid}\n",
        f"{directory}/stat": f"{pid} (a) b-{pid}) {state} 2 0 0",
        f"{directory}/wchan": "act",
        f"{directory}/stack": stack,
    }


def _truth(log: str = "", **tasks: str) -> dict[str, str]:
    texts = packed(monotonic="12.000000007\n", **tasks)
    return {
        **dict.fromkeys(("waits.tasks.before", "waits.tasks.later"), texts),
        **dict.fromkeys(("waits.log.before", "waits.log.later"), log),
    }


def test_tasks_and_threads() -> None:
    read = waits.read(_truth(**_task(84), **_task(85, "S")))
    assert read.monotonic_ns == 12 * 10**9 + 7
    assert read.tasks == {
        84: waits.Task(84, 84, "abba-84", "D", "act", ("act",)),
        85: waits.Task(85, 84, "abba-85", "S", "act", ("act",)),
    }


def test_a_task_that_moves_is_not_still() -> None:
    truth = _truth(**_task(84), **_task(85), **_task(86, "R", ""))
    assert set(waits.still(truth)) == {84, 85}
    other = {**_task(84), **_task(85, stack="[<0>] pipe_write+0x1/0x2\n"), **_task(86, "R", "")}
    truth["waits.tasks.later"] = packed(monotonic="14.0\n", **other)
    assert set(waits.still(truth)) == {84}


def test_claims_make_cycles() -> None:
    read = waits.read(_truth(_CLAIMS))
    assert len(read.claims) == 11
    assert read.waits()[84].address == 0xFFFFFFFFC02A3D48
    assert read.holders(0xFFFFFFFFC02A3D48) == {85}
    assert read.waits()[92] == waits.Claim(92, "kworker/0:1", True, "page", 0, "read")
    assert read.cycles() == {frozenset({84, 85}), frozenset({86, 87}), frozenset({90})}


@pytest.mark.parametrize("era", _LISTED)
def test_the_kernels_own_list(era: str) -> None:
    line = f"<6>[   12.177451] {_LISTED[era]}\n"
    earlier = line.replace("84", "77") + _FRAMES
    log = f"{earlier}<6>[   12.177137] sysrq: Show Blocked State\n{line}{_FRAMES}"
    log += line.replace("pid:84", "pid:  85").replace("   84", "   85") + _FRAMES
    stack = ("__schedule", "__mutex_lock.constprop.0", "act")
    blocked = waits.read(_truth(log)).blocked
    assert blocked == {pid: waits.Blocked(pid, "abba-1", stack) for pid in (84, 85)}


_STALLS = """\
<3>[   10.984607] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
<3>[   10.985293] rcu: \tTasks blocked on level-0 rcu_node (CPUs 0-2): P107/1:b..l P106
<3>[    7.117548] rcu: INFO: rcu_sched self-detected stall on CPU
<3>[    7.117946] rcu: \t1-....: (638 ticks this GP) idle=b6e/1/0x4000000000000000 fqs=363
"""


def test_stalls_that_rcu_warns_about() -> None:
    read = waits.read(_truth(_STALLS))
    assert read.stalled == {106, 107}
    assert read.stalled_cpus == {1}


def test_a_cpu_that_is_busy_is_not_asked_for_its_counters() -> None:
    for name, folds in (("waits-rcu", False), ("waits-abba", True)):
        steps = image.guest_steps(KERNEL, scenario.load(name, "6.1"))
        assert any("/proc/sys/vm/stat_refresh" in step.arguments for step in steps) == folds


@pytest.mark.parametrize("name", [*MADE, *FOUND])
def test_what_tests_usually_have_is_built_beforehand(name: str) -> None:
    usual = (MADE | FOUND)[name]
    assert [k for k in kernels() if not scenario.load(name, k).on_request] == [*usual]


def test_kernels_of_another_flavor_are_for_scenarios_that_name_them() -> None:
    others = {name for name in {*kernels(every=True)} - {*kernels()} if like(name) == name}
    assert others == {"6.1-rt"}
    asked = {name for name in scenario.scenarios() if others & {*scenario.kernels_of(name)}}
    assert asked == {"waits-abba", "waits-completion", "waits-kinds", "waits-rwsem", "waits-self"}
    assert all(scenario.load(name, "6.1-rt").on_request for name in asked)


@pytest.mark.parametrize("name", ["mixed", "negatives", "waits-rcu", "waits-convoy", "iosched-bfq"])
def test_a_kernel_of_another_machine_has_the_scenarios_of_one_of_amd64(name: str) -> None:
    """Those that name it in `without` apart; and the same steps, but for what is built unasked."""
    asked = scenario.kernels_of(name)
    others = {other: kernel for kernel in asked for other in alike(kernel)}
    # A kernel that the lab compiles has no headers for our module.
    without = {other for other in others if name == "waits-rcu" and is_compiled(other)}
    assert {*others} - {*asked} == ({*others} if name == "waits-convoy" else without)
    for other, kernel in others.items():
        case, same = scenario.load(name, other), scenario.load(name, kernel)
        usual = name in (usual_scenarios(other) or ())
        # Large pages need more memory.
        assert case.memory >= same.memory
        assert case == replace(same, on_request=not usual, memory=case.memory)


def test_scenarios_that_are_built_unasked_exist() -> None:
    lists = {name: usual_scenarios(name) for name in kernels(every=True)}
    assert {name for name, usual in lists.items() if usual} == {"6.12-arm64"}
    assert [name for name, usual in lists.items() if usual is None] == [*kernels(), "6.1-rt"]
    for usual in filter(None, lists.values()):
        assert {*usual} <= {*scenario.scenarios()}
        assert all("6.12-arm64" in scenario.kernels_of(name) for name in usual)


def test_a_scenario_adds_to_the_kernels_command_line() -> None:
    lines = []
    for name in ("waits-abba", "idle"):
        arguments = dumps._arguments(KERNEL, scenario.load(name, "6.1"))
        lines.append(arguments[arguments.index("-append") + 1].split())
    assert set(lines[0]) - set(lines[1]) == {"log_buf_len=1M"}


def test_both_reads_reach_the_truth() -> None:
    case = scenario.load("waits-abba", "6.1")
    names = [s.arguments[0] for s in image.guest_steps(KERNEL, case) if s.verb == "record-now"]
    wanted = {f"waits.{kind}.{read}" for kind in ("log", "tasks") for read in ("before", "later")}
    assert wanted <= set(dumps._without_repeats(dict.fromkeys(names, "")))
