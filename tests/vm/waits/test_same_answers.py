# SPDX-License-Identifier: LGPL-2.1-or-later
"""One stall gives the same answer as a guest, its dump and capsule, in crash and at drgn's prompt.

The guest is halted, so that only ages may differ.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kcensus import cli
from tests.lab import live
from tests.vm.crash.session import Session

pytestmark = pytest.mark.usually  # it boots a guest, for more than a minute
_KERNEL, _SCENARIO = "6.1", "waits-freeze"
_AGES = {"asleep", "oldest", "longest_wait"}
_TABLES = ("nodes", "edges", "tasks", "objects", "cycles", "functions")
_OF_FINDINGS = ("id", "severity", "part_of", "no_remedy", "remedies", "danger")


def _without_ages(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in _AGES}


def _answer(text: str) -> dict[str, Any]:
    """Return what all faces must agree on: summary, graph and findings."""
    document = json.loads(text)
    return {
        "summary": _without_ages(document["summary"]),
        **{name: [_without_ages(row) for row in document["tables"][name]] for name in _TABLES},
        "findings": [{key: each[key] for key in _OF_FINDINGS} for each in document["findings"]],
        "gaps": [gap["what"] for gap in document["gaps"]],
    }


def _direct(target: str, symbols: Sequence[str], out: Path) -> dict[str, Any]:
    assert cli.main(["waits", target, *symbols, "--json", str(out)]) == 0
    return _answer(out.read_text())


def test_all_faces_agree(tmp_path: Path) -> None:
    vmcore, capsule, out = (tmp_path / name for name in ("vmcore", "a.capsule", "out.json"))
    with live(_KERNEL, _SCENARIO) as guest:
        symbols = [word for path in guest.debug for word in ("-s", str(path))]
        guest.stop()
        found = {"live": _direct(f"qmp:{guest.qmp}", symbols, out)}
        guest.machine.dump(vmcore)
        guest.resume()
    found["dump"] = _direct(str(vmcore), symbols, out)
    assert cli.main(["capsule", "create", str(vmcore), str(capsule), *symbols]) == 0
    found["capsule"] = _direct(str(capsule), [], out)
    modules = ":".join(map(str, guest.debug[1:]))
    Session(guest.vmlinux, (vmcore,)).script(
        ["kcensus waits --json > crash.json"], tmp_path, environment={"KCENSUS_SYMBOLS": modules}
    )
    found["crash"] = _answer((tmp_path / "crash.json").read_text())
    code = "from drgn.commands import run_command\n"
    code += f"run_command(prog, 'kcensus waits --json > {tmp_path}/drgn.json')"
    words = [sys.executable, "-m", "drgn", "-q", "-c", str(vmcore), *symbols, "-e", code]
    subprocess.run(words, capture_output=True, timeout=600, check=True)
    found["drgn"] = _answer((tmp_path / "drgn.json").read_text())
    assert found["dump"]["summary"]["roots"]
    assert found["dump"]["edges"]
    assert any(each["id"].startswith("waits-frozen:") for each in found["dump"]["findings"])
    for name, answer in found.items():
        assert answer == found["dump"], name
