# SPDX-License-Identifier: LGPL-2.1-or-later
"""Words that a shell completes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kcensus import cli
from kcensus.analyses import analyses
from kcensus.catalogue import load
from kcensus.commands.shared import values
from tests.unit.faces.cli import Capture


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["completion", shell]) == 0
    assert f"_KCENSUS_COMPLETE={shell}_complete" in capsys.readouterr().out
    monkeypatch.setenv("_KCENSUS_COMPLETE", f"{shell}_complete")
    asked = {"COMP_WORDS": "kcensus diff sam", "COMP_CWORD": "sam" if shell == "fish" else "2"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    assert cli.main([]) == 0
    assert {"sample", "file"} <= set(re.split(r"[,\s]", capsys.readouterr().out))


def test_a_shell_that_is_not_named(capsys: Capture) -> None:
    assert cli.main(["completion"]) == 2
    error = capsys.readouterr().err.splitlines()[0]
    assert error.endswith("Choose from: bash, zsh, fish")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["slab", "--table", "cac"], {"caches", "cache_nodes"}),
        (["iostall", "--table", ""], {"requests_traced", "scheduler_queues", "disks"}),
        (["patches", "--table", "pri"], {"prices"}),
        (["dentries", "--only", "totals,dir"], {"totals,directories"}),
        (["diff", "a", "b", "--analyses", "slab,list"], {"slab,list-lru"}),
        (["explain", "list-lru-a"], {"list-lru-arrays"}),
        (["explain", "obj_cgroup", "vec"], {"vector"}),
        (["validate", "list-lru-m"], {"list-lru-memory"}),
        (["patches", "show", "list-lru-x"], {"list-lru-xarray"}),
        (["patches", "sh"], {"show"}),
        (["notebook", "cap"], {"capacity_report"}),
        (["notebook", "capacity_report", "sample-i"], {"sample-io"}),
        (["report", "sample-i"], {"sample-io"}),
        (["slab", "/a b/vmcore", "--fail-on", "crit"], {"critical"}),
        (["fleet", "rep"], {"report"}),
        (["watch", "dentries,mem"], {"dentries,memcgs"}),
        (["capsule", "create", "--analyses", "slab,wai"], {"slab,waits"}),
        (["completion", "z"], {"zsh"}),
    ],
)
def test_values_are_completed(words: list[str], completed: set[str]) -> None:
    *args, incomplete = words
    found = {value for value, kind in cli.completions(args, incomplete) if kind == "plain"}
    assert completed <= found
    assert all(value.startswith(incomplete) for value in found)


@pytest.mark.parametrize(
    "words", [["slab", "--json"], ["iosched", "--trace"], ["kcopyd", "--log"], ["slab", "-s"]]
)
def test_paths_are_left_to_the_shell(words: list[str]) -> None:
    assert [kind for _, kind in cli.completions(words, "/a b")] == ["file"]


def test_names_of_tables_and_patches_are_all_there() -> None:
    for name, analysis in analyses().items():
        # The picture is for pages.
        assert {*values.tables(analysis.specs)} == {
            spec.name for spec in analysis.tables() if spec.name != "picture"
        }, name
    assert values.patches() == sorted(load().patches)
    known = load().patches.values()
    able = {each.id for each in known if each.validation or each.trace_validation}
    assert {*values.patches(validated=True)} == able


def test_completion_imports_nothing_heavy() -> None:
    """A shell waits for it."""
    script = """
import sys
from kcensus import cli
for words in (["slab", "--table"], ["dentries", "--only"], ["explain"], ["validate"],
              ["patches", "show"], ["notebook"], ["report"]):
    assert cli.completions(words, ""), words
print(*{"numpy", "pandas", "drgn", "msgspec", "networkx", "rich"} & {*sys.modules})
"""
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words", "completed"),
    [
        ("kcensus", "rep", "report"),
        ("kcensus", "diff sam", "sample sample-after sample-io sample-waits sample-arm64"),
        ("kcensus", r"slab '/a\ b/vmcore' --table kma", "kmalloc"),
        ("kcensus", "slab '\"/a b/vmcore\"' --table kma", "kmalloc"),
        (r"~/a\ path/kcensus", "rep", "report"),
    ],
)
def test_bash_completes(program: str, words: str, completed: str, tmp_path: Path) -> None:
    command = tmp_path / "a path" / "kcensus"
    command.parent.mkdir()
    python = shlex.quote(sys.executable)
    command.write_text(f'#!/bin/sh\nexec {python} -m kcensus "$@"\n')
    command.chmod(0o755)
    script = f"""
        source <(kcensus completion bash)
        compopt() {{ :; }}
        COMP_WORDS=(kcensus {words}) COMP_CWORD={len(shlex.split(words))}
        _kcensus_completion '{program}'
        echo "${{COMPREPLY[@]}}"
    """
    path = f"{command.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(tmp_path)}
    shown = subprocess.check_output(["bash", "-c", script], env=environment, text=True)
    assert shown.split() == completed.split()
