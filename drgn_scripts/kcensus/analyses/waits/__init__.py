# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who waits for whom, is there a deadlock, and how many tasks are stuck behind each lock?

Symptom: tasks in state D that never come back, "blocked for more than 120 seconds" in the log, a
load average that only grows. Cause: tasks that wait for each other, or one that all others wait
for.
"""

from __future__ import annotations

from kcensus.analyses import Analysis
from kcensus.kernel.block import MODULES

ANALYSIS = Analysis(
    name="waits",
    question="who waits for whom, is there a deadlock, and who is stuck behind it?",
    runner="kcensus.analyses.waits.run:run",
    gauges="kcensus.analyses.waits.checks:gauges",
    specs="kcensus.analyses.waits.tables:TABLES",
    headline=("deadlocks", "tasks_blocked", "longest_wait"),
    first_tables=("cycles", "tree"),
    description="""\
A graph of all tasks that sleep in state D or for a lock, of what they wait for, and of who holds
that: mutexes, rwsems, percpu_rw_semaphores, rt_mutexes, semaphores, completions, pages, pipes, work
items, buffers, requests, journals and logs, grace periods of RCU, and futexes. Each edge is

\b
  proven    a pointer in the kernel says so, such as mutex.owner
  derived   it follows from what functions on a stack do, or from who could act:
            who has the other end of a pipe open, who has a page on its stack
  possible  something hints at it, such as the last reader of an rwsem

A deadlock is a cycle of nodes none of which can make progress: a pipe's readers are stuck only if
all of them are. Of each tangle, the shortest cycle is shown, of proven edges where there is one.
Where there is no cycle, the tree shows the task that all others wait for, and what it does.
""",
    examples=(
        ("kcensus waits vmcore", "deadlocks, and the tree of who waits for whom"),
        ("kcensus waits vmcore --table tasks --top 0", "all tasks, with what each waits for"),
        ("kcensus waits vmcore --json | jq '.tables.edges'", "the graph for a script"),
        ("kcensus waits vmcore --html w.html", "a page to mail, with pictures of the deadlocks"),
        ("kcensus waits vmcore --dot w.dot && dot -Tsvg -O w.dot", "a picture of it, by Graphviz"),
    ),
    picture="kcensus.analyses.waits.picture:picture",
    modules=(*MODULES, "fuse", "ext4", "jbd2"),
)
