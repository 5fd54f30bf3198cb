# SPDX-License-Identifier: LGPL-2.1-or-later
"""The samples give the figures of their guests' kernels, without debug info, wherever installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcensus import cli
from kcensus.analyses import analyses
from kcensus.render.schema import error
from kcensus.samples import CAPSULES, DIRECTORY
from tests.running import document, recorded_analyses
from tests.sample.conftest import IO, NAMES, Sample, open_sample

EVERY = (*NAMES, IO)


@pytest.mark.parametrize(
    ("sample", "name"),
    [(sample, name) for sample in EVERY for name in recorded_analyses(sample)],
    indirect=["sample"],
)
def test_every_recorded_analysis_runs(sample: Sample, name: str) -> None:
    result = sample.run(name)
    assert result.summary or result.nothing
    assert not result.gaps


@pytest.mark.parametrize("sample", EVERY, indirect=True)
def test_it_is_the_kernel_of_the_guest(sample: Sample) -> None:
    assert sample.target.kernel == sample.truth["release"]


def test_all_are_known_and_small() -> None:
    files = [*DIRECTORY.glob("*.capsule")]
    assert {path.stem for path in files} == {*CAPSULES}
    assert sum(path.stat().st_size for path in files) < 13_000_000


def test_slab_counts_what_slabinfo_counted(sample: Sample) -> None:
    frame = sample.run("slab").tables["caches"].frame.set_index("cache")
    compared = 0
    for line in sample.truth["slabinfo.4"].splitlines()[2:]:
        name, _, objects, *rest = line.split()
        if name in frame.index:
            slabs = int(rest[rest.index("slabdata") + 2])
            # Between slabinfo and the dump a few caches change, unless the guest is idle.
            own = frame.loc[name, ["objects_total", "slabs"]]
            compared += [*own] == [int(objects), slabs]
    assert compared > 0.9 * len(frame)


def test_report_has_findings_and_all_recorded_analyses(sample: Sample) -> None:
    report = sample.document
    recorded = [*sample.analyses, "patches"]
    assert [name for name in report["analyses"] if name in recorded] == recorded
    assert report["findings"]


def test_a_file_of_that_name_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sample").write_text("not a dump\n")
    assert cli.main(["slab", "sample"]) == 3


@pytest.mark.slow
def test_the_report_fits_a_terminal(
    sample: Sample, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["report", sample.name, "--full", "--top", "0"]) == 0
    wide = {line.strip() for line in capsys.readouterr().out.splitlines() if len(line) > 100}
    remedies = [remedy for each in sample.document["findings"] for remedy in each["remedies"]]
    commands = [line for remedy in remedies for line in remedy["command"]]
    # A quoted word of a command is not split, so that it can be copied.
    for line in wide:
        assert any(line.removesuffix("\\").strip() in command for command in commands)


@pytest.mark.slow
def test_the_report_is_about_one_screen(
    sample: Sample, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["report", sample.name]) == 0
    # A line for each analysis, and what all of them have to say.
    assert len(capsys.readouterr().out.splitlines()) <= 59 + len(analyses())


def test_a_merged_cache_is_known_by_its_objects() -> None:
    (finding,) = open_sample("sample").run("kcopyd").findings
    assert finding.users == {
        "slab:skbuff_ext_cache": "bios",
        "slab:fsnotify_mark_connector": "exceptions",
        "slab:kernfs_node_cache": "exceptions",
    }
    assert {*finding.users} < {*finding.memory}


def check_schema(text: str) -> None:
    found = json.loads(text, parse_int=lambda digits: _exact_in_a_double(int(digits)))
    assert text.startswith('{\n  "schema": 3,\n')
    assert error(found) == ""
    found["surprise"] = 1
    del found["schema"]
    assert error(found) != ""


def _exact_in_a_double(number: int) -> int:
    assert abs(number) <= 1 << 53
    return number


@pytest.mark.ends
@pytest.mark.parametrize("name", recorded_analyses())
def test_results_follow_the_schema(name: str) -> None:
    check_schema(document(open_sample("sample").run(name)))


@pytest.mark.parametrize(
    "words",
    [
        ["slab", "sample"],
        ["patches"],
        ["patches", "show", "list-lru-memory"],
        pytest.param(["patches", "sample"], marks=pytest.mark.slow),
        pytest.param(["diff", "sample", "sample-after"], marks=pytest.mark.slow),
        ["doctor", "sample"],
    ],
    ids=" ".join,
)
def test_documents_follow_the_schema(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words, "--json"]) == 0
    check_schema(capsys.readouterr().out)
