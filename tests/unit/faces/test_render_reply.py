# SPDX-License-Identifier: LGPL-2.1-or-later
"""A report as text for a ticket: short, of lines that stand alone, with hostile names in it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from kcensus import cli, explain, saved
from kcensus.commands import Exit
from kcensus.render.html import write_html
from kcensus.render.json import write_json
from kcensus.render.reply import reply
from kcensus.reports import Report, Section
from kcensus.results import Finding, Gap, Machine, Remedy, Result, Severity
from tests.unit.pages import HOSTILE, SHOWN, hostile_result

WORST = Finding(
    id="waits-deadlock:1",
    severity=Severity.CRITICAL,
    title="deadlock: 2 tasks wait for each other",
    evidence="The log reports both; for developers: `kcensus waits TARGET --table stacks`",
    remedies=(
        Remedy(effect="Look", command="kcensus waits TARGET"),
        Remedy(effect="Kill a (PID 1)", command="kill -KILL 1\nwait", risk="its work", undo="u x"),
        Remedy(effect="Restart"),
    ),
    no_remedy="`kcensus waits TARGET` shows more",
)
LESSER = Finding(
    id="dentries-negative", severity=Severity.NOTICE, title="9 dentries", memory={"slab:dentry": 1}
)


def made(*findings: Finding, error: str = "", machine: Machine | None = None) -> Report:
    head = Result("report", "x", "6.1", machine=machine)
    result = Result("slab", "x", "6.1", machine=machine, findings=list(findings))
    return Report(head, [Section("slab", result), *([Section("waits", None, error)] * bool(error))])


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_the_worst_comes_first_and_the_rest_is_a_line_each() -> None:
    text = reply(made(LESSER, WORST, replace(LESSER, id="dentries-negative:2", title="8 more")))
    shown = lines(text)
    assert explain.kinds()["waits-deadlock"].plain in shown[1]
    assert WORST.title in shown[2]
    others = [each for each in shown if each.startswith("- ")]
    assert [LESSER.title in others[0], "8 more" in others[1], len(others)] == [True, True, 2]
    # A kind is explained once.
    assert text.count(explain.kinds()["dentries-negative"].plain) == 1
    # Each command is a line of its own, and none is for kcensus.
    commands = [line for line in shown if line.startswith("    ")]
    assert commands[:3] == ["    kill -KILL 1", "    wait", "    u x"]
    assert "Risk: its work." in text
    assert "kcensus" not in text
    assert "Restart." in text
    assert len(shown) <= 20


def test_a_healthy_machine_says_what_was_examined() -> None:
    text = reply(made())
    assert "no problem of the kinds" in text
    assert "the memory of the kernel itself" in text
    minor = replace(LESSER, severity=Severity.INFO)
    assert {"9 dentries."} <= {line.rpartition(": ")[2] for line in lines(reply(made(minor)))}
    panic = reply(made(machine=Machine(taken_by="Oops: 2", is_panic=True, host="db-17")))
    assert "Oops: 2" in panic
    assert "db-17" in panic


def test_an_incomplete_report_says_so() -> None:
    text = reply(made(error="the type struct x is missing"))
    assert "no problem of the kinds" not in text
    assert "incomplete" in text
    assert "the type struct x is missing" in text
    nothing = Report(Result("report", "x", "6.1"), [Section("waits", None, "no types")])
    assert "no problem" not in reply(nothing)
    assert "no types" in reply(nothing)
    report = made(WORST)
    (section,) = report.sections
    assert section.result
    section.result.gaps.append(Gap("debug info of module a, b", "none", 1, "x"))
    shown = lines(reply(report))
    assert {"    modinfo -n a b"} <= {*shown}


def test_names_of_the_dump_are_inert() -> None:
    result = hostile_result()
    report = Report(replace(result, findings=[]), [Section("slab", result)])
    text = reply(report)
    assert SHOWN in text
    assert text.replace("\n", "").isprintable()
    # A command of several lines keeps its lines, a name does not begin any.
    assert [line for line in lines(text) if line.startswith("=1")] == []
    assert HOSTILE not in text


def test_a_backtick_in_a_name_hides_nothing() -> None:
    finding = replace(WORST, evidence="/a`kcensus b` is slow; c")
    assert "/a`kcensus b` is slow; c." in reply(made(finding))


def test_words_of_the_kernel_are_explained_once_outside_of_paths() -> None:
    finding = replace(WORST, evidence="/srv/kcopyd and a.bfq:x", title="a kcopyd job, kcopyd's")
    last = lines(reply(made(finding)))[-1]
    assert last.count("kcopyd: ") == 1
    assert "bfq" not in last
    # A word of a group stands for itself.
    assert "CFQ: " in lines(reply(made(replace(finding, evidence="CFQ"))))[-1]


def test_a_document_makes_the_same_text(tmp_path: Path) -> None:
    report = made(LESSER, WORST, error="y", machine=Machine(host="a", ram_bytes=1 << 30, time=1e9))
    file = io.StringIO()
    write_json(report, file)
    path = tmp_path / "r.json"
    path.write_text(file.getvalue())
    assert reply(saved.load(str(path))) == reply(report)


@pytest.mark.parametrize(
    "options", [["--reply", "--json"], ["--reply="], ["--brief"], ["--reply", "DOCUMENT"]]
)
def test_wrong_usage_is_refused(options: list[str], tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with path.open("w") as file:
        write_json(made(WORST), file)
    words = [str(path) if word == "DOCUMENT" else word for word in options]
    assert cli.main(["report", str(path), *words]) == Exit.USAGE


def test_a_file_is_written_and_written_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, text = tmp_path / "r.json", tmp_path / "r.txt"
    with document.open("w") as file:
        write_json(made(WORST), file)
    for _ in range(2):
        assert cli.main(["report", str(document), "--reply", str(text)]) == Exit.DONE
        assert capsys.readouterr().out == f"{text}\n"
    assert text.read_text() == reply(saved.load(str(document)))
    assert cli.main(["report", str(document), "--reply"]) == Exit.DONE
    assert capsys.readouterr().out == text.read_text()


def test_a_brief_page_has_findings_alone(tmp_path: Path) -> None:
    write_html(made(LESSER, WORST), tmp_path / "a.html", brief=True)
    page = (tmp_path / "a.html").read_text()
    assert "finding-waits-deadlock-1" in page
    assert "analysis-slab" not in page
