# SPDX-License-Identifier: LGPL-2.1-or-later
"""The report on paths that have another dump now, and on reports that lack analyses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kcensus import cli
from kcensus.commands import Exit
from kcensus.fleets import tables
from kcensus.fleets.report import Report
from kcensus.fleets.tables import utc
from tests.unit.fleets.report.test_report import HOSTILE, Capture, frame, output
from tests.unit.fleets.stores import Target, made

pytestmark = pytest.mark.slow

PATH = "/srv/crash/vmcore"


def at(target: Target, path: str, started: int, **row: object) -> Target:
    """Return a target as read from a path at a time."""
    return replace(target, row={"target": path, "started": utc(started), **target.row, **row})


def dumps() -> list[Target]:
    """Two dumps that were at one path, one after the other."""
    return [
        at(Target("1", "web", findings={"x": "critical"}), PATH, 1),
        at(Target("2", "db", 1, findings={"y": "warning"}), PATH, 2),
    ]


def numbers(report: Report, *names: str) -> list[object]:
    return [report.result.summary[name].value for name in names]


def test_a_path_with_another_dump_counts_once_and_has_no_command(tmp_path: Path) -> None:
    report = Report(made(tmp_path / "fleet", dumps()))
    assert numbers(report, "targets", "reports", "replaced", "hosts", "causes") == [1, 1, 1, 2, 2]
    rows = {str(row["title"]): row for row in frame(report, "causes")}
    (before,) = (row for row in rows.values() if row["severity"] == "critical")
    (now,) = (row for row in rows.values() if row["severity"] == "warning")
    assert (before["command"], before["replaced"]) == ("", "yes")
    assert (now["command"], now["replaced"]) == (f"kcensus report {PATH}", "")
    first, second = (report.dumps(each).tables["dumps"].frame for each in report.causes)
    assert first["replaced"].tolist() == ["yes"]
    assert first["command"].tolist() == [""]
    assert second["command"].tolist() == [f"kcensus report {PATH}"]
    assert not any(f"report {PATH}" in each.command for each in report.result.findings[0].remedies)


@pytest.mark.parametrize("face", [[], ["--json"], ["--html", "page.html"]])
def test_no_face_opens_another_dump(
    face: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = Report(made(tmp_path / "fleet", dumps()))
    command = f"kcensus report {PATH}"
    text = output(capsys, "report", "fleet", *face)
    text = Path("page.html").read_text().replace("<wbr>", "") if "--html" in face else text
    assert command in text
    assert command not in output(capsys, "show", report.causes[0].id, "fleet")
    # With the later one left out, there is no dump to open.
    (tmp_path / "old").mkdir()
    monkeypatch.chdir(tmp_path / "old")
    first, second = dumps()
    made(Path("fleet"), [replace(first, day=5), second])
    text = output(capsys, "report", "fleet", "--since", "2026-01-04", *face)
    text = Path("page.html").read_text().replace("<wbr>", "") if "--html" in face else text
    assert PATH in text
    assert command not in text


def test_a_dump_with_another_name_is_opened_there(tmp_path: Path) -> None:
    copy = Target("3", row={"state": "duplicate", "sha256": "1", "record": "", "duplicate_of": "1"})
    report = Report(made(tmp_path / "fleet", [*dumps(), at(copy, f"{PATH}.1", 3)]))
    assert numbers(report, "targets", "reports", "replaced", "duplicates") == [2, 2, 0, 0]
    assert [each.command for each in report.causes] == [
        f"kcensus report {PATH}.1", f"kcensus report {PATH}",
    ]  # fmt: skip


def test_a_dump_that_can_be_opened_stands_for_its_cause(tmp_path: Path) -> None:
    first, second = dumps()
    late = replace(second, day=9, findings=first.findings)
    store = made(tmp_path / "fleet", [replace(first, day=20), late])
    (one,) = Report(store).causes
    assert (one.dumps, one.command) == (2, f"kcensus report {PATH}")


WHY = "waits: more than 512 MiB of memory; dentries: a fault"


def partial(name: str, why: str = WHY) -> Target:
    return Target(name, f"host-{name}", row={"state": "incomplete", "error": why})


def test_reports_that_lack_analyses_are_counted_and_named(tmp_path: Path, capsys: Capture) -> None:
    store = made(tmp_path / "fleet", [Target("1"), partial("2"), partial("3")])
    assert cli.main(["fleet", "report", str(store), "--json"]) == Exit.INCOMPLETE
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["incomplete"] == 2
    rows = document["tables"]["incomplete"]
    assert [(row["host"], row["error"], row["command"]) for row in rows] == [
        (f"host-{name}", WHY, f"kcensus report /srv/{name}/vmcore") for name in "23"
    ]  # fmt: skip
    page = tmp_path / "page.html"
    assert WHY in " ".join(output(capsys, "report", str(store)).split())
    output(capsys, "report", str(store), "--html", str(page))
    text = page.read_text().replace("<wbr>", "")
    assert all(each in text for each in (WHY, "host-2", "host-3"))


def test_names_in_reports_that_lack_analyses_are_inert(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "printable", str)
    target = replace(partial("1", HOSTILE), host=HOSTILE)
    hostile = at(target, f"/{HOSTILE}", 1)
    old = at(Target("2", HOSTILE, findings={HOSTILE: "critical"}), f"/{HOSTILE}", 0)
    store, page = made(tmp_path / "fleet", [hostile, old]), tmp_path / "page.html"
    for face in ([], ["--all"], ["--table", "incomplete"]):
        text = output(capsys, "report", str(store), *face)
        assert all(line.isprintable() for line in text.splitlines())
        assert "x1b[31m<script>[red]" in text
    output(capsys, "report", str(store), "--html", str(page))
    assert page.read_text().count("<script>") == 1
