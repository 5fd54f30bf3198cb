# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus report`` and ``kcensus capsule create`` on made-up analyses of a *synthetic* kernel."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import drgn
import pandas as pd
import pytest

from kcensus import cli, samples
from kcensus.analyses import Analysis, AnalysisError
from kcensus.analyses.runner import Context
from kcensus.capsule import create
from kcensus.commands.doctor import _examine
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.waiting.finder import LOOK_AT_STACKS
from kcensus.render.report import write_report
from kcensus.render.screen import console_for
from kcensus.reports import Report, report
from kcensus.results import Answer, Check, Figure, Finding, Gap, Result, Severity, Unit
from kcensus.results.tables import Column, Table
from kcensus.sources import Target, TargetError, open_target
from kcensus.sources.capsule import SOURCE, BadCapsule, NotRecorded
from kcensus.sources.debuginfo.packages import missing_module
from tests.running import analysis_of
from tests.unit.capsules import target_of
from tests.unit.fakekernel import DIRECT_MAP, PAGE, FakeKernel, Machine


def _answer(kernel: Kernel, *findings: Finding) -> Answer:
    frame = pd.DataFrame({"pages": [1, 2]})
    return Answer(
        summary={"word": Figure(int(kernel.prog.read_u64(DIRECT_MAP + 300 * PAGE)))},
        tables={"rows": Table(frame, {"pages": Column(Unit.PAGES, "pages")}, "Rows")},
        findings=list(findings),
    )


def _found(number: int, severity: Severity, title: str, size: int = 0) -> Finding:
    memory = {f"place {number}": size} if size else {}
    return Finding(id=f"made-{number}", severity=severity, title=title, memory=memory)


def _analysis(name: str, *findings: Finding) -> Analysis:
    return analysis_of(name, lambda kernel: _answer(kernel, *findings), question=f"Is it {name}?")


ERRORS: dict[str, tuple[BaseException, str]] = {
    "absent": (AnalysisError("this kernel has none"), "this kernel has none"),
    "bug": (
        ZeroDivisionError("two\nlines"),
        "failed with ZeroDivisionError: two\\x0alines (`kcensus bug TARGET --debug` shows where)",
    ),
    "damaged": (BadCapsule("is damaged: no"), "the capsule is damaged: no"),
    "fault": (
        drgn.FaultError("not there", 4096),
        "fault needs memory at physical address 0x1000, which is unreadable; the dump is damaged "
        "there; copy it again (`kcensus fault TARGET --debug` shows where)",
    ),
    "lacking": (NotRecorded("the capsule lacks it"), "the capsule lacks it"),
    "memory": (
        MemoryError(),
        "memory needs more memory than this machine has free; read the target on a larger machine",
    ),
}
CALM = _analysis(
    "calm",
    _found(1, Severity.NOTICE, "A notice of calm."),
    _found(2, Severity.WARNING, "A cheap warning.", 10),
    _found(3, Severity.WARNING, "A warning without a price."),
)
LOUD = _analysis(
    "loud",
    _found(4, Severity.CRITICAL, "Everything is lost."),
    _found(5, Severity.WARNING, "A dear warning.", 1 << 40),
    _found(6, Severity.NOTICE, "A notice of loud."),
)
FAILING = [analysis_of(name, mock.Mock(side_effect=error)) for name, (error, _) in ERRORS.items()]


@pytest.fixture(scope="module")
def machine() -> Machine:
    made = FakeKernel()
    made.write_words(DIRECT_MAP + 300 * PAGE, 4711)
    return made


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    machine: Machine, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> Iterator[Run]:
    """Run ``kcensus ARGS`` on a file, or on the targets ``vmcore`` and ``live``."""
    analyses = {one.name: one for one in getattr(request, "param", [*FAILING, CALM, LOUD])}

    def opens(spec: str | None, symbols: object = (), **_: object) -> Target:
        if spec in ("vmcore", "live") or str(spec).endswith("/vmcore"):
            return replace(target_of(machine, str(spec)), live=spec == "live")
        return open_target(spec)

    def run(*args: str | Path) -> tuple[int, str, str]:
        status = cli.main([str(arg) for arg in args])
        return (status, *capsys.readouterr())

    with (
        mock.patch("kcensus.analyses._discover", return_value=analyses),
        mock.patch("kcensus.sources.open_target", opens),
    ):
        yield run


fine = pytest.mark.parametrize("run", [[CALM, LOUD]], indirect=True)
failing = pytest.mark.parametrize("run", [FAILING], indirect=True)


def words_of(made: Report) -> str:
    out = io.StringIO()
    write_report(made, console_for(out))
    return " ".join(out.getvalue().split())


def test_findings_that_matter_come_first(machine: Machine) -> None:
    made = report(Context.of(target_of(machine)), [CALM, LOUD])
    assert [(name, finding.title) for name, finding in made.findings] == [
        ("loud", "Everything is lost."),
        ("loud", "A dear warning."),
        ("calm", "A cheap warning."),
        ("calm", "A warning without a price."),
        ("calm", "A notice of calm."),
        ("loud", "A notice of loud."),
    ]


@pytest.fixture
def truncated(machine: Machine) -> Target:
    return replace(
        target_of(machine),
        name="a dump",
        missing_end="the dump lacks its last 4.0 KiB",
        words="'a dump' --allow-truncated -s vmlinux",
    )


def test_a_truncated_dump_is_a_gap_of_every_result(truncated: Target) -> None:
    made = report(Context.of(truncated), [CALM, LOUD])
    gaps = [gap for result in made.results.values() for gap in result.gaps]
    assert [gap.reason for gap in gaps if "end" in gap.what] == [truncated.missing_end] * 2
    assert "1 MISSING (calm, loud: end of the dump)" in words_of(made)


def test_modules_without_debug_info_are_named_with_their_package(machine: Machine) -> None:
    def need_modules(*names: str) -> list[str]:
        return [missing_module(name, "6.1.0-56-cloud-amd64", None) for name in names]

    target = replace(target_of(machine), modules=mock.Mock(need_modules=need_modules))
    needy = replace(CALM, modules=("xfs", "dm_mod")), replace(LOUD, modules=("dm_mod",))
    shown = words_of(report(Context.of(target), needy))
    assert "1 MISSING (no debug info of modules dm_mod, xfs: affects calm, loud)" in shown
    assert "install with `apt install linux-image-6.1.0-56-cloud-amd64-dbg`" in shown


def test_a_capsule_names_modules_without_types(machine: Machine, tmp_path: Path) -> None:
    def need_modules(*names: str) -> list[str]:
        return [missing_module(name, "6.1.0-56-cloud-amd64", None) for name in names]

    target = replace(target_of(machine), modules=mock.Mock(need_modules=need_modules))
    made = create(target, tmp_path / "case", [replace(CALM, modules=("xfs", "dm_mod"))])
    assert made.lacking == ["dm_mod", "xfs"]


def test_doctor_calls_no_analysis_of_a_truncated_dump_complete(truncated: Target) -> None:
    result = Result("doctor", "a dump", "")
    assert _examine(truncated, result) == ""
    rows = result.tables["analyses"].frame
    assert "yes" not in set(rows["works"])
    assert truncated.missing_end in rows["missing"][0]
    assert [gap.what for gap in result.gaps].count("end of the dump") == 1


def test_interrupting_stops_all(machine: Machine) -> None:
    stop = analysis_of("stop", mock.Mock(side_effect=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        report(Context.of(target_of(machine)), [stop, CALM])


def test_report_json(run: Run) -> None:
    status, out, err = run("report", "vmcore", "--json")
    assert (status, err) == (6, "")
    document = json.loads(out)
    said = [(name, sentence) for name, (_, sentence) in ERRORS.items()]
    assert [*document["failed"].items()] == said
    assert list(document["analyses"]) == ["calm", "loud", "patches"]
    assert document["analyses"]["calm"]["summary"]["word"] == 4711
    first, second, *_ = document["findings"]
    assert (first["id"], second["id"]) == ("report-incomplete", "made-4")
    assert {finding["analysis"] for finding in document["findings"]} == {"report", "calm", "loud"}


@pytest.mark.parametrize("options", [[], ["--full"], ["--all"]])
def test_report_on_screen_names_what_failed(run: Run, options: list[str]) -> None:
    status, out, err = run("report", "vmcore", *options)
    assert (status, err) == (6, "")
    assert out.index("Everything is lost.") < out.index("A dear warning.")
    assert out.count("FAILED") == len(ERRORS)
    shown = " ".join(out.split())
    for _, sentence in ERRORS.values():
        assert " ".join(sentence.split()) in shown


@fine
def test_report_on_screen_has_a_line_per_analysis(run: Run) -> None:
    out = run("report", "vmcore")[1]
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "calm word 4,711" in lines
    assert "Checks none" in lines
    assert any(line.startswith("More --full") for line in lines)
    assert "Rows" not in out
    assert "Rows" in run("report", "vmcore", "--full")[1]
    out = run("report", "vmcore", "--top", "2")[1]
    assert "A dear warning." in out
    assert "A warning without a price." not in out
    assert "4 more findings" in out


CHECKED = {"checks": [Check("a", 1, 1), Check("b", 2, 2)]}
DIFFERS = {"checks": [Check("a", 1, 1), Check("b", 2, 3)]}
LACKS = {**CHECKED, "gaps": [Gap("pages", "filtered", 3, "lower bound")]}
FINDS = {**CHECKED, "findings": [_found(7, Severity.INFO, "x")]}


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({}, "Nothing found: 0 checks agree, no gaps."),
        (CHECKED, "Nothing found: 2 checks agree, no gaps."),
        (DIFFERS, "Nothing found, but 1 of 2 checks differs (see below)."),
        (LACKS, "Nothing found, but 1 gap (see below)."),
        (FINDS, "Nothing serious found: 2 checks agree, no gaps."),
    ],
)
def test_a_healthy_machine_is_one_line(
    machine: Machine, parts: dict[str, Any], sentence: str
) -> None:
    healthy = analysis_of("healthy", lambda kernel: Answer(**parts))
    made = report(Context.of(target_of(machine)), [healthy])
    assert sentence in words_of(made)
    assert made.head.machine is not None
    assert "panic" not in words_of(made)
    made.head.machine = replace(made.head.machine, is_panic=True)
    assert f"{sentence} The panic itself is not analysed." in words_of(made)


@pytest.mark.parametrize(("live", "is_capsule"), [(False, False), (True, False), (False, True)])
def test_a_vmcore_is_too_large_to_send(machine: Machine, live: bool, is_capsule: bool) -> None:
    context = Context.of(replace(target_of(machine), live=live))
    context.kernel.is_capsule = is_capsule
    made = report(context, [analysis_of("healthy", lambda kernel: Answer())])
    assert made.capsule.endswith(" case.capsule") != (live or is_capsule)
    assert made.capsule in words_of(made)
    assert ("case.capsule" in words_of(made)) == bool(made.capsule)


_POINTING = [
    replace(_found(number, Severity.NOTICE, "x"), no_remedy=f"`kcensus {name} TARGET` says why")
    for number, name in enumerate(("absent", "calm"))
]


@pytest.mark.parametrize("run", [[CALM, FAILING[0], _analysis("x", *_POINTING)]], indirect=True)
def test_a_next_step_is_no_analysis_that_failed(run: Run) -> None:
    found = json.loads(run("report", "vmcore", "--json")[1])["findings"]
    steps = {each["id"]: each["no_remedy"] for each in found}
    assert steps["made-0"] == LOOK_AT_STACKS
    assert steps["made-1"] == "`kcensus calm TARGET` says why"


_WRONG = analysis_of(
    "wrong", lambda kernel: Answer(checks=[Check(str(at), 1, 1 + (at > 0)) for at in range(4)])
)


@pytest.mark.parametrize("run", [[CALM, _WRONG]], indirect=True)
def test_a_dump_on_which_checks_differ_is_damaged(run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "r.json"
    status = run("report", "vmcore", f"--json={saved}", "--fail-on", "warning")[0]
    assert status == 1
    for document in (json.loads(saved.read_text()), json.loads(run("report", saved, "--json")[1])):
        first = document["findings"][0]
        assert (first["id"], first["analysis"]) == ("report-damaged", "report")
        assert first["figures"]["differ"]["value"] == 3
    # A running kernel goes on meanwhile.
    live = json.loads(run("report", "live", "--json")[1])
    assert "report-damaged" not in {each["id"] for each in live["findings"]}


def test_failed_analyses_are_not_a_healthy_machine(truncated: Target) -> None:
    made = report(Context.of(truncated), FAILING)
    ((_, finding),) = made.findings
    assert finding.id == "report-incomplete"
    assert "Nothing found" not in words_of(made)
    # The same options go to doctor.
    (remedy,) = finding.remedies
    assert remedy.command == "kcensus doctor 'a dump' --allow-truncated -s vmlinux"


@pytest.mark.parametrize("face", ["csv", "parquet"])
def test_report_files_stand_in_a_directory_for_each_analysis(
    run: Run, tmp_path: Path, face: str
) -> None:
    status, out, err = run("report", "vmcore", f"--{face}", tmp_path / "out")
    assert status == 6
    folders = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert folders == ["calm", "loud", "patches"]
    assert (tmp_path / "out" / f"findings.{face}").is_file()
    written = sorted(str(path) for path in (tmp_path / "out").rglob(f"*.{face}"))
    assert sorted(out.split()) == written
    assert f"{tmp_path}/out/calm/rows.{face}" in written
    # What failed would not be seen otherwise.
    for name, (_, sentence) in ERRORS.items():
        assert f"kcensus: {name} failed on this target: {sentence}".strip() in err


@failing
def test_a_report_without_any_answer_is_an_error(run: Run) -> None:
    assert run("report", "vmcore")[0] == 3
    assert run("report", "vmcore", "--json")[0] == 3


@fine
def test_a_report_takes_rules_of_the_user(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text("""
        [[rules]]
        severity = "critical"
        title = "{value} words are too many"
        at-least = 4000
        metric = { analysis = "calm", key = "word", what = "words" }
    """)
    status, out, _ = run("report", "vmcore", "--json", "--catalogue", tmp_path)
    assert status == 0
    titles = [finding["title"] for finding in json.loads(out)["findings"]]
    assert "4,711 words are too many" in titles
    (tmp_path / "ours.toml").write_text("[[rules]]\nnonsense = 1\n")
    status, _, err = run("report", "vmcore", "--catalogue", tmp_path)
    assert status == 2
    assert "ours.toml" in err


@pytest.mark.parametrize(
    ("run", "limit", "status"),
    [([CALM, LOUD], "critical", 1), ([CALM, LOUD], "info", 1), ([CALM], "critical", 0)],
    indirect=["run"],
)
def test_fail_on_looks_at_all_findings(run: Run, limit: str, status: int) -> None:
    assert run("report", "vmcore", "--fail-on", limit)[0] == status


@fine
def test_create_and_replay(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.capsule"
    status, said, err = run("capsule", "create", "vmcore", out)
    assert (status, err) == (0, "")
    assert re.fullmatch(r".*out\.capsule: [\d,]+ bytes, [\d,]+ pages, for calm, loud\n", said)
    assert [path.name for path in tmp_path.iterdir()] == ["out.capsule"]
    status, replayed, err = run("report", out, "--json")
    assert (status, err) == (0, "")
    renamed = replayed.replace(f'"target": {json.dumps(str(out))}', '"target": "vmcore"')
    assert renamed == run("report", "vmcore", "--json")[1]


def test_create_says_what_failed(run: Run, tmp_path: Path) -> None:
    status, _, err = run("capsule", "create", "vmcore", tmp_path / "out")
    assert status == 6
    assert "kcensus: absent failed on this target: this kernel has none\n" in err
    assert len(err.splitlines()) == len(ERRORS)


def test_doctor_says_what_failed_and_what_is_corrupt(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "out"
    run("capsule", "create", "vmcore", path)
    status, out, _ = run("doctor", path, "--json")
    assert status == 0
    rows = {row["analysis"]: row for row in json.loads(out)["tables"]["analyses"]}
    assert {name for name, row in rows.items() if row["works"] == "yes"} == {"calm", "loud"}
    assert rows["absent"]["missing"] == "failed when recorded: this kernel has none"

    data = bytearray(path.read_bytes())
    data[100] ^= 1  # among the pages
    path.write_bytes(data)
    status, out, err = run("doctor", path, "--json")
    assert status == 3
    assert {row["works"] for row in json.loads(out)["tables"]["analyses"]} == {"no"}
    assert "the capsule is corrupt: its checksums do not match: pages" in err


@failing
def test_nothing_to_record(run: Run, tmp_path: Path) -> None:
    status, out, err = run("capsule", "create", "vmcore", tmp_path / "out")
    assert (status, out) == (3, "")
    assert err == "kcensus: vmcore: nothing to record: this kernel has none\n"
    assert list(tmp_path.iterdir()) == []


@fine
def test_analyses_are_chosen_by_name(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _, said, _ = run("capsule", "create", "vmcore", out, "--analyses", " loud,,loud ")
    assert said.endswith("for loud\n")
    # What it was not recorded for is answered, but not silently.
    _, document, _ = run("calm", out, "--json")
    assert "it was recorded for loud" in json.dumps(json.loads(document)["gaps"])
    _, document, _ = run("loud", out, "--json")
    assert json.loads(document)["gaps"] == []


@fine
@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--analyses", "loud,quiet"], "unknown analysis 'quiet' (choose from calm, loud)"),
        (["--analyses", " , "], "--analyses: the list is empty (choose from calm, loud)"),
        (["--analyses", ""], "--analyses: the list is empty (choose from calm, loud)"),
        (["--level", "0"], "--level"),
        (["--level", "20"], "--level"),
        (["--jobs", "0"], "--jobs"),
    ],
)
def test_wrong_usage(run: Run, tmp_path: Path, args: list[str], sentence: str) -> None:
    status, out, err = run("capsule", "create", "vmcore", tmp_path / "out", *args)
    assert (status, out) == (2, "")
    assert sentence in err
    assert list(tmp_path.iterdir()) == []


@fine
def test_places_that_cannot_be(run: Run, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"precious")
    (tmp_path / "vmcore").write_bytes(b"more precious")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    for out, args, sentence in (
        (tmp_path / "there", [], "exists; choose another name, or add --force"),
        (tmp_path / "dangling", [], "exists; choose another name"),
        (tmp_path / "none" / "out", [], "none' is not a directory"),
        (tmp_path / "there" / "out", [], "there' is not a directory"),
        (tmp_path, ["--force"], "is a directory; give a file"),
        (tmp_path / "vmcore", ["--force"], "is the target itself; choose another name"),
    ):
        status, _, err = run("capsule", "create", tmp_path / "vmcore", out, *args)
        assert (status, sentence in err) == (2, True), err
    assert (tmp_path / "there").read_bytes() == b"precious"
    assert (tmp_path / "vmcore").read_bytes() == b"more precious"
    assert run("capsule", "create", "vmcore", tmp_path / "there", "--force")[0] == 0
    assert open_target(str(tmp_path / "there")).kind == "capsule"


@fine
def test_live_targets_and_capsules_are_refused(run: Run, tmp_path: Path) -> None:
    status, _, err = run("capsule", "create", "live", tmp_path / "out")
    assert status == 3
    assert err.startswith("kcensus: live: is live")
    assert run("capsule", "create", "vmcore", tmp_path / "first")[0] == 0
    status, _, err = run("capsule", "create", tmp_path / "first", tmp_path / "out")
    assert status == 3
    assert "is already a capsule" in err
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


@fine
@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyboardInterrupt(), 130), (ZeroDivisionError("bug"), 4), (MemoryError(), 3)],
)
def test_what_ends_writing_leaves_nothing(
    run: Run, tmp_path: Path, error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").write_bytes(b"old")
    monkeypatch.setattr("kcensus.sources.capsule.recorder._runs", mock.Mock(side_effect=error))
    assert run("capsule", "create", "vmcore", tmp_path / "there", "--force")[0] == status
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_bytes() == b"old"


@fine
def test_a_full_disk_is_an_output_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(28, os.strerror(28))
    monkeypatch.setattr("os.replace", mock.Mock(side_effect=full))
    status, _, err = run("capsule", "create", "vmcore", tmp_path / "out")
    assert status == 4
    assert err == f"kcensus: cannot write '{tmp_path}/out': {full.strerror}\n"
    assert list(tmp_path.iterdir()) == []


@fine
def test_samples_are_found_by_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "samples").mkdir()
    monkeypatch.setattr(samples, "DIRECTORY", tmp_path / "samples")
    monkeypatch.chdir(tmp_path)
    run("capsule", "create", "vmcore", tmp_path / "samples" / "sample-after.capsule")
    target = open_target("sample-after")
    assert (target.name, target.kind) == ("sample-after", "capsule")
    (tmp_path / "sample-after").write_bytes(b"a file of the user's own")
    with pytest.raises(TargetError, match="sample-after: "):
        open_target("sample-after")


@pytest.mark.parametrize(
    "spec", ["sample-before", "../samples/sample", "samples/sample", "sample.capsule", "a" * 5000]
)
def test_other_names_are_not_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    (tmp_path / "sample.capsule").write_bytes(b"")
    monkeypatch.setattr(samples, "DIRECTORY", tmp_path)
    assert not SOURCE.claims(spec)
    with pytest.raises(TargetError):
        open_target(spec)
    monkeypatch.setattr(samples, "DIRECTORY", Path("/nonexistent"))
    assert not any(map(SOURCE.claims, ("sample", None, "")))


@pytest.mark.parametrize(
    ("key", "options", "expected"),
    [
        (None, ["--redact", "numbers"], "'names'"),
        (None, ["--redact", "names", "--redact-key", "key"], "no such file"),
        (b"x" * 15, ["--redact", "names", "--redact-key", "key"], "of 16 bytes or more"),
        (b"x" * 16, ["--redact-key", "key"], "add --redact names"),
        (None, ["--keep", "log"], "add --redact names"),
        (None, ["--redact", "names", "--keep", "names"], "'log'"),
    ],
)
def test_options_of_redaction(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    key: bytes | None,
    options: list[str],
    expected: str,
) -> None:
    """They are refused before anything is read."""
    monkeypatch.chdir(tmp_path)
    if key is not None:
        Path("key").write_bytes(key)
    assert cli.main(["capsule", "create", "no-such-vmcore", "out.capsule", *options]) == 2
    assert expected in " ".join(capsys.readouterr().err.split())
    assert not Path("out.capsule").exists()
