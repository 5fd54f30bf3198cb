# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus doctor`` on real dumps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcensus import cli
from kcensus.analyses import analyses
from kcensus.sources.formats.coverage import coverage
from tests.lab import build, symbols
from tests.vm.cases import command


@pytest.mark.parametrize("form", ["elf", "kdump-elf", "kdump-lzo", "kdump-zlib"])
def test_coverage_of_every_format(form: str) -> None:
    dump = build("6.12" if form == "elf" else "6.1", "negatives")
    memory = coverage(dump.formats[form])
    assert memory is not None
    total = int(dump.truth["meminfo"].split()[1]) * 1024
    # The kernel and its page array are not counted as its total.
    assert total < memory.memory_bytes < 1.1 * total
    if form.endswith("elf"):
        assert memory.saved_bytes == memory.memory_bytes
        assert not memory.filtered
    else:
        assert memory.saved_bytes < memory.memory_bytes / 2
        assert "free pages" in memory.filtered


def test_a_dump_with_debug_info(capsys: pytest.CaptureFixture[str]) -> None:
    dump = build("6.1", "negatives")
    status, document, _ = command(
        capsys, "doctor", str(dump.formats["kdump-lzo"]), *symbols(dump.debug)
    )
    assert status == 0
    assert document["kernel"] == dump.release
    assert "lzo" in document["summary"]["format"]
    assert [row["analysis"] for row in document["tables"]["analyses"]] == list(analyses())
    assert {row["works"] for row in document["tables"]["analyses"]} == {"yes"}
    assert str(dump.vmlinux) in [row["place"] for row in document["tables"]["debug_info"]]


@pytest.mark.usefixtures("without_btf")
def test_without_debug_info_of_modules_the_package_is_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dump = build("6.1", "mixed")
    status, document, _ = command(
        capsys, "doctor", str(dump.formats["elf"]), "-s", str(dump.vmlinux)
    )
    assert status == 0
    (gap,) = document["gaps"]
    assert gap["what"] == "debug info of modules dm_delay, dm_mod, dm_snapshot, xfs"
    assert json.dumps(document).count("apt install") == 1
    missing = {row["analysis"]: row["missing"] for row in document["tables"]["analyses"]}
    assert missing["kcopyd"] == "debug info of modules dm_delay, dm_mod, dm_snapshot"


@pytest.mark.usefixtures("without_btf")
def test_without_debug_info_it_says_what_the_file_is_and_what_to_install(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dump = build("6.1", "negatives")
    status, document, err = command(capsys, "doctor", str(dump.formats["kdump-zlib"]))
    assert status == 3
    assert "zlib" in document["summary"]["format"]
    assert f"linux-image-{dump.release}-dbg" in err
    assert len(err.splitlines()) == 1


def test_a_capsule(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dump = build("6.1", "negatives")
    path = tmp_path / "case.capsule"
    create = ["capsule", "create", str(dump.formats["kdump-zlib"]), str(path)]
    assert cli.main([*create, "--analyses", "slab", *symbols(dump.debug)]) == 0
    capsys.readouterr()
    status, document, _ = command(capsys, "doctor", str(path))
    assert status == 0
    assert document["summary"]["recorded_for"] == "slab"
    assert document["summary"]["digests"] == "all match"
    works = {row["analysis"]: row["works"] for row in document["tables"]["analyses"]}
    assert works.pop("slab") == "yes"
    assert set(works.values()) <= {"no"}

    data = bytearray(path.read_bytes())
    data[100] ^= 1  # among the pages
    path.write_bytes(data)
    status, document, err = command(capsys, "doctor", str(path))
    assert status == 3
    assert "pages" in document["summary"]["digests"]
    assert {row["works"] for row in document["tables"]["analyses"]} == {"no"}
    assert "is corrupt" in err
