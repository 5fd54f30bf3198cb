# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every notebook runs from a clean kernel, on what comes with kcensus."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import pexpect
import pytest
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode

import kcensus
from kcensus import cli
from kcensus.commands import Exit
from kcensus.commands.notebook import execute
from kcensus.commands.notebook.library import notebooks
from kcensus.commands.notebook.page import page
from tests.bench.timing import cost

PLOTS = {"capacity_report": 10, "patch_validation": 6, "growth": 1, "explore": 2}
"""Plots of each notebook, at least."""

SECONDS: dict[str, float] = {}
"""CPU time that each notebook took."""


@functools.cache
def executed(name: str, directory: Path) -> NotebookNode:
    output = directory / f"{name}.ipynb"
    status: list[int] = []
    SECONDS[name] = cost(lambda: status.append(run(name, "-o", output))).cpu
    assert status == [Exit.DONE]
    node: NotebookNode = nbformat.read(output, as_version=4)
    return node


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebooks")


def run(*words: str | Path) -> int:
    return cli.main(["notebook", *map(str, words), "--no-progress"])


def outputs(node: NotebookNode) -> list[NotebookNode]:
    return [output for cell in node.cells for output in cell.get("outputs", ())]


def forms(node: NotebookNode, kind: str) -> list[str]:
    return [output.data[kind] for output in outputs(node) if kind in output.get("data", {})]


@pytest.mark.parametrize("name", notebooks())
def test_a_notebook_runs(name: str, directory: Path) -> None:
    node = executed(name, directory)
    code = [cell for cell in node.cells if cell.cell_type == "code" and cell.source]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    # Neither errors nor warnings, and nothing is printed.
    assert {output.output_type for output in outputs(node)} <= {"display_data", "execute_result"}
    assert len(forms(node, "image/svg+xml")) >= PLOTS[name]
    plots = [output.data for output in outputs(node) if "image/svg+xml" in output.get("data", {})]
    assert not [plot for plot in plots if plot["text/plain"].startswith(("<", "plot without"))]
    # An Axes or a figure that a cell ends with would be shown as text.
    assert not [text for text in forms(node, "text/plain") if text.startswith(("<Axes", "Axes("))]


def test_they_run_in_a_minute(directory: Path) -> None:
    for name in notebooks():
        executed(name, directory)
    assert sum(SECONDS.values()) < 60, SECONDS  # three times what they take


def test_figures_are_those_of_the_results(directory: Path) -> None:
    text = "\n".join(forms(executed("capacity_report", directory), "text/markdown"))
    report = kcensus.report(kcensus.open_target("sample"))
    for analysis, keys in {
        "slab": ("slab_bytes", "utilization", "free_slot_bytes"),
        "dentries": ("negative", "negative_bytes"),
        "list-lru": ("structural_bytes", "projected_xarray_bytes"),
        "kcopyd": ("jobs", "total_bytes"),
        "memcgs": ("memcgs_offline", "offline_bytes"),
    }.items():
        for key in keys:
            assert report.results[analysis].text(key) in text


def test_published_figures_are_those_of_the_catalogue(directory: Path) -> None:
    node = executed("patch_validation", directory)
    figures = kcensus.patches(kcensus.open_target("sample")).tables["figures"]
    mounts = sorted(figures[figures["run"] == "mounts"]["value"].unique(), reverse=True)
    assert len(mounts) == 4
    steps = " → ".join(f"{value:,.0f}" for value in mounts)
    assert any(steps in text for text in forms(node, "text/markdown"))
    assert any("confirmed" in text for text in forms(node, "text/plain"))
    assert any("45 to 65 percent" in text for text in forms(node, "text/html"))


def test_parameters_reach_the_notebook(tmp_path: Path) -> None:
    output = tmp_path / "a{b}.html"
    assert run("explore", "sample-after", "-p", "top=3", "-o", output) == Exit.DONE
    count = len(kcensus.objects(kcensus.open_target("sample-after"), "struct dentry"))
    text = output.read_text(encoding="utf-8")
    assert f"of {count:,} dentries" in text
    # This notebook is about its code.
    assert "kcensus.objects(" in text


def test_a_page_has_the_plots_and_no_code(directory: Path) -> None:
    text = page(executed("capacity_report", directory), code=False)
    assert text.count('<img src="data:image/svg+xml') >= PLOTS["capacity_report"]
    assert "import kcensus" not in text
    assert len(text) < 2_000_000


def test_an_unknown_patch_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "a.html"
    assert run("patch_validation", "-p", "patches=nosuch", "-o", output) == Exit.USAGE
    assert "'nosuch'" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["capacity_report", "growth"])
def test_an_unusable_target_is_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, tmp_path / "none", "-o", tmp_path / "a.html") == Exit.TARGET
    message = capsys.readouterr().err
    assert message.startswith("kcensus: ")
    assert message.count("\n") == 1
    assert [*tmp_path.iterdir()] == []


def test_the_notebook_up_to_an_error_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = notebooks()["explore"].path.read_text(encoding="utf-8")
    broken = broken.replace("## Group\n", "## Group\n\n# %%\nraise ValueError('x\\x1b\\ny')\n")
    (tmp_path / "broken.py").write_text(broken, encoding="utf-8")
    monkeypatch.setattr("kcensus.commands.notebook.notebooks", lambda: notebooks(tmp_path))
    output = tmp_path / "a.html"
    output.write_text("an older one")
    assert run("broken", "-o", output) == Exit.FAILED
    assert "ValueError: x" in capsys.readouterr().err
    assert output.read_text() == "an older one"
    node = nbformat.read(tmp_path / "a.failed.ipynb", as_version=4)
    kinds = [output.output_type for output in outputs(node)]
    assert kinds[-1] == "error"
    assert "execute_result" in kinds


def test_nothing_is_imported_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("drgn", "pandas", "ipykernel", "ipykernel_launcher", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert run("explore", "-o", "a.ipynb") == Exit.DONE


def test_a_long_path_of_temporary_files_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / ("x" * 100)
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    assert run("explore", "-o", tmp_path / "a.ipynb") == Exit.DONE


@pytest.mark.parametrize("a_cell_runs", [False, True])
def test_ctrl_c_leaves_nothing(a_cell_runs: bool, tmp_path: Path) -> None:
    arguments = ["-m", "kcensus", "notebook", "capacity_report", "-o", "a.html"]
    # The path of a temporary directory of pytest is too long for sockets.
    with TemporaryDirectory() as temporary:
        environment = dict(os.environ, TMPDIR=temporary)
        child = pexpect.spawn(
            sys.executable, arguments, cwd=tmp_path, env=environment, encoding="utf-8", timeout=300
        )
        if a_cell_runs:
            child.expect(" [1-9]0%")
        while not [*Path(temporary).glob("*/kernel.json")]:
            time.sleep(0.01)
        child.sendintr()
        child.expect(pexpect.EOF)
        child.close()
        left = [*Path(temporary).iterdir()]
    assert child.exitstatus == 128 + signal.SIGINT
    assert "Traceback" not in str(child.before)
    assert (left, [*tmp_path.iterdir()]) == ([], [])


@pytest.mark.parametrize("error", [DeadKernelError, ZeroDivisionError])
def test_a_wait_that_ctrl_c_leaves_is_not_shown(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    assert execute  # has the filter

    async def wait() -> None:
        raise error

    async def leave() -> None:
        asyncio.get_running_loop().create_task(wait())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(leave())
    gc.collect()
    shown = [record for record in caplog.records if record.name == "asyncio"]
    assert bool(shown) == (error is ZeroDivisionError)


@pytest.mark.parametrize("output", ["link.html", "none/a.html"])
def test_what_cannot_be_written_is_said_before_it_runs(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kcensus.commands.notebook._executed", lambda *_: pytest.fail("it runs"))
    (tmp_path / "link.html").symlink_to(tmp_path / "nowhere" / "a.html")
    assert run("explore", "-o", tmp_path / output) in (Exit.FAILED, Exit.USAGE)
    assert capsys.readouterr().err.count("kcensus: ") == 1
