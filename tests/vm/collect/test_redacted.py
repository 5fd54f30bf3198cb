# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus collect`` on a vmcore: the archive of a redacted case has no name of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcensus import cli
from kcensus.analyses import analyses
from kcensus.capsule import Recording
from kcensus.commands import Exit
from kcensus.reports import Report, Section
from kcensus.results import Result
from kcensus.sources import Target
from tests.lab import Dump
from tests.sample.collect.test_archive import manifest_of, unpacked
from tests.unit.capsules import take_apart

pytestmark = pytest.mark.newest


@pytest.fixture(scope="module")
def archives(
    mixed_dump: Dump, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The files of a case as it is, and redacted."""
    directory, made = tmp_path_factory.mktemp("collect"), []
    for words in ([], ["--redact", "names"]):
        out = directory / f"{len(words)}.tar.zst"
        assert cli.main(["collect", str(mixed_dump.path), "-o", str(out), "--full", *words]) == 0
        made.append(unpacked(out))
    return made[0], made[1]


def test_the_capsule_is_that_of_one_recording(
    archives: tuple[dict[str, bytes], dict[str, bytes]], tmp_path: Path
) -> None:
    plain, _ = archives
    assert manifest_of(plain)["left_out"] == []
    path = tmp_path / "case.capsule"
    path.write_bytes(plain["1/case.capsule"])
    again = tmp_path / "again.json"
    assert cli.main(["report", str(path), "--json", str(again)]) == 0
    replayed, report = json.loads(again.read_text()), json.loads(plain["1/report.json"])
    for name in analyses():
        assert replayed["analyses"][name]["summary"] == report["analyses"][name]["summary"]


def test_no_name_is_left(archives: tuple[dict[str, bytes], dict[str, bytes]]) -> None:
    plain, redacted = archives
    report = json.loads(plain["1/report.json"])
    tables = report["analyses"]["dentries"]["tables"]
    # Those of the kernel, in /sys and the like, are kept; a single name may be a word of ours.
    paths = {row["directory"] for row in tables["directories"]}
    names = {path for path in paths if path.startswith("/srv/") and path.count("/") > 1}
    assert len(names) > 3
    for name in names:
        having = [file for file, data in redacted.items() if name.encode() in data]
        assert having == [], name


def test_figures_stay(archives: tuple[dict[str, bytes], dict[str, bytes]]) -> None:
    plain, redacted = (json.loads(each["1/report.json"]) for each in archives)
    for name in ("slab", "memcgs", "kcopyd", "waits"):
        assert plain["analyses"][name]["summary"] == redacted["analyses"][name]["summary"]


def test_the_path_stays_here(
    mixed_dump: Dump, archives: tuple[dict[str, bytes], dict[str, bytes]]
) -> None:
    _, redacted = archives
    parts = take_apart(redacted["1/case.capsule"])
    everything = {
        **redacted,
        **parts.sections,
        "memory": b"".join(parts.blocks),
        "of the capsule": json.dumps(parts.manifest).encode(),
    }
    directory = mixed_dump.path.parent.name.encode()
    assert [name for name, data in everything.items() if directory in data] == []


def test_a_small_one_has_the_report(
    mixed_dump: Dump, archives: tuple[dict[str, bytes], dict[str, bytes]], tmp_path: Path
) -> None:
    out = tmp_path / "case.tar.zst"
    words = ["--redact", "names", "--max-size", "1M", "--max-time", "10m"]
    assert cli.main(["collect", str(mixed_dump.path), "-o", str(out), *words]) == Exit.DONE
    assert out.stat().st_size <= 1 << 20
    files = unpacked(out)
    assert {*files} == {*archives[1]} - {"1/case.capsule"}
    assert [each["what"] for each in manifest_of(files)["left_out"]] == ["1/case.capsule"]


@pytest.mark.parametrize("seconds", [15, 30])
def test_a_short_one_marks_what_it_lacks(mixed_dump: Dump, seconds: int, tmp_path: Path) -> None:
    out = tmp_path / "case.tar.zst"
    words = ["--redact", "names", "--max-time", str(seconds)]
    status = cli.main(["collect", str(mixed_dump.path), "-o", str(out), *words])
    if status == Exit.TARGET:  # a busy machine
        assert not out.exists()
        return
    files = unpacked(out)
    assert "1/report.txt" in files
    (target,) = manifest_of(files)["targets"]
    assert {*target["analyses"]} == {*analyses(), "patches"}
    lacking = {name for name, why in target["analyses"].items() if why != "done"}
    assert status == (Exit.INCOMPLETE if lacking else Exit.DONE)
    if "1/report.json" in files:
        assert {*json.loads(files["1/report.json"])["failed"]} == lacking


def test_sentences_of_failures_stay_here(mixed_target: Target, tmp_path: Path) -> None:
    recording = Recording(mixed_target, redact=["names"])
    head = Result("report", "vmcore", mixed_target.kernel, False, None)
    section = Section("slab", None, "no object acme-secret-host", kind="lacks debug info")
    path = tmp_path / "case.capsule"
    assert recording.write(path, Report(head, [section])).failed["slab"] == section.error
    manifest = take_apart(path.read_bytes()).manifest
    assert manifest["failed"] == {"slab": "lacks debug info"}
