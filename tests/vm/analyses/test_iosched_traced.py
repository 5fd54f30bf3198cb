# SPDX-License-Identifier: LGPL-2.1-or-later
"""A dump with a trace that is not of its guest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcensus import cli
from tests.lab import build


@pytest.mark.parametrize("has_text", [False, True])
def test_a_trace_of_another_guest_is_not_joined(
    has_text: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = build("6.1", "iosched-starved")
    trace = build("6.1", "iosched-starved-deadline").formats["elf"].parent / "traces"
    if has_text:
        (tmp_path / "trace.txt").write_text(
            "254,0    0        1     0.000000000   103  Q  RS 8 + 8 [direct-read]\n"
            "254,0    0        2     0.000000100   103  G  RS 8 + 8 [direct-read]\n"
            "254,0    0        3     0.000000200   103  I  RS 8 + 8 [direct-read]\n"
        )
        trace = tmp_path / "trace.txt"
    debug = [word for path in dump.debug for word in ("-s", str(path))]
    command = ["iosched", str(dump.formats["elf"]), *debug, "--json"]
    assert cli.main([*command, "--trace", str(trace)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["summary"]["requests_traced"] == 0
    assert not found["tables"]["requests_traced"]
    reasons = [gap["reason"] for gap in found["gaps"]]
    # Guests that were started in the same second are not told apart by their clocks.
    assert any("or machine" in reason for reason in reasons)
    # Those of the trace are parts of each other at most.
    parents = {each["id"]: each["part_of"] for each in found["findings"] if each["part_of"]}
    assert all(
        parent.startswith("trace-") == name.startswith("trace-") for name, parent in parents.items()
    )


def test_a_trace_that_is_not_there_costs_nothing_of_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = build("6.1", "iosched-starved")
    debug = [word for path in dump.debug for word in ("-s", str(path))]
    command = ["iosched", str(dump.formats["elf"]), *debug, "--json"]
    assert cli.main(command) == 0
    alone = json.loads(capsys.readouterr().out)
    assert cli.main([*command, "--trace", str(tmp_path / "sda")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["summary"] == alone["summary"]
    assert found["gaps"][0]["what"] == "trace"
