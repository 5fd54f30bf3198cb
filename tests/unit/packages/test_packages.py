# SPDX-License-Identifier: LGPL-2.1-or-later
"""The packages: what `./run packages` and `./run release` rely on, without building any."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from contrib.packages import build, release
from contrib.packages.tree import LOCKS, STORE, Tree

ROOT = Path(__file__).parents[3]
VERSION = "0.2.0~dev0"


@pytest.fixture(params=LOCKS)
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    """A package with the least that matters."""
    made = Tree(request.param, "3.13", tmp_path / request.param)
    files = {"opt/kcensus/lib/python3.13/site-packages/some/module.py": ""}
    if made.package == STORE:
        files["usr/lib/systemd/system/kcensus-record.service"] = "Type=oneshot"
        files["usr/lib/systemd/system/kcensus-record.timer"] = ""
    else:
        files["opt/kcensus/bin/kcensus"] = ""
        files["usr/lib/systemd/system/kcensus-watch.service"] = ""
    for name, text in files.items():
        path = made.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return made


@pytest.mark.parametrize(
    ("upstream", "version"),
    [("0.2.0", "0.2.0"), ("0.2.0.dev0", VERSION), ("0.2.0rc1", "0.2.0~rc1")],
)
def test_a_version_before_the_final_one_sorts_before_it(upstream: str, version: str) -> None:
    assert build.version_of(Path(f"kcensus-{upstream}-py3-none-any.whl")) == version


def test_nothing_is_left_open_in_a_package(tree: Tree) -> None:
    values = build.values_of_deb(tree, VERSION) | build.values_of_rpm(tree, VERSION)
    for template in ("control", "kcensus.spec"):
        filled = build.fill(template, values)
        assert not re.search(r"@[A-Z]+@", filled)
        assert re.search(rf"^Version: {VERSION}", filled, re.MULTILINE)
    assert "compileall -q some" in values["INSTALLED"]
    assert "in some __pycache__;" in values["REMOVING"]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A root where systemd seems to run, and each call of systemctl fails."""
    root = tmp_path / "root"
    (root / "run/systemd/system").mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "bin/systemctl").write_text(f'#!/bin/sh\necho "$@" >>{root}/calls\nexit 1\n')
    (root / "bin/systemctl").chmod(0o755)
    return root


def _run(script: str, machine: Path, *arguments: str) -> tuple[int, str, list[str]]:
    """Run a script for a root, and return its status, its complaints, and the calls."""
    for place in ("/opt/kcensus", "/run/systemd"):
        script = script.replace(place, f"{machine}{place}")
    done = subprocess.run(
        ["sh", "-e", "-c", script, "sh", *arguments],
        capture_output=True, text=True, cwd="/", env={"PATH": f"{machine}/bin:/usr/bin:/bin"},
    )  # fmt: skip
    calls = machine / "calls"
    return done.returncode, done.stderr, calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize("first", ["remove", "upgrade", "0", "1"])
@pytest.mark.parametrize("is_there", [False, True])
def test_removal_never_fails(tree: Tree, machine: Path, first: str, is_there: bool) -> None:
    values = build.values_of_deb(tree, VERSION) | {"MODULES": "gone gone.py some"}
    script = build.fill("removing.sh", values)
    site = machine / "opt/kcensus/lib/python3.13/site-packages"
    if is_there:
        for folder in ("__pycache__", "some/__pycache__", "some/more/__pycache__", "other/a"):
            (site / folder).mkdir(parents=True)
    status, complaints, calls = _run(script, machine, first)
    assert (status, complaints) == (0, "")
    assert [each.split()[:3] for each in calls] == (
        [["--quiet", "disable", "--now"]] if first in ("remove", "0") else []
    )
    assert not list(site.rglob("__pycache__"))
    assert is_there == (site / "some/more").is_dir() == (site / "other/a").is_dir()
    assert _run(values["REMOVED"], machine, first)[:2] == (0, "")


def test_installation_restarts_what_runs(tree: Tree, machine: Path) -> None:
    site = machine / "opt/kcensus/lib/python3.13/site-packages"
    (site / "drgn.libs").mkdir(parents=True)
    script = build.values_of_deb(tree, VERSION)["INSTALLED"]
    expected = ["daemon-reload"]
    if tree.package != STORE:
        expected.append("--quiet try-restart kcensus-watch.service")
    status, _, calls = _run(script, machine)
    assert (status, calls) == (0, expected)
    (site / "drgn.libs/libc.so.6").write_bytes(b"x")
    assert _run(script, machine)[0] == 0
    assert [path.name for path in (site / "drgn.libs").iterdir()] == ["libc.so.6"]


def test_the_store_is_added_to_the_command_of_the_same_series(tree: Tree) -> None:
    deb, rpm = build.values_of_deb(tree, VERSION), build.values_of_rpm(tree, VERSION)
    assert deb["PROVIDES"] == rpm["PROVIDES"] == f"{tree.package}-py3.13"
    if tree.package == STORE:
        assert deb["DEPENDS"] == "python3.13, kcensus-py3.13, kcensus (>= 0.2~), kcensus (<< 0.3~)"
        own = "/usr/bin/python3.13, kcensus-py3.13"
        assert rpm["REQUIRES"] == f"{own}, kcensus >= 0.2~, kcensus < 0.3~"
        assert "disable $now kcensus-record.service kcensus-record.timer" in deb["REMOVING"]
    else:
        assert deb["DEPENDS"].startswith("python3.13, ")
        assert rpm["REQUIRES"].startswith("/usr/bin/python3.13, ")
        assert '"/opt/kcensus/bin/kcensus"' in rpm["FILES"].splitlines()
    assert '%dir "/opt/kcensus"' in rpm["FILES"].splitlines()
    assert '%dir "/usr/lib/systemd/system"' not in rpm["FILES"].splitlines()


def test_each_package_has_a_lock_and_each_python_is_supported() -> None:
    assert all((ROOT / lock).is_file() for lock in LOCKS.values())
    project = (ROOT / "pyproject.toml").read_text()
    for python in {*release.DEBS, *release.RPMS}:
        assert f"Python :: {python}" in project
        assert (
            python
            in re.findall(r"--deb (.*) --rpm (.*)\n", (ROOT / "run").read_text())[0][
                python not in release.DEBS
            ]
        )


def test_a_release_needs_a_version_and_a_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "_output", lambda *command: "")
    project, changes = tmp_path / "pyproject.toml", tmp_path / "CHANGELOG.md"
    project.write_text('version = "0.2.0.dev0"\n')
    changes.write_text("## 0.2.0 (unreleased)\n")
    assert len(release.obstacles()) == 2
    project.write_text('version = "0.2.0"\n')
    assert len(release.obstacles()) == 1
    changes.write_text("## 0.2.0 (2026-12-01)\n")
    assert release.obstacles() == []


def test_the_container_installs_a_lock_with_hashes_and_no_other_packages() -> None:
    text = (ROOT / "contrib/container/Containerfile").read_text().replace("\\\n", " ")
    (default,) = re.findall(r"^ARG LOCK=(\S+)", text, re.MULTILINE)
    assert default in LOCKS.values()
    installs = [line for line in text.splitlines() if "pip --python" in line]
    assert [("--require-hashes" in line, "--no-deps" in line) for line in installs] == [
        (True, False),
        (False, True),
    ]
    for name in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / each).exists() for each in name.split() if each != "$LOCK")
