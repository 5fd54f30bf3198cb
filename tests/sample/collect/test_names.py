# SPDX-License-Identifier: LGPL-2.1-or-later
"""A redacted archive has no name that its target's path or its failures have."""

from __future__ import annotations

import json
from pathlib import Path

import drgn
import pytest

from kcensus import cli, samples
from kcensus.analyses import AnalysisError
from kcensus.analyses.failures import OTHER, kind_of
from kcensus.commands import Exit
from kcensus.commands.collect.reasons import OTHER_KERNEL, of_target
from kcensus.reports import section_of
from kcensus.results import Result
from kcensus.sources import TargetError
from tests.sample.collect.test_archive import collected, unpacked
from tests.unit.capsules import put_together, take_apart

_HOST = "acme-secret-host"


def content_of(path: Path) -> dict[str, bytes]:
    """Return the files of an archive by name, and the parts of its capsules, decompressed."""
    files = unpacked(path)
    for name, data in [*files.items()]:
        if name.endswith(".capsule"):
            parts = take_apart(data)
            files[f"{name}: manifest"] = json.dumps(parts.manifest).encode()
            files[f"{name}: memory"] = b"".join(parts.blocks)
            files |= {f"{name}: {part}": content for part, content in parts.sections.items()}
    return files


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (LookupError(f"no object {_HOST}"), "lacks debug info"),
        (drgn.FaultError(_HOST, 1), "memory is unreadable or missing"),
        (ValueError(_HOST), OTHER),
    ],
)
def test_a_failure_has_a_class(cause: Exception, kind: str) -> None:
    def fail() -> Result:
        raise AnalysisError(str(cause)) from cause

    made = section_of("slab", fail)
    assert _HOST in made.error
    assert made.kind == kind == kind_of(cause)


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        (
            f"/srv/rootfs/{_HOST}: does not belong to this kernel, 4.18.0; pass the vmlinux",
            OTHER_KERNEL,
        ),
        ("x.kctypes: is a type pack of another kernel", OTHER_KERNEL),
        (
            "/srv/rootfs/v: permission denied; run as root or make it readable",
            "may not be read by this ",
        ),
        ("debug info of kernel 4.18.0 is missing; install it with `sudo dnf`", "lacks debug info"),
        ("needs root; run `sudo kcensus`", "needs root"),
        ("permission denied for /proc/kcore, although root may read it", "/proc/kcore cannot be"),
        (f"/srv/rootfs/{_HOST}: what now", OTHER),
    ],
)
def test_a_target_that_cannot_be_read_has_a_class(sentence: str, kind: str) -> None:
    assert of_target(TargetError(sentence), None).startswith(kind)


@pytest.mark.slow
def test_the_path_of_a_redacted_capsule_stays_here(tmp_path: Path) -> None:
    sample = samples.capsule("sample-waits")
    assert sample is not None
    path = tmp_path / _HOST / "case.capsule"
    path.parent.mkdir()
    parts = take_apart(sample.read_bytes())
    parts.manifest["redacted"] = ["names"]
    path.write_bytes(put_together(parts))
    out = tmp_path / "case.tar.zst"
    assert collected(path, "-o", out, "--redact", "names") == 0
    files = content_of(out)
    assert "1/report.txt" in files
    assert [name for name, data in files.items() if _HOST.encode() in data] == []


def test_a_capsule_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = samples.capsule("sample-waits")
    assert sample is not None
    parts = take_apart(sample.read_bytes())
    parts.blocks[-1] = parts.blocks[-1][: -len(_HOST)] + _HOST.encode()
    path = tmp_path / "case.capsule"
    path.write_bytes(put_together(parts))
    assert cli.main(["capsule", "search", str(path), "acme-other-host"]) == Exit.DONE
    assert cli.main(["capsule", "search", str(path), "acme-other-host", _HOST]) == Exit.FINDING
    assert _HOST in capsys.readouterr().out
    assert cli.main(["capsule", "search", str(tmp_path / "none"), _HOST]) == Exit.TARGET
    assert cli.main(["capsule", "search", str(path)]) == Exit.USAGE
