# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debug info of a vmcore of RHEL 7.9, whose VMCOREINFO has no build ID, is found by its banner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.slabs import ScanReport
from kcensus.sources import TargetError, open_target
from tests.running import document
from tests.sample.guest import Guest
from tests.sample.rhel7 import vmcores
from tests.sample.rhel7.conftest import DATA, PACK
from tests.unit.sources.packs.synthetic import put_together, take_apart
from tests.unit.sources.test_open import vmlinux

OTHERS = {
    "another build": vmcores.BANNER.replace(b"#5 ", b"#6 "),
    "RHEL 8.1": vmcores.BANNER.replace(b"3.10.0", b"4.18.0-147.el8.x86_64"),
    "4.19": vmcores.BANNER.replace(b"3.10.0", b"4.19.40"),
}


def refusal(vmcore: Path, *symbols: Path) -> str:
    with pytest.raises(TargetError) as caught:
        open_target(vmcore, symbols)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def kernel(path: Path, banner: bytes) -> Path:
    """Write a vmlinux without debug info, with its banner where RHEL 7.9 has it."""
    return vmlinux(path, None, banner, banner_address=vmcores.LINKED)


def pack(path: Path, banner: bytes) -> Path:
    """Write the type pack of RHEL 7.9, as of a kernel with another banner."""
    head, parts = take_apart(PACK.read_bytes())
    assert head["contents"] == [[vmcores.LINKED, vmcores.BANNER.hex()]]
    head["contents"] = [[vmcores.LINKED, banner.hex()]]
    del head["parts"]
    path.write_bytes(put_together(head, parts))
    return path


def test_the_vmlinux_with_the_banner_is_of_this_build(vmcore: Path, tmp_path: Path) -> None:
    # It is taken as the right one, and only its missing debug info is a reason to refuse it.
    assert "its debug info was stripped" in refusal(
        vmcore, kernel(tmp_path / "vmlinux", vmcores.BANNER)
    )


@pytest.mark.parametrize("other", OTHERS)
def test_a_vmlinux_with_another_banner_is_refused(vmcore: Path, tmp_path: Path, other: str) -> None:
    path, banner = tmp_path / "vmlinux", OTHERS[other]
    release, version = banner.split()[2].decode(), f"#{banner.decode().strip().partition('#')[2]}"
    sentence = refusal(vmcore, kernel(path, banner))
    assert sentence.startswith(f"{path} ({release} {version}): does not belong to this kernel, ")
    # With both versions, a reader sees what differs; and what to do comes last.
    assert "3.10.0 (#5 SMP Mon Nov 23 10:14:21 UTC 2026)" in sentence
    assert sentence.endswith("find its vmlinux of exactly that build and pass it with -s")


def test_the_right_one_of_a_directory_is_found(vmcore: Path, tmp_path: Path) -> None:
    for number, banner in enumerate([*OTHERS.values(), vmcores.BANNER]):
        kernel(tmp_path / f"vmlinux-{number}", banner)
    sentence = refusal(vmcore, tmp_path)
    assert sentence.startswith(f"{tmp_path}/vmlinux-{len(OTHERS)} (3.10.0")
    assert "stripped" in sentence


FORMATS = {"vmcore": "ELF", "kdump": "kdump-compressed (zlib, dump level 31)"}


@pytest.mark.parametrize("form", ["vmcore", pytest.param("kdump", marks=pytest.mark.slow)])
def test_analyses_answer_with_a_type_pack_as_in_the_capsule(
    form: str, mixed: Guest, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(form)
    target = open_target(path, [PACK])
    assert (target.types, target.format) == ("type pack", FORMATS[form])
    for name, analysis in analyses().items():
        result = Context.of(target).run(analysis)
        answers = [json.loads(document(each)) for each in (result, mixed.results[name])]
        assert [Path(each.pop("target")).name for each in answers] == [path.name, "mixed.capsule"]
        assert [each["machine"].pop("types") for each in answers] == ["type pack", "DWARF"]
        # The capsule is older than the load average in reports, and lacks the variable.
        assert [len(each["machine"].pop("load")) for each in answers] == [3, 0]
        assert answers[0] == answers[1], name


@pytest.mark.slow
def test_a_filtered_page_is_a_gap(mixed: Guest, tmp_path: Path) -> None:
    slab_map = mixed.kernel.slab_map
    slabs = slab_map.index(find_caches(slab_map, "struct dentry"), ScanReport())
    full = slabs[slabs.freelist == 0]
    missing = int(slab_map.pages.pfn(full.address)[0])
    path = tmp_path / "vmcore"
    vmcores.write_kdump(DATA / "mixed.capsule", path, without=frozenset([missing]))
    result = Context.of(open_target(path, [PACK])).run(analyses()["dentries"])
    assert sum(gap.count for gap in result.gaps) > 0
    lost = mixed.value("dentries", "dentries") - result.summary["dentries"].value
    assert lost == int(full.objects[0]) == 4096 // 192


@pytest.mark.parametrize("other", OTHERS)
def test_a_type_pack_of_another_build_is_refused(vmcore: Path, tmp_path: Path, other: str) -> None:
    path = pack(tmp_path / "other.kctypes", OTHERS[other])
    sentence = refusal(vmcore, path)
    banner = OTHERS[other].decode().strip()
    assert sentence.startswith(f"{path} (3.10.0 #{banner.partition('#')[2]}): ")
    assert (
        "is a type pack of another kernel than this one, 3.10.0 (#5 SMP Mon Nov 23 10:14:21 UTC "
        "2026)" in sentence
    )
    assert sentence.endswith("pass the pack or the vmlinux of exactly that build")
