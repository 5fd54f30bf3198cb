# SPDX-License-Identifier: LGPL-2.1-or-later
"""Questions of a support engineer, answered by tools alone, as the command line does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kcensus
from kcensus.agents.places import Places
from kcensus.agents.tools import tools
from tests.sample.agents.asking import Call, Here, answered, called, document, refused

Read = Callable[[Any], Any]


@dataclass(frozen=True)
class Asked:
    """A question, the call that answers it, and how the figure is read from both answers."""

    question: str
    tool: str
    arguments: dict[str, Any]
    read: Read
    """Of ``untrusted``, which has what the dump says."""
    words: tuple[str, ...]
    read_document: Read
    """Of the JSON of the command line."""

    def __str__(self) -> str:
        return self.question


def summary(question: str, analysis: str, target: str, key: str) -> Asked:
    """A figure of an analysis."""

    def read(each: Any) -> Any:
        return each["summary"][key]

    tool = analysis.replace("-", "_")
    return Asked(question, tool, {"target": target}, read, (analysis, target), read)


def rows(
    question: str, analysis: str, target: str, table: str, read: Read, keep: Read, **more: Any
) -> Asked:
    """Rows of a table: ``keep`` makes of all rows those that the call asks for."""
    arguments = {"target": target, "analysis": analysis, "table": table, **more}
    return Asked(
        question, "table", arguments, lambda each: read(each["rows"]), (analysis, target),
        lambda each: read(keep(each["tables"][table])),
    )  # fmt: skip


def largest(key: str, count: int) -> Read:
    return lambda every: sorted(every, key=lambda row: -row[key])[:count]


def where(test: Read) -> Read:
    return lambda every: [row for row in every if test(row)]


def pick(*keys: str) -> Read:
    return lambda every: [[row[key] for key in keys] for row in every]


def same(each: Any) -> Any:
    return each


def ids(each: Any) -> Any:
    return [finding["id"] for finding in each["findings"]]


QUESTIONS = (
    Asked("What is wrong with this machine?", "report", {"target": "sample"}, ids,
          ("report", "sample"), ids),
    Asked("What is at least a warning?", "report", {"target": "sample", "severity": "warning"},
          lambda each: each["findings"], ("report", "sample"),
          lambda each: [f for f in each["findings"] if f["severity"] in ("warning", "critical")]),
    Asked("What do I paste against it, and what returns?", "report", {"target": "sample"},
          lambda each: each["findings"][0]["remedies"][0], ("report", "sample"),
          lambda each: each["findings"][0]["remedies"][0]),
    Asked("How much RAM is this, and how long was it up?", "report", {"target": "sample"},
          lambda each: (each["machine"]["ram_bytes"], each["machine"]["uptime_seconds"]),
          ("report", "sample"),
          lambda each: (each["machine"]["ram_bytes"], each["machine"]["uptime_seconds"])),
    Asked("How much slab memory is there, by the report?", "report", {"target": "sample"},
          lambda each: each["analyses"]["slab"]["summary"], ("report", "sample"),
          lambda each: each["analyses"]["slab"]["summary"]),
    summary("How many negative dentries are there?", "dentries", "sample", "negative"),
    summary("What do they hold?", "dentries", "sample", "negative_bytes"),
    rows("Which mount has the most negative dentries?", "dentries", "sample", "super_blocks",
         pick("mount", "negative", "address"), largest("negative", 1), sort="-negative", limit=1),
    rows("Which directory?", "dentries", "sample", "directories",
         pick("directory", "negative_bytes"), largest("negative", 3), sort="-negative", limit=3),
    summary("How many kcopyd jobs are queued?", "kcopyd", "sample", "jobs"),
    rows("Which snapshots have copies in flight, without a limit?", "kcopyd", "sample", "snapshots",
         pick("device", "in_flight", "limit", "address"),
         where(lambda row: row["in_flight"] > 0 and row["limit"] is None),
         where="in_flight > 0 and limit == None"),
    summary("How full are the slab caches?", "slab", "sample", "utilization"),
    rows("Which caches waste more than a megabyte in free slots?", "slab", "sample", "caches",
         pick("cache", "free_bytes"), where(lambda row: row["free_bytes"] > 1 << 20),
         where="free_bytes > 1048576"),
    rows("What do kmalloc caches take?", "slab", "sample", "caches", pick("cache", "bytes"),
         where(lambda row: row["cache"].startswith("kmalloc-")),
         where='startswith(cache, "kmalloc-")'),
    rows("Which cache is at this address?", "slab", "sample", "caches", pick("cache"),
         where(lambda row: row["address"] == "0xffff8a961ff3e400"),
         where="address == 0xffff8a961ff3e400"),
    summary("How many dying cgroups are there?", "memcgs", "sample", "memcgs_offline"),
    rows("Which mounts pin them, the second page?", "memcgs", "sample", "mounts",
         pick("mount", "memcgs", "bytes"), lambda every: every[20:40], offset=20, limit=20),
    summary("What do list_lrus use?", "list-lru", "sample", "list_lrus"),
    Asked("Do the figures agree with the kernel's counters?", "slab", {"target": "sample"},
          lambda each: [(check["ours"], check["counter"], check["status"])
                        for check in each["checks"]],
          ("slab", "sample"),
          lambda each: [(check["ours"], check["counter"], check["status"])
                        for check in each["checks"]]),
    Asked("Which fixes does this kernel lack?", "table",
          {"target": "sample", "analysis": "patches", "table": "patches", "limit": 100,
           "where": 'state == "absent" and kind == "fix"', "columns": ["patch", "cost_bytes"]},
          lambda each: each["rows"], ("patches", "sample"),
          lambda each: [{"patch": row["patch"], "cost_bytes": row["cost_bytes"]}
                        for row in each["tables"]["patches"]
                        if row["state"] == "absent" and row["kind"] == "fix"]),
    Asked("What does this patch change?", "patch", {"id": "list-lru-memory"}, same,
          ("patches", "show", "list-lru-memory"), same),
    Asked("What grew between the two dumps?", "diff", {"before": "sample", "after": "sample-after"},
          lambda each: (each["summary"], ids(each)), ("diff", "sample", "sample-after"),
          lambda each: (each["summary"], ids(each))),
    Asked("Which caches grew most?", "diff",
          {"before": "sample", "after": "sample-after", "table": "slab_caches", "limit": 5},
          lambda each: each["rows"], ("diff", "sample", "sample-after"),
          lambda each: each["tables"]["slab_caches"][:5]),
    summary("Is the snapshot limited now?", "kcopyd", "sample-after", "cow_threshold"),
    summary("How late is the worst request?", "iosched", "sample-io", "worst_lateness"),
    rows("Which disk, and under which scheduler?", "iosched", "sample-io", "disks",
         pick("disk", "scheduler", "overdue", "oldest"), where(lambda row: row["overdue"] > 0),
         where="overdue > 0"),
    rows("Who sleeps behind the requests longest?", "iosched", "sample-io", "sleepers",
         pick("pid", "comm", "since", "object"), largest("since", 5), sort="-since", limit=5),
    summary("Is it a deadlock?", "waits", "sample-waits", "deadlocks"),
    rows("Who holds what in it?", "waits", "sample-waits", "cycles",
         pick("pid", "task", "waits_for", "held_by", "strength", "object"), same),
    rows("Which tasks are stuck for more than nine seconds?", "waits", "sample-arm64", "tasks",
         pick("pid", "comm", "asleep"),
         where(lambda row: row["state"] == "D" and row["asleep"] > 9),
         where='state == "D" and asleep > 9'),
    rows("Where do they sleep?", "waits", "sample-arm64", "stacks",
         pick("pid", "function", "place"), where(lambda row: row["pid"] == 9), where="pid in (9,)"),
)  # fmt: skip


def _marked(asked: Asked) -> Any:
    is_quick = asked.tool not in ("report", "diff") and asked.words[1:] == ("sample",)
    return pytest.param(asked, marks=() if is_quick else pytest.mark.slow, id=str(asked))


@pytest.mark.parametrize("asked", [*map(_marked, QUESTIONS)])
def test_the_tool_has_the_figure_of_the_command_line(asked: Asked) -> None:
    answer = answered(asked.tool, asked.arguments)
    expected = asked.read_document(document(*asked.words))
    if asked.tool == "patch":
        assert {"schema": expected["schema"], **answer["patch"]} == expected
        return
    found = asked.read(answer["untrusted"])
    assert found == expected
    assert found not in ([], None)
    assert answer["left_out"] == {}


def test_there_are_thirty_questions_on_five_samples() -> None:
    assert len(QUESTIONS) >= 30
    targets = {name for each in QUESTIONS for key, name in each.arguments.items()
               if key in ("target", "before", "after")}  # fmt: skip
    assert targets == {"sample", "sample-after", "sample-io", "sample-waits", "sample-arm64"}


def test_objects_are_those_of_the_python_function() -> None:
    members = ["d_inode", "d_lockref.count"]
    answer = answered(
        "objects",
        {"target": "sample", "type": "struct dentry", "members": members, "limit": 3,
         "where": "d_inode == 0 and d_lockref.count == 0", "offset": 5},
    )  # fmt: skip
    frame = kcensus.objects("sample", "struct dentry", members)
    frame = frame[(frame["d_inode"] == 0) & (frame["d_lockref.count"] == 0)]
    assert answer["page"] == {
        "offset": 5, "returned": 3, "total": len(frame), "next_offset": 8
    }  # fmt: skip
    found = answer["untrusted"]["rows"]
    assert [row["address"] for row in found] == [f"{each:#x}" for each in frame.index[5:8]]
    assert {row["d_inode"] for row in found} == {"0x0"}


def test_objects_are_counted_by_value() -> None:
    arguments = {"target": "sample", "type": "struct dentry", "group_by": "d_sb", "limit": 2}
    answer = answered("objects", arguments)
    counts = kcensus.objects("sample", "struct dentry", "d_sb")["d_sb"].value_counts()
    assert answer["untrusted"]["matched"] == counts.sum()
    assert answer["page"]["total"] == len(counts)
    assert answer["untrusted"]["rows"] == [
        {"d_sb": f"{key:#x}", "objects": count} for key, count in counts.head(2).items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sample", "sample-waits"])
def test_answers_do_not_depend_on_the_questions_before(target: str) -> None:
    names = [each.name for each in tools().values() if each.work in ("analysis", "patches")]
    calls: list[Call] = [(name, {"target": target}) for name in ("report", *names)]
    forward = [each.structured_content for each in called(calls, pool=Here())]
    backward = [each.structured_content for each in called(calls[::-1], pool=Here())]
    assert forward == backward[::-1]


@pytest.mark.parametrize(
    ("word", "part"),
    [("list-lru-arrays", "finding"), ("slab-waste:dentry", "finding"),
     ("obj_cgroup vectors", "term"), ("negative_unused", "columns")],
)  # fmt: skip
def test_explanations(word: str, part: str) -> None:
    assert answered("explain", {"word": word})[part]


def test_a_saved_report_answers_too(tmp_path: Path) -> None:
    made = document("slab", "sample")
    (tmp_path / "slab.json").write_text(json.dumps(made))
    places = Places.of([tmp_path])
    answer = answered("slab", {"target": "slab.json"}, places, Here())
    assert answer["untrusted"]["summary"] == made["summary"]
    assert "waits" in refused("waits", {"target": "slab.json"}, places, Here())
    arguments = {"target": "slab.json", "type": "struct dentry"}
    assert "no memory" in refused("objects", arguments, places, Here())
