# SPDX-License-Identifier: LGPL-2.1-or-later
"""The archive of ``kcensus collect`` on a recorded kernel."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kcensus import cli, samples
from kcensus.analyses import analyses
from kcensus.commands import Exit

_ROOT = "kcensus-case/"
_FORMS = {"1/report.txt", "1/report.json", "1/report.html"}


def unpacked(path: Path) -> dict[str, bytes]:
    """Return the files of an archive by name, without the directory that all are in."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        data = stream.read()
    files = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            assert member.isreg()
            assert (member.mode, member.uid, member.uname) == (0o600, 0, "")
            content = tar.extractfile(member)
            assert content is not None
            files[member.name.removeprefix(_ROOT)] = content.read()
    return files


def collected(*words: str | Path) -> int:
    return cli.main(["collect", *map(str, words)])


def manifest_of(files: dict[str, bytes]) -> Any:
    return json.loads(files["manifest.json"])


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collect") / "case.tar.zst"
    assert collected("sample-waits", "-o", path, "--max-time", "10m") == Exit.DONE
    return path


def test_all_is_there(archive: Path) -> None:
    files = unpacked(archive)
    assert {*files} == {"README.txt", "manifest.json", "1/case.capsule", *_FORMS}
    capsule = samples.capsule("sample-waits")
    assert capsule is not None
    assert files["1/case.capsule"] == capsule.read_bytes()
    assert archive.stat().st_mode & 0o777 == 0o600
    assert os.listdir(archive.parent) == [archive.name]


def test_the_manifest_has_all_files(archive: Path) -> None:
    files = unpacked(archive)
    manifest = manifest_of(files)
    listed = {each["name"]: (each["bytes"], each["sha256"]) for each in manifest["files"]}
    assert listed == {
        name: (len(data), hashlib.sha256(data).hexdigest())
        for name, data in files.items()
        if name != "manifest.json"
    }
    assert manifest["left_out"] == []
    (target,) = manifest["targets"]
    assert target["analyses"] == dict.fromkeys([*target["analyses"]], "done")
    assert {*target["analyses"]} == {*analyses(), "patches"}
    assert {*analyses()} <= {*target["seconds"]}
    assert {"kcensus", "drgn", "python", "kernel", "distribution"} <= {*manifest["versions"]}
    assert os.uname().nodename not in {*manifest["versions"]["kernel"].split()}


def test_the_report_is_that_of_the_command(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", "sample-waits", "--json"]) == Exit.DONE
    assert unpacked(archive)["1/report.json"].decode() == capsys.readouterr().out


def test_an_old_file_stays(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = archive.read_bytes()
    assert collected("sample-waits", "-o", archive) == Exit.USAGE
    assert "--force" in capsys.readouterr().err
    assert archive.read_bytes() == before


@pytest.mark.slow
def test_limits_leave_out_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "case.tar.zst"
    assert collected("sample", "-o", path, "--max-size", "1M", "--max-time", "10m") == Exit.DONE
    assert path.stat().st_size <= 1 << 20
    files = unpacked(path)
    assert {*files} > _FORMS
    assert [each["what"] for each in manifest_of(files)["left_out"]] == ["1/case.capsule"]
    for told in (files["README.txt"].decode(), capsys.readouterr().err):
        assert "1/" in told
        assert "case.capsule" in told


@pytest.mark.slow
def test_nothing_in_time(tmp_path: Path) -> None:
    """Nothing takes the place of an old archive."""
    path = tmp_path / "case.tar.zst"
    path.write_text("old")
    assert collected("sample", "-o", path, "--max-time", "1s", "--force") == Exit.TARGET
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"no dump", Exit.TARGET), (b"", Exit.TARGET), (bytes(999), Exit.TARGET), (None, Exit.USAGE)],
)
@pytest.mark.parametrize("options", [(), ("--redact", "names")])
def test_a_target_that_is_none(
    content: bytes | None,
    status: Exit,
    options: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, target = tmp_path / "case.tar.zst", tmp_path / "vmcore\x1b[31m"
    path.write_text("old")
    if content is not None:
        target.write_bytes(content)
    assert collected(target, "-o", path, "--force", *options) == status
    assert path.read_text() == "old"
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 2)
    assert "\x1b" not in said.err


@pytest.mark.parametrize(
    "words",
    [
        ["sample", "--redact-key", "key"],
        ["sample", "--keep", "log"],
        ["sample", "--full", "--max-size", "5M"],
        ["sample", "-o", "no/such/directory"],
        ["sample", "--max-time", "soon"],
        ["sample", "--max-time", "0"],
        ["sample", "-o", "-"],
    ],
)
def test_wrong_usage(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert collected(*words) == Exit.USAGE
    assert os.listdir(tmp_path) == []
