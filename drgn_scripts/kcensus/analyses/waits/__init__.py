# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who waits for whom, is there a deadlock, and who is stuck behind it?

Symptom: tasks stay in state D for ever, the log has "blocked for more than 120 seconds", and the
load average only grows. Cause: tasks wait for each other, or all for one task.
"""

from __future__ import annotations

from kcensus.analyses import Analysis
from kcensus.kernel.block import MODULES

ANALYSIS = Analysis(
    name="waits",
    reads_stacks=True,
    reads_arguments=True,
    question="who waits for whom, is there a deadlock, and who is stuck behind it?",
    plain="programs that hang or wait for each other",
    gauges="kcensus.analyses.waits.checks:gauges",
    headline=("deadlocks", "tasks_blocked", "longest_wait"),
    first_tables=("cycles", "tree"),
    description="""\
A graph of all tasks that sleep in state D or for a lock, of their objects and the holders: locks of
the kernel, of files and of programs, completions, pages, pipes, work items, buffers, requests,
journals and logs, grace periods of RCU, calls to servers. A chain ends at its root, and a finding
says what to do there: a deadlock; a disk, or a device that is suspended, full or without a path; a
server of NFS, SMB, NBD, iSCSI or FUSE; a SCSI host in recovery; a memory cgroup, or a limit of I/O;
a frozen file system or cgroup; a task that runs, or that was stopped. Each edge is

\b
  proven    by a pointer in the kernel, such as mutex.owner
  derived   from functions on a stack, or from tasks that can end the wait:
            they have the other end of the pipe open, or the page on the stack
  possible  by a hint, such as the last reader of an rwsem

A deadlock is a cycle of nodes that cannot make progress: readers of a pipe are stuck only if all of
them are. Where cycles share tasks, the shortest is shown, with proven edges if possible. Without a
cycle, the tree shows the awaited task and its state, above its waiters.
""",
    examples=(
        ("kcensus waits vmcore", "deadlocks, and the tree of waiters"),
        ("kcensus waits vmcore --table tasks --top 0", "all tasks, each with its object"),
        ("kcensus waits vmcore --json | jq '.tables.edges'", "the graph for a script"),
        ("kcensus waits vmcore --html w.html", "a page to mail, with pictures of the deadlocks"),
        ("kcensus waits vmcore --dot w.dot && dot -Tsvg -O w.dot", "a picture, by Graphviz"),
    ),
    has_picture=True,
    modules=MODULES,
    more_modules="kcensus.kernel.waiting.finders:modules",
)
