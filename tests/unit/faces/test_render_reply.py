# SPDX-License-Identifier: LGPL-2.1-or-later
"""A report as text for a ticket: short, of lines that stand alone, with hostile names in it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcensus import cli, explain, saved
from kcensus.analyses.gaps import WAITS_MISSING
from kcensus.commands import Exit
from kcensus.render.html import page_html, write_html
from kcensus.render.json import write_json
from kcensus.render.reply import reply
from kcensus.render.report import write_report
from kcensus.render.screen import console_for
from kcensus.reports import Report, Section
from kcensus.results import Figure, Finding, Gap, Machine, Remedy, Result, Severity
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


def test_one_count_of_missing_data(tmp_path: Path) -> None:
    gaps = [
        Gap("debug info of module dm_mod, xfs", "none", 1, "x"),
        Gap(
            "kinds of waits", "types of module xfs are missing", 2, f"{WAITS_MISSING}logs, buffers"
        ),
        Gap("disks", "torn", 3, "x"),
    ]
    report = made(LESSER)
    (section,) = report.sections
    assert section.result
    section.result.gaps += gaps
    other = Result("waits", "x", "6.1", gaps=gaps[:2])
    report = replace(report, sections=[section, Section("waits", other)])
    text, screen = reply(report), io.StringIO()
    write_report(report, console_for(screen))
    assert "in 3 parts" in text
    assert "3 MISSING" in screen.getvalue()
    for brief in (True, False):
        write_html(report, tmp_path / "a.html", brief=brief)
        page = (tmp_path / "a.html").read_text()
        assert "<dt>Gaps</dt><dd>3</dd>" in page
        # Above the findings, in the words of the reply.
        assert page.index("in 3 parts") < page.index('id="finding-')
        for each in (text, page):
            assert "2 kinds of waits" in each
            assert "logs, buffers" in each


def test_names_of_a_redacted_capsule_are_in_no_command(tmp_path: Path) -> None:
    other = replace(WORST, id="waits-suspended:x", severity=Severity.WARNING)
    report = made(WORST, other, machine=Machine(has_pseudonyms=True))
    text = reply(report)
    assert not [line for line in lines(text) if "kill" in line or "u x" in line]
    assert "`kcensus report`" in text
    write_html(report, tmp_path / "a.html")
    assert "Do not run this" in (tmp_path / "a.html").read_text()
    write_html(made(WORST), tmp_path / "a.html")
    assert "Do not run this" not in (tmp_path / "a.html").read_text()


def test_each_urgent_finding_has_its_step() -> None:
    resume = Remedy(effect="Resume it", command="dmsetup resume a", risk="none")
    second = replace(WORST, id="waits-suspended:a", title="a waits", remedies=(resume,))
    third = replace(second, id="waits-suspended:b", title="b waits")
    shown = lines(reply(made(WORST, second, third)))
    assert shown.count("    dmsetup resume a") == 1
    (last,) = (line for line in shown if "b waits" in line)
    assert explain.kinds()["waits-suspended"].title in last
    assert "Resume it" in last
    # Only commands with numbers warn of those.
    kill, resumed = (line for line in shown if line.endswith("run as root:"))
    assert ["that moment" in kill, "that moment" in resumed] == [True, False]
    stuck = [replace(WORST, id=f"waits-x:{at}", remedies=(), no_remedy="Restart") for at in (1, 2)]
    assert reply(made(*stuck)).count("Restart.") == 1
    many = [
        replace(
            second,
            id=f"waits-suspended:{number}",
            remedies=(replace(resume, command=f"dmsetup resume {number}\n" * 9),),
        )
        for number in range(9)
    ]
    assert len(lines(reply(made(WORST, *many)))) <= 35


def test_the_tasks_of_a_part_are_in_the_evidence() -> None:
    def part(number: int) -> Finding:
        tasks = {"tasks": Figure(number)}
        return replace(
            WORST, id=f"waits-io:{number}", title=f"{number} tasks", part_of=WORST.id, figures=tasks
        )

    text = reply(made(WORST, part(3), part(14)))
    assert "14 tasks" in text
    assert "3 tasks" not in text
    own = replace(WORST, figures={"tasks": Figure(2)})
    assert "14 tasks" not in reply(made(own, part(14)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "no kernel package is known"),
        ({"patch": "a-b"}, "none is released"),
        ({"patch": "a-b", "patch_is_fix": True}, "not known for this kernel"),
        (
            {"patch": "a-b", "patch_is_fix": True, "patch_packages": "Debian 12: since 6.1.5-1"},
            "since 6.1.5-1",
        ),
        ({"evidence": "b. Perhaps it has the fix cfq-async-starvation"}, "not visible"),
    ],
)
def test_a_kernel_with_a_fix(fields: dict[str, Any], said: str) -> None:
    report = made(replace(WORST, **fields))
    patches = Section("patches", Result("patches", "x", "6.1"))
    report = replace(report, sections=[*report.sections, patches])
    (line,) = (each for each in lines(reply(report)) if each.startswith("Kernel with a fix"))
    assert said in line


def test_nothing_urgent_comes_first() -> None:
    shown = lines(reply(made(LESSER)))
    assert "urgent" in shown[1]
    assert "minor" in shown[2]
    assert "urgent was" not in reply(made(WORST))


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
    ("target", "shown"), [("a b", "kcensus waits 'a b'"), ("a\x1b", "kcensus waits DUMP")]
)
def test_a_document_has_no_placeholders(tmp_path: Path, target: str, shown: str) -> None:
    report, file, out = made(WORST), io.StringIO(), io.StringIO()
    head = replace(report.head, target=target)
    write_json(replace(report, head=head), file)
    path = tmp_path / "r.json"
    path.write_text(file.getvalue())
    loaded = saved.load(str(path))
    write_report(loaded, console_for(out))
    assert shown in out.getvalue()
    assert shown in page_html(loaded).replace("&#39;", "'")


@pytest.mark.parametrize("word", ["urgent", "important", "minor"])
def test_words_of_a_reply_lead_to_severity(word: str) -> None:
    term = explain.term(word)
    assert term
    assert term.name == "severity"


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
