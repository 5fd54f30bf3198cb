# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus collect`` on a vmcore: the archive of a redacted case has no name of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcensus import cli
from kcensus.analyses import analyses
from tests.lab import Dump
from tests.sample.collect.test_archive import manifest_of, unpacked

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
