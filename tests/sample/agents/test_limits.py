# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls that ask for too much, take too long, are cancelled, or come at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from kcensus.agents import pool
from kcensus.agents import server as serving
from kcensus.agents.messages import Settings
from kcensus.agents.places import Places
from kcensus.agents.pool import Pool
from kcensus.agents.server import make_server
from kcensus.samples import DIRECTORY
from tests.sample.agents.asking import Here, answered, refused

_TABLE = {"target": "sample", "analysis": "slab", "table": "caches"}


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("table", _TABLE | {"limit": 501}),
        ("table", _TABLE | {"limit": 10**30}),
        ("table", _TABLE | {"limit": 0}),
        ("table", _TABLE | {"limit": "50"}),
        ("table", _TABLE | {"limit": 1.5}),
        ("table", _TABLE | {"limit": True}),
        ("table", _TABLE | {"offset": -1}),
        ("table", _TABLE | {"offset": 1 << 62}),
        ("table", _TABLE | {"page": 1}),
        ("table", _TABLE | {"table": "nothing"}),
        ("table", _TABLE | {"analysis": "nothing"}),
        ("table", _TABLE | {"columns": ["nothing"]}),
        ("table", _TABLE | {"columns": ["cache"] * 65}),
        ("table", _TABLE | {"sort": "nothing"}),
        ("table", _TABLE | {"sort": "--bytes"}),
        ("table", _TABLE | {"where": "nothing == 1"}),
        ("table", _TABLE | {"where": "x" * 100_000}),
        ("table", {"target": "sample"}),
        ("slab", {}),
        ("slab", {"target": ["sample"]}),
        ("slab", {"target": "sample", "log": "/etc/passwd"}),
        ("kcopyd", {"target": "sample", "log": "/etc/passwd"}),
        ("iosched", {"target": "sample", "trace": "/etc"}),
        ("dentries", {"target": "sample", "only": "nothing"}),
        ("report", {"target": "sample", "severity": "fatal"}),
        ("diff", {"before": "sample", "after": "../sample"}),
        ("diff", {"before": "sample", "after": "sample", "analyses": ["nothing"]}),
        ("objects", {"target": "sample", "type": "struct nothing"}),
        ("objects", {"target": "sample", "type": "int"}),
        ("objects", {"target": "sample", "type": "struct dentry", "members": ["nothing"]}),
        ("objects", {"target": "sample", "type": "struct dentry", "group_by": "nothing"}),
        ("objects", {"target": "sample", "type": "struct dentry", "where": "d_inode == 0"}),
        ("objects", {"target": "sample", "type": "struct dentry; rm", "cache": "../x"}),
        ("patch", {"id": "../../etc/passwd"}),
        ("explain", {"word": "nothing at all"}),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_one_sentence(tool: str, arguments: dict[str, Any]) -> None:
    sentence = refused(tool, arguments)
    assert 0 < len(sentence) <= 2000
    assert "Traceback" not in sentence
    assert "failed with" not in sentence


def test_a_page_beyond_the_end_is_empty() -> None:
    page = answered("table", _TABLE | {"offset": 1 << 40})["page"]
    assert (page["returned"], page["next_offset"]) == (0, None)


def test_pages_have_each_row_once() -> None:
    found: list[str] = []
    offset: int | None = 0
    while offset is not None:
        answer = answered("table", _TABLE | {"offset": offset, "limit": 40, "columns": ["cache"]})
        found += [row["cache"] for row in answer["untrusted"]["rows"]]
        offset = answer["page"]["next_offset"]
    assert len(found) == len({*found}) == answer["page"]["total"] > 100


def test_an_unknown_tool_is_an_error_of_the_protocol() -> None:
    async def run() -> None:
        async with Client(make_server(Places(()), Here())) as client:
            with pytest.raises(MCPError):
                await client.call_tool("shell", {"command": "id"})

    anyio.run(run)


def test_targets_are_those_below_without_links_elsewhere(tmp_path: Path) -> None:
    root = tmp_path / "dumps"
    root.mkdir()
    (root / "case.capsule").write_bytes((DIRECTORY / "sample-arm64.capsule").read_bytes())
    (root / "notes.txt").write_text("no dump")
    (root / "away.capsule").symlink_to(DIRECTORY / "sample.capsule")
    places = Places.of([root])
    here = Here(Settings(roots=places.roots))
    rows = answered("targets", {}, places, here)["untrusted"]["rows"]
    assert [row["target"] for row in rows if "/" in row["target"]] == [str(root / "case.capsule")]
    assert {"sample", "sample-waits"} <= {row["target"] for row in rows}
    assert "live" not in {row["target"] for row in rows}
    answer = answered("waits", {"target": "case.capsule"}, places, here)
    assert answer["untrusted"]["target"] == str(root / "case.capsule")
    assert "not a target" in refused("waits", {"target": "away.capsule"}, places, here)


def _children() -> set[int]:
    pid = os.getpid()
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@pytest.mark.slow
def test_a_call_that_takes_too_long_ends_its_process() -> None:
    before = _children()
    sentence = refused("report", {"target": "sample"}, None, Pool(Settings(), 0.3))
    assert "--timeout" in sentence
    assert _children() == before


@pytest.mark.slow
def test_a_machine_without_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    full = "from kcensus.limits import memory; memory.available_bytes = lambda: 1 << 20; "
    monkeypatch.setattr(pool, "_PROGRAM", full + pool._PROGRAM)
    sentence = refused("slab", {"target": "sample"}, None, Pool(Settings(), 60))
    assert "--max-memory" in sentence
    assert answered("slab", {"target": "sample"}, None, Pool(Settings(memory=1 << 30), 60))


@pytest.mark.slow
def test_calls_that_are_cancelled_killed_or_at_once() -> None:
    before = _children()

    async def run() -> None:
        async with Client(make_server(Places(()), Pool(Settings(), 120)), mode="legacy") as client:
            with anyio.move_on_after(0.5) as scope:
                await client.call_tool("report", {"target": "sample"})
            assert scope.cancelled_caught
            with anyio.fail_after(10):
                while _children() - before:
                    await anyio.sleep(0.05)

            found: dict[str, Any] = {}

            async def ask(key: str, target: str) -> None:
                result = await client.call_tool("slab", {"target": target})
                found[key] = result.structured_content["untrusted"]["summary"]["slab_bytes"]

            async with anyio.create_task_group() as group:
                for key, target in (("a", "sample"), ("b", "sample"), ("c", "sample-arm64"),
                                    ("d", "sample-waits"), ("e", "sample-io")):  # fmt: skip
                    group.start_soon(ask, key, target)
            assert found["a"] == found["b"] == 99254272
            assert len({*found.values()}) == 4
            assert len(_children() - before) == 3

            for child in _children() - before:
                os.kill(child, signal.SIGKILL)
            result = await client.call_tool("slab", {"target": "sample-io"})
            assert result.is_error
            await ask("again", "sample-io")
            assert found["again"] == found["e"]

    anyio.run(run)
    assert _children() == before


@pytest.mark.slow
def test_progress_of_a_long_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_QUIET", 0.2)
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    async def run() -> None:
        async with Client(make_server(Places(()), Pool(Settings(), 120))) as client:
            await client.call_tool("report", {"target": "sample"}, progress_callback=hear)

    anyio.run(run)
    assert len(heard) > 3
    assert heard == sorted(heard, key=lambda each: each[0])
    assert any(" of " in (message or "") for _, message in heard)
