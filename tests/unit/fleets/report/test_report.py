# SPDX-License-Identifier: LGPL-2.1-or-later
"""The report on a fleet: keys and figures, and hostile names at each face."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kcensus import cli
from kcensus.commands import Exit
from kcensus.fleets import FleetError, tables
from kcensus.fleets.report import Report
from kcensus.fleets.report.data import opening
from kcensus.results import Severity
from tests.unit.fleets.stores import GIB, Target, made

pytestmark = pytest.mark.slow

MIB = 1 << 20
HOSTILE = "a\x1b[31m<script>[red]\u202e'; rm"


def frame(report: Report, name: str) -> list[dict[str, object]]:
    rows = report.result.tables[name].frame.to_dict("records")
    return [{str(key): value for key, value in row.items()} for row in rows]


def failed(name: str, error: str, step: str = "open") -> Target:
    row = {"state": "failed", "step": step, "error": error, "boot": "", "record": ""}
    return Target(name, host="", row=row)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(
        made(
            tmp_path / "fleet",
            [
                Target("1", "web", 0, findings={"dentries-negative": "warning"}),
                Target("2", "db", 3, findings={"dentries-negative": "critical"}),
                Target("3", "db", 2, findings={"dentries-negative": "warning", "x": "notice"}),
                Target("4", "nfs", 1, findings={"kcopyd-stall": "critical"}, release="5.10"),
                Target("5", "ok"),
                Target("6", "part", row={"state": "incomplete"}),
                Target("7", row={"state": "duplicate", "sha256": "2", "record": ""}),
                failed("8", "/srv/8/vmcore: ends at 4,096"),
                failed("9", "/srv/9/vmcore: ends at 8,192"),
                failed("10", "took longer than 600 s", "time"),
            ],
        )
    )


def test_each_target_is_counted_once(report: Report) -> None:
    summary = {key: each.value for key, each in report.result.summary.items()}
    assert summary == {
        "targets": 10, "reports": 6, "replaced": 0, "failed": 3, "incomplete": 1, "duplicates": 1,
        "hosts": 5, "causes": 2, "healthy": 1, "healthy_incomplete": 1,
        "first": "2026-01-01 00:00", "last": "2026-01-04 00:00",
    }  # fmt: skip


def test_causes_are_in_order_of_severity_and_hosts(report: Report) -> None:
    first, second = frame(report, "causes")
    assert first["hosts"] == 2
    assert (first["dumps"], first["severity"]) == (3, "critical")
    assert (first["first"], first["last"]) == ("2026-01-01 00:00", "2026-01-04 00:00")
    assert report.causes[0].severities == {Severity.CRITICAL: 1, Severity.WARNING: 2}
    assert first["outliers"] == 1
    assert first["differs"] == "also x (1)"
    assert first["command"] == f"kcensus report {first['representative']}"
    assert (second["hosts"], second["representative"]) == (1, "/srv/4/vmcore")


def test_the_representative_is_complete_and_the_latest(tmp_path: Path) -> None:
    findings = {"dentries-negative": "warning"}
    dumps = [
        Target("old", day=0, findings=findings),
        Target("late", day=1, findings=findings),
        Target("broken", day=2, findings=findings, row={"state": "incomplete"}),
    ]
    (one,) = Report(made(tmp_path / "fleet", dumps)).causes
    assert one.representative == "/srv/late/vmcore"


def test_failures_of_one_reason_are_one_row(report: Report) -> None:
    most, other = frame(report, "failures")
    assert (most["targets"], most["step"], most["error"]) == (2, "open", "ends at 4,096")
    assert (other["targets"], other["example"]) == (1, "/srv/10/vmcore")


def test_failures_come_after_causes_in_the_findings(report: Report) -> None:
    kinds = [each.kind for each in report.result.findings]
    assert kinds == ["fleet-cause", "fleet-cause", "fleet-incomplete", "fleet-partial"]


def test_hosts_without_a_name_are_told_apart_by_their_boots(tmp_path: Path) -> None:
    dumps = [
        Target("1", "(none)", boot="b1"), Target("2", "(none)", boot="b2"),
        Target("3", "(unknown)", boot="b1"),
    ]  # fmt: skip
    fleet = Report(made(tmp_path / "fleet", dumps))
    assert fleet.hosts == 2
    assert set(fleet.fleet.reports["machine"]) == {"(no name) boot b1", "(no name) boot b2"}


def test_causes_with_one_title_are_told_apart(tmp_path: Path) -> None:
    common = {"waits-deadlock": "critical"}
    dumps = [
        Target(name, name, findings=common, features=[("deadlock", f"mutex {name}", 6.0)])
        for name in ("a", "b")
    ]
    titles = sorted(each.title for each in Report(made(tmp_path / "fleet", dumps)).causes)
    assert [title.partition(" (")[2] for title in titles] == ["mutex a)", "mutex b)"]


def test_a_cause_has_the_title_of_the_first_finding_that_most_have(tmp_path: Path) -> None:
    both = {"waits-io": "notice", "requests-starved": "notice"}
    dumps = [Target(name, findings=both) for name in ("1", "2")]
    dumps.append(Target("3", findings={"other": "notice", **both}))
    (cause,) = Report(made(tmp_path / "fleet", dumps)).causes
    assert cause.leading is not None
    assert cause.leading["kind"] == "waits-io"


def test_a_cause_without_a_finding_is_named_by_its_stacks(tmp_path: Path) -> None:
    dumps = [Target("1", features=[("stack", "read → f", 0.2)])]
    (one,) = Report(made(tmp_path / "fleet", dumps)).causes
    assert (one.severity, one.title) == (Severity.WARNING, "Blocked tasks in read → f")


def test_a_panic_is_critical_and_leads(tmp_path: Path) -> None:
    dumps = [
        Target(
            "1", findings={"a": "notice"}, features=[("panic", "Fatal exception", 3.0)],
            row={"panic": "Fatal exception (task x)"},
        )
    ]  # fmt: skip
    (one,) = Report(made(tmp_path / "fleet", dumps)).causes
    assert (one.severity, one.title) == (Severity.CRITICAL, "Panic: Fatal exception")


def test_outliers_are_shares_of_ram_far_above_those_of_peers(tmp_path: Path) -> None:
    usual = [Target(f"u{n}", f"u{n}", figures={"slab_bytes": (20 + n) * MIB}) for n in range(9)]
    odd = Target("odd", "odd", 1, figures={"slab_bytes": 300 * MIB})
    before = replace(odd, name="before", day=0, figures={"slab_bytes": 900 * MIB})
    other = replace(odd, name="other", host="other", release="5.10")  # has no peers
    fleet = Report(made(tmp_path / "fleet", [*usual, odd, before, other]))
    (one,) = frame(fleet, "outliers")
    assert (one["host"], one["figure"], one["value"]) == ("odd", "slab.slab_bytes", 300 * MIB)
    assert one["share"] == pytest.approx(300 * MIB / GIB)
    assert one["peers"] == pytest.approx(24.5 * MIB / GIB, rel=0.01)


def test_hosts_without_an_amount_are_peers_too(tmp_path: Path) -> None:
    amounts = [0] * 8 + [100 * MIB] * 2
    dumps = [Target(f"{n}", f"h{n}", figures={"x": each}) for n, each in enumerate(amounts)]
    found = frame(Report(made(tmp_path / "fleet", dumps)), "outliers")
    assert [(row["host"], row["peers"]) for row in found] == [("h8", 0.0), ("h9", 0.0)]


def test_growth_is_of_the_latest_boot_and_steady(tmp_path: Path) -> None:
    def dumps(host: str, *sizes: int, boot: str = "b") -> list[Target]:
        return [
            Target(f"{host}{boot}{day}", host, day, f"{host}{boot}", figures={"slab_bytes": each})
            for day, each in enumerate(sizes)
        ]

    fleet = Report(
        made(
            tmp_path / "fleet",
            [
                *dumps("grows", 100 * MIB, 200 * MIB, 400 * MIB, boot="z"),
                *dumps("grows", 900 * MIB, boot="a"),
                *dumps("comes-and-goes", 100 * MIB, 800 * MIB, 200 * MIB),
                *dumps("shrinks", 300 * MIB, 100 * MIB),
                *dumps("once", 500 * MIB),
                *dumps("little", 100 * MIB, 101 * MIB),
            ],
        )
    )
    (one,) = frame(fleet, "growth")
    assert (one["host"], one["dumps"], one["bytes"]) == ("grows", 3, 300 * MIB)
    assert one["per_day"] == 150 * MIB
    assert one["full_seconds"] == pytest.approx((GIB - 400 * MIB) / (150 * MIB) * 86400)


def test_missing_patches_cost_the_latest_dump_of_each_host(tmp_path: Path) -> None:
    stalled = [("patch", "p", 0.0)]
    dumps = [
        Target("1", "a", 0, patches={"p": 9 * MIB}),
        Target("2", "a", 1, patches={"p": 2 * MIB, "free": 0.0}, features=stalled),
        Target("3", "b", 0, patches={"p": 1 * MIB}),
        Target("4", "c", 0, patches={"p": float("nan")}, release="5.10"),
    ]
    fleet = Report(made(tmp_path / "fleet", dumps))
    rows = {(row["patch"], row["release"]): row for row in frame(fleet, "missing_patches")}
    assert rows["p", "6.1"]["cost_bytes"] == 3 * MIB
    assert (rows["p", "6.1"]["hosts"], rows["p", "6.1"]["concerned"]) == (2, 2)
    assert (rows["p", "5.10"]["hosts"], rows["p", "5.10"]["concerned"]) == (1, 0)
    assert fleet.brief("missing_patches").frame["patch"].tolist() == ["p"]
    assert "free" in {patch for patch, _ in rows}


def test_show_has_the_representative_then_those_that_differ(report: Report) -> None:
    cause = report.causes[0]
    result = report.dumps(report.cause(cause.id[:6]))
    dumps = result.tables["dumps"].frame
    assert dumps["target"].tolist() == [f"/srv/{name}/vmcore" for name in "132"]
    assert dumps["more"].tolist() == ["", "x", ""]
    assert [gap.count for gap in result.gaps] == [1]


@pytest.mark.parametrize("name", ["", "zz", "\x1b[31m"])
def test_show_of_another_name_is_refused(report: Report, name: str) -> None:
    with pytest.raises(FleetError) as error:
        report.cause(name)
    assert str(error.value).isprintable()


def test_only_dumps_since_a_day(report: Report) -> None:
    recent = Report(report.store, "2026-01-03")
    assert recent.result.summary["reports"].value == 2
    assert [each.dumps for each in recent.causes] == [2]
    assert recent.show_command(recent.causes[0]).endswith(" --since 2026-01-03")
    assert Report(report.store, "2027-01-01").facts == [
        ("Read", "no target since 2027-01-01; the last dump is of 2026-01-04 00:00")
    ]


def test_since_is_a_day(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fleet", "report", "x", "--since", "\x1b[31m"]) == Exit.USAGE
    assert "\x1b" not in capsys.readouterr().err


FACES: tuple[list[str], ...] = (["--json"], ["--top", "0"], ["--all"])
Capture = pytest.CaptureFixture[str]


def output(capsys: Capture, *words: str) -> str:
    capsys.readouterr()
    assert cli.main(["fleet", *words]) in (Exit.DONE, Exit.INCOMPLETE)
    return capsys.readouterr().out


@pytest.mark.parametrize("targets", [[], [Target("1")], [failed("1", "bad")]])
def test_small_stores_at_each_face(targets: list[Target], tmp_path: Path, capsys: Capture) -> None:
    store, page = made(tmp_path / "fleet", targets), tmp_path / "page.html"
    status = Exit.INCOMPLETE if any(each.row for each in targets) else Exit.DONE
    for face in FACES:
        assert cli.main(["fleet", "report", str(store), *face]) == status
    output(capsys, "report", str(store), "--html", str(page))
    assert "</html>" in page.read_text()


def hostile() -> list[Target]:
    findings = {HOSTILE: "critical"}
    names = [f"{number}{HOSTILE}" for number in range(2)]
    return [
        *(
            Target(
                name, HOSTILE, boot=HOSTILE, release=HOSTILE, findings=findings,
                patches={HOSTILE: 1e6}, figures={HOSTILE: 1}, features=[("panic", HOSTILE, 3.0)],
                row={"panic": HOSTILE},
            )
            for name in names
        ),
        failed("f", HOSTILE, HOSTILE),
    ]  # fmt: skip


def test_hostile_names_are_inert_at_each_face(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "printable", str)  # a store that kcensus did not write
    store, page = made(tmp_path / "fleet", hostile()), tmp_path / "page.html"
    document = json.loads(output(capsys, "report", str(store), "--json"))
    (cause,) = document["tables"]["causes"]
    assert cause["command"] == ""
    for words in (*(["report", str(store), *face] for face in FACES),
                  ["show", cause["cause"], str(store)]):  # fmt: skip
        text = output(capsys, *words)
        assert all(line.isprintable() for line in text.splitlines())
        assert "x1b[31m<script>[red]" in text
    output(capsys, "report", str(store), "--html", str(page))
    text = page.read_text()
    assert text.count("<script>") == 1
    assert "&lt;script&gt;" in text
    assert all(each not in text for each in ("\x1b", "\u202e"))


@pytest.mark.parametrize(
    ("target", "debug_info", "command"),
    [
        ("/srv/vmcore", "", "kcensus report /srv/vmcore"),
        ("/srv/vmcore", "/debug:/a b", "kcensus report /srv/vmcore -s /debug -s '/a b'"),
        ("/srv/a b", "debuginfod", "kcensus report '/srv/a b' --debuginfod"),
        ("/srv/vmcore", "/x; rm", "kcensus report /srv/vmcore -s '/x; rm'"),
        ("/srv/vmcore", "\x1b", ""),
        ("\x1b", "", ""),
    ],
)
def test_a_dump_is_opened_with_its_debug_info(target: str, debug_info: str, command: str) -> None:
    assert opening(target, debug_info) == command


def test_each_failed_path_has_a_row(report: Report) -> None:
    assert [row["target"] for row in frame(report, "failed")] == [
        "/srv/8/vmcore", "/srv/9/vmcore", "/srv/10/vmcore",
    ]  # fmt: skip


def test_missing_types_are_a_reason_per_kernel(tmp_path: Path) -> None:
    dumps = [
        replace(one, release=release)
        for name, release in (("1", "4.18.0"), ("2", "4.18.0"), ("3", "4.19.40"))
        for one in [failed(name, f"debug info of kernel {release} is missing", "types")]
    ]
    both = frame(Report(made(tmp_path / "fleet", dumps)), "failures")
    assert [(row["targets"], row["error"]) for row in both] == [
        (2, "debug info of kernel 4.18.0 is missing"),
        (1, "debug info of kernel 4.19.40 is missing"),
    ]


def test_each_cause_names_a_host_on_a_line(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # commands have the path of the store, and are not broken
    dumps = [
        Target(f"{n}", f"host-{n}", findings={f"kind-{n}{'x' * 300}": "critical"}) for n in range(9)
    ]
    made(tmp_path / "fleet", dumps)
    text = output(capsys, "report", "fleet")
    assert all(f"On host-{n}:" in text for n in range(9))
    assert max(map(len, text.splitlines())) <= 100


def test_each_dump_has_its_host_and_cause(report: Report) -> None:
    first, second = (each.id for each in report.causes)
    rows = {str(row["target"]).split("/")[2]: row for row in frame(report, "dumps")}
    assert {name: (row["host"], row["cause"], row["severity"]) for name, row in rows.items()} == {
        "1": ("web", first, "warning"), "2": ("db", first, "critical"),
        "3": ("db", first, "warning"), "4": ("nfs", second, "critical"),
        "5": ("ok", "", ""), "6": ("part", "", ""),
    }  # fmt: skip
    assert [*rows][:2] == ["2", "4"]
    assert (rows["6"]["state"], rows["4"]["time"]) == ("incomplete", "2026-01-02 00:00")


def test_each_cause_names_some_of_its_hosts(tmp_path: Path, capsys: Capture) -> None:
    dumps = [Target(f"{n}", f"host-{n}", findings={"x": "critical"}) for n in range(7)]
    report = Report(made(tmp_path / "fleet", dumps))
    text = output(capsys, "report", str(report.store))
    assert sum(f"host-{n}" in text for n in range(7)) == 3
    assert report.causes[0].named_hosts in text


def test_the_page_has_each_failed_path_once_below_the_causes(
    report: Report, tmp_path: Path, capsys: Capture
) -> None:
    output(capsys, "report", str(report.store), "--html", str(tmp_path / "page.html"))
    _, main = (tmp_path / "page.html").read_text().replace("<wbr>", "").split('id="causes"')
    assert [main.count(f"/srv/{name}/vmcore") for name in (8, 9, 10)] == [1, 1, 1]


def test_a_table_is_shown_alone(report: Report, capsys: Capture) -> None:
    text = output(capsys, "report", str(report.store), "--table", "failed")
    assert text.startswith("Paths without a report\n")
    assert "Summary" not in text
    words = ["show", report.causes[0].id, str(report.store), "--table", "dumps"]
    assert output(capsys, *words).startswith("Dumps of this cause\n")


def test_the_page_has_the_dumps_of_each_cause(
    report: Report, tmp_path: Path, capsys: Capture
) -> None:
    output(capsys, "report", str(report.store), "--html", str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text().replace("<wbr>", "")
    assert "<title>Reports in the store" in text
    for name in "1234":
        assert f"kcensus report /srv/{name}/vmcore" in text
    for name in ("8", "9", "10"):
        assert f"/srv/{name}/vmcore" in text


def test_files_of_a_cause_have_rows(tmp_path: Path, capsys: Capture) -> None:
    store = made(tmp_path / "fleet", [Target("1", findings={"x": "critical"})])
    (cause,) = json.loads(output(capsys, "report", str(store), "--json"))["tables"]["causes"]
    output(capsys, "show", cause["cause"], str(store), "--csv", str(tmp_path / "csv"))
    lines = {each.name: each.read_text().count("\n") for each in (tmp_path / "csv").glob("*.csv")}
    assert {*lines} == {"dumps.csv", "summary.csv"}
    assert lines["dumps.csv"] == 2


def test_a_store_in_place_of_a_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fleet", "show", str(tmp_path), "1234abcd"]) == Exit.USAGE
    assert "CAUSE" in capsys.readouterr().err
