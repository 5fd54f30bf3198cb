# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command as a client starts it: on standard input and output."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from kcensus import cli
from kcensus.agents.server import refusal
from kcensus.agents.tools import tools
from kcensus.analyses import analyses
from kcensus.commands import Exit
from kcensus.limits.children import environment

_COMMAND = [sys.executable, "-m", "kcensus", "mcp"]


class Process:
    """The server, spoken to in lines."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(), text=True,
        )  # fmt: skip
        self.send(
            id=0,
            method="initialize",
            params={
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        )
        assert self.receive()["result"]["serverInfo"]["name"] == "kcensus"
        self.send(method="notifications/initialized")

    def send(self, **message: Any) -> None:
        self.line(json.dumps({"jsonrpc": "2.0", **message}))

    def line(self, text: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def end(self) -> tuple[int, str, str]:
        """Return the status, and what is left of the output and of the log."""
        out, log = self.process.communicate(timeout=30)
        return self.process.returncode, out, log


@pytest.mark.slow
def test_a_client_starts_the_command_and_asks(tmp_path: Path) -> None:
    command = StdioServerParameters(
        command=_COMMAND[0], args=[*_COMMAND[1:], str(tmp_path)], env=environment()
    )

    async def run() -> None:
        with (tmp_path / "log").open("w") as log:
            async with Client(stdio_client(command, errlog=log)) as client:
                listed = await client.list_tools()
                assert [each.name for each in listed.tools] == [*tools()]
                assert all(each.annotations and each.annotations.read_only_hint
                           for each in listed.tools)  # fmt: skip
                result = await client.call_tool("waits", {"target": "sample-waits"})
                assert result.structured_content["untrusted"]["summary"]["deadlocks"] == 1
                result = await client.call_tool("waits", {"target": "/etc/passwd"})
                assert result.is_error
        assert (tmp_path / "log").read_text() == ""

    anyio.run(run)


@pytest.mark.slow
def test_messages_that_are_none_are_survived() -> None:
    server = Process()
    for line in ("not json", "", "[]", "{}", '{"jsonrpc":"2.0","id":5}', "\0", "{" * 5000,
                 '{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":5}}',
                 '{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}',
                 '{"jsonrpc":"2.0","id":8,"method":"ping","params":{"a":"\\ud800"}}',
                 '{"jsonrpc":"2.0","method":"tools/call","params":{}}',
                 "x" * (3 << 20)):  # fmt: skip
        server.line(line)
    server.send(id=9, method="ping")
    answers: list[Any] = []
    while not answers or answers[-1].get("id") != 9:
        answers.append(server.receive())
    assert [each["id"] for each in answers if "result" in each] == [9]
    errors = [each["id"] for each in answers if "error" in each]
    assert {5, 6, 7, 8} <= {*errors}
    status, out, log = server.end()
    assert (status, out) == (Exit.DONE, "")
    assert "Traceback" not in log


@pytest.mark.slow
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_ctrl_c_ends_it_cleanly(is_busy: bool) -> None:
    server = Process()
    if is_busy:
        arguments = {"name": "report", "arguments": {"target": "sample"}}
        server.send(id=1, method="tools/call", params=arguments)
    server.send(id=2, method="ping")
    assert server.receive()["id"] == 2
    server.process.send_signal(signal.SIGINT)
    # Its input stays open: nothing else ends it.
    assert server.process.wait(30) == Exit.INTERRUPTED
    assert server.end()[1:] == ("", "kcensus: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["stdin", "stdout"])
def test_a_client_that_goes_away_ends_it(closed: str) -> None:
    server = Process()
    if closed == "stdout":
        assert server.process.stdout
        server.process.stdout.close()
    arguments = {"name": "report", "arguments": {"target": "sample"}}
    server.send(id=1, method="tools/call", params=arguments)
    server.send(id=2, method="ping")
    assert server.process.stdin
    if closed == "stdin":
        server.process.stdin.close()
    assert server.process.wait(30) == (Exit.DONE if closed == "stdin" else Exit.PIPE)
    assert server.process.stderr
    assert server.process.stderr.read() == ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"jsonrpc":"2.0","id":1,"method":"ping"}', None),
        ('{"jsonrpc":"2.0","method":"notifications/initialized"}', None),
        ('{"jsonrpc":"2.0","method":"x","params":5}', None),
        ('{"jsonrpc":"2.0","id":1,"result":5}', None),
        ("not json", (None, -32700)),
        ("[" * 100_000, (None, -32700)),
        ("[]", (None, -32600)),
        ("{}", (None, -32600)),
        ('{"jsonrpc":"2.0","id":"a","method":5}', ("a", -32600)),
        ('{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}', (None, -32600)),
        ('{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}', (7, -32600)),
        ('{"jsonrpc":"2.0","id":8,"method":"ping","params":{"a":"\\ud800"}}', (8, -32600)),
    ],
)
def test_a_line_that_is_no_message_has_a_reply(
    line: str, expected: tuple[int | str | None, int] | None
) -> None:
    found = refusal(line)
    assert (found and (found.id, found.error.code)) == expected


def test_each_analysis_is_a_tool_without_options_that_name_files() -> None:
    for name, analysis in analyses().items():
        tool = tools()[name.replace("-", "_")]
        options = {each.name for each in analysis.params} - {*analysis.without_target}
        assert {*tool.schema()["properties"]} == {"target", *options}


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    assert cli.main(["mcp", str(tmp_path / "nothing")]) == Exit.USAGE
    assert cli.main(["mcp", "--timeout", "0"]) == Exit.USAGE
    assert cli.main(["mcp", "-s", str(tmp_path / "nothing")]) == Exit.USAGE
    capsys.readouterr()
    monkeypatch.setattr("kcensus.commands.mcp.find_spec", lambda name: None)
    assert cli.main(["mcp"]) == Exit.USAGE
    assert "pip install '.[mcp]'" in capsys.readouterr().err
