# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writeback on a disk that stopped, and limits of I/O, against the guest's own files."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
from drgn.helpers.linux.fs import inode_path

from kcensus.kernel.block.limits.writeback import dirty_pages, flushers
from kcensus.kernel.block.requests import State, requests
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.waiting.finders.io.devices import DISK
from kcensus.kernel.waiting.finders.io.requests import REQUEST, TAGS
from kcensus.kernel.waiting.finders.limits.io_cost import COST
from kcensus.kernel.waiting.finders.limits.io_max import LIMIT
from kcensus.kernel.waiting.finders.writeback.flushers import DIRTY, FLUSHED, FLUSHER, WRITEBACK
from kcensus.kernel.waiting.finders.writeback.inodes import WRITING
from kcensus.kernel.waiting.graph import WAITS, NodeKind
from tests.vm.cases import analyzed
from tests.vm.waits.scenarios import FOUND, params
from tests.vm.waits.test_graph import Case

_SCENARIO = "waits-writeback"
_ROOTS = (DISK, LIMIT, COST)
pytestmark = pytest.mark.parametrize("case", params({_SCENARIO: FOUND[_SCENARIO]}), indirect=True)


def _nodes(case: Case, kind: NodeKind) -> dict[str, int]:
    """The nodes of a kind, by name."""
    graph, names = case.found.graph, case.found.names
    nodes = [node for node, each in enumerate(graph.kind) if each is kind]
    return {names[kind, int(graph.address[node])]: node for node in nodes}


def _behind(case: Case, node: int) -> set[int]:
    graph = case.found.graph
    reached = graph.sure.reached([node], back=True) & graph.is_task
    return {case.pid(each) for each in np.flatnonzero(reached).tolist()}


def _sleepers(case: Case, function: str) -> set[int]:
    """The PIDs of the tasks in state D with a function on their stack, as the guest says."""
    tasks = case.truth.tasks.values()
    return {task.pid for task in tasks if task.state == "D" and function in task.stack}


def _limited(case: Case) -> set[int]:
    """The PIDs of the tasks that wait for the limit of dirty pages of the system."""
    graph = case.found.graph
    return {
        case.pid(int(graph.source[edge]))
        for node in _nodes(case, DIRTY).values()
        for edge in graph.preceding[node]
        if graph.edge[edge] is WAITS
    }


def _processes(case: Case, cgroup: str) -> set[int]:
    return {int(pid) for pid in case.dump.truth[f"{cgroup}.procs"].split()}


def test_each_task_in_state_d_has_a_root_to_act_on(case: Case) -> None:
    blocked = {pid for pid, task in case.truth.tasks.items() if task.state == "D"}
    # Now and then, a task at the limit of dirty pages looks whether it may go on.
    tasks = case.found.tasks
    blocked &= set(tasks.pid[tasks.is_blocked].tolist())
    ends = [node for node, kind in enumerate(case.found.graph.kind) if kind in _ROOTS]
    behind = set[int]().union(*(_behind(case, node) for node in ends))
    assert len(blocked) > 30
    assert blocked <= behind
    assert case.found.missing == []


@pytest.mark.parametrize("cgroup", ["backup", "batch"])
def test_a_limit_of_a_cgroup(case: Case, cgroup: str) -> None:
    found = {name: _behind(case, node) for name, node in _nodes(case, LIMIT).items()}
    disk = {"backup": "ram0", "batch": "ram1"}[cgroup]
    name = f"io.max of cgroup /{cgroup} on {disk}"
    # The pages that it holds are a large part of all dirty pages.
    others = _limited(case) if cgroup == "batch" else set()
    assert found[name] == _processes(case, cgroup) | others
    (finding,) = (
        each for each in analyzed(case.target, "waits").findings if each.id.endswith(name)
    )
    line = case.dump.truth[f"{cgroup}.io.max"].strip()
    assert f"limit: {line};" in finding.evidence
    (remedy,) = finding.remedies
    assert remedy.undo == f"echo '{line}' > /sys/fs/cgroup/{cgroup}/io.max"
    # The guest has done what the remedy says.
    free = " ".join(
        [line.split()[0], *(f"{key}=max" for key in ("rbps", "wbps", "riops", "wiops"))]
    )
    assert remedy.command == f"echo '{free}' > /sys/fs/cgroup/{cgroup}/io.max"
    assert case.dump.truth[f"lifted.{cgroup}@lifted"] == ""


def test_a_share_of_a_disk(case: Case) -> None:
    ((name, node),) = _nodes(case, COST).items()
    assert name == "io.cost of cgroup /spare on nullb0"
    assert _behind(case, node) == _processes(case, "spare") == _sleepers(case, "ioc_rqos_throttle")


def test_whether_a_write_of_the_model_waits(case: Case) -> None:
    """Since v6.2, it freezes the queue."""
    findings = analyzed(case.target, "waits").findings
    for finding in (each for each in findings if each.kind == "waits-io-cost"):
        freezes = case.dump.kernel not in ("5.10", "6.1")
        assert ("freezes the queue" in finding.no_remedy) == freezes
        assert ("does not freeze" in finding.no_remedy) != freezes


def test_tasks_that_sync_wait_for_flushers(case: Case) -> None:
    found = case.found.graph
    nodes = _nodes(case, WRITEBACK)
    assert {name.split()[1] for name in nodes} <= {"dm-0", "dm-1"}
    waiters = {
        case.pid(int(found.source[edge]))
        for node in nodes.values()
        for edge in found.preceding[node]
    }
    assert waiters == _sleepers(case, "wb_wait_for_completion") != set()
    workers = {
        case.pid(int(found.target[edge])) for edge, kind in enumerate(found.edge) if kind is FLUSHED
    }
    assert workers == _sleepers(case, "wb_workfn")
    disks = {"/xfs": "dm-0 (xfs on /xfs)", "/ext4": "dm-1 (ext4 on /ext4)"}
    written = dict(_written(case, pid) for pid in workers)
    every = [re.sub(": .*, now ", ", now ", name) for name in _nodes(case, FLUSHER)]
    names = [name for name in every if ", now " in name]
    assert sorted(names) == sorted(f"of {disks[on]}, now {file}" for on, file in written.items())
    assert len(names) == 2
    # What the limit of a cgroup holds has no worker.
    assert any(name.startswith("of ram1 (ext4 on /ram): ") for name in every)


def test_a_removed_file_waits_for_its_flusher(case: Case) -> None:
    graph = case.found.graph
    (pid,) = _sleepers(case, "__inode_wait_for_writeback") | _sleepers(
        case, "inode_wait_for_writeback"
    )
    assert case.truth.tasks[pid].comm == "rm"
    ((source, target),) = (
        (int(graph.source[edge]), int(graph.target[edge]))
        for edge, kind in enumerate(graph.edge)
        if kind is WRITING
    )
    assert pid in _behind(case, source)
    assert _written(case, case.pid(target))[0] == "/xfs"


def _written(case: Case, pid: int) -> tuple[str, str]:
    """The mount point and the file that a flusher writes, as drgn's own stack trace has them."""
    trace = case.target.prog.stack_trace(pid)
    frame = next(each for each in trace if each.name == "__writeback_single_inode")
    inode = frame["inode"]
    mount = {"xfs": "/xfs", "ext4": "/ext4"}[inode.i_sb.s_type.name.string_().decode()]
    if not inode.i_nlink:
        return mount, f"inode {int(inode.i_ino)} of dm-{int(inode.i_sb.s_dev) & 0xFF}"
    return mount, f"{mount}/{os.fsdecode(inode_path(inode) or b'')}"


def test_a_task_waits_for_pages_of_its_file_system(case: Case) -> None:
    """The flusher has submitted them: the task waits for the request."""
    (pid,) = _sleepers(case, "sync_inodes_sb") - _sleepers(case, "wb_wait_for_completion")
    requests_ = [
        node for node in range(len(case.found.graph)) if case.found.graph.kind[node] is REQUEST
    ]
    assert sum(pid in _behind(case, node) for node in requests_) == 1


def test_a_journal_waits_for_its_blocks(case: Case) -> None:
    """A task that syncs a file waits for the thread of the journal, and that for the disk."""
    (syncs,) = (pid for pid in _sleepers(case, "jbd2_log_wait_commit"))
    (thread,) = _sleepers(case, "jbd2_journal_commit_transaction")
    (disk,) = (node for name, node in _nodes(case, DISK).items() if name == "vda")
    assert {syncs, thread} <= _behind(case, disk)


def test_writers_wait_for_the_limit_of_dirty_pages(case: Case) -> None:
    """Those of devices with many dirty pages wait for the flushers of these."""
    graph = case.found.graph
    ((name, node),) = _nodes(case, DIRTY).items()
    assert "limit 8.0 MiB" in name
    tasks = case.truth.tasks.values()
    writers = {task.pid: task.stack for task in tasks if "balance_dirty_pages" in task.stack}
    own = {
        case.pid(int(graph.source[edge]))
        for flusher in _nodes(case, FLUSHER).values()
        for edge in graph.preceding[flusher]
        if graph.edge[edge] is WAITS
    }
    assert own
    assert _limited(case)
    assert own | _limited(case) <= writers.keys()
    ends = {graph.kind[each] for each in np.flatnonzero(graph.reached([node]))}
    assert {DISK, LIMIT} <= ends
    known = flushers(Kernel(case.target.prog))
    pages = sum(map(sum, dirty_pages(Kernel(case.target.prog), known.address, known.faults)))
    counters = dict(line.split() for line in case.dump.truth["vmstat"].splitlines())
    # Tasks that wait for a flusher of an idle device write a few pages now and then.
    assert abs(pages - int(counters["nr_dirty"]) - int(counters["nr_writeback"])) <= 128


def test_requests_have_the_tags(case: Case) -> None:
    graph = case.found.graph
    ((name, node),) = _nodes(case, TAGS).items()
    every = requests(Kernel(case.target.prog))
    counts = {
        words: int(np.count_nonzero((every.state == state) & (every.tag >= 0)))
        for state, words in (
            (State.INSERTED, "not dispatched"),
            (State.DISPATCHED, "in the driver"),
        )
    }
    texts = [f"{count} {words}" for words, count in counts.items() if count]
    assert name == f"of vda (driver: 16 of 16 in use, {', '.join(texts)})"
    waiters = {case.pid(int(graph.source[edge])) for edge in graph.preceding[node]}
    assert waiters == _sleepers(case, "blk_mq_get_tag")
