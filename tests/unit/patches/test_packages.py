# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which package of a distribution is the first with a patch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from kcensus.catalogue import CatalogueError, Status, load
from kcensus.catalogue.model import Distribution
from kcensus.catalogue.packages import Carried, carrier, where_fixed
from kcensus.catalogue.schema import read_distributions, read_file
from tests.catalogue import CATALOGUE
from tests.unit.patches.test_catalogue import GOOD, patch_file

PACKAGED = [patch for patch in CATALOGUE.patches.values() if patch.packages]
NAMES = {each.name: each for each in CATALOGUE.distributions}
DOCS = Path(__file__).parents[3] / "docs" / "packages.md"

# Release and build as kernels have them.
KERNELS = {
    "RHEL 7": "3.10.0-1160.el7.x86_64 #1 SMP Tue Aug 18 14:50:17 EDT 2020",
    "RHEL 8": "4.18.0-372.9.1.el8.x86_64 #1 SMP Fri Apr 15 22:12:19 EDT 2022",
    "RHEL 9": "5.14.0-70.13.1.el9_0.aarch64 #1 SMP PREEMPT Thu Apr 14 12:42:38 EDT 2022",
    "RHEL 10": "6.12.0-55.9.1.el10_0.x86_64 #1 SMP PREEMPT_DYNAMIC Tue Mar 25 2025",
    "UEK 4": "4.1.12-124.48.6.el7uek.x86_64 #2 SMP",
    "UEK 5": "4.14.35-2047.518.4.el7uek.x86_64 #2 SMP",
    "UEK 6": "5.4.17-2136.335.4.el8uek.x86_64 #3 SMP",
    "UEK 7": "5.15.0-100.96.32.el9uek.x86_64 #2 SMP",
    "UEK 8": "6.12.0-100.28.2.el10uek.x86_64 #1 SMP PREEMPT_DYNAMIC",
    "Debian 10": "4.19.0-27-amd64 #1 SMP Debian 4.19.316-1 (2024-06-25)",
    "Debian 11": "5.10.0-43-cloud-amd64 #1 SMP Debian 5.10.251-5 (2026-05-15)",
    "Debian 12": "6.1.0-25-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.1.106-3 (2024-08-26)",
    "Debian 13": "6.12.38+deb13-arm64 #1 SMP Debian 6.12.38-1 (2025-07-16)",
    "Ubuntu 16.04": "4.4.0-22-generic #40-Ubuntu SMP Thu May 12 22:03:46 UTC 2016",
    "Ubuntu 18.04": "4.15.0-213-generic #224-Ubuntu SMP Mon Jun 19 13:30:12 UTC 2023",
    "Ubuntu 20.04": "5.4.0-216-generic #236-Ubuntu SMP Fri Apr 11 19:53:21 UTC 2025",
    "Ubuntu 22.04": "5.15.0-125-generic #135-Ubuntu SMP Fri Sep 27 13:53:58 UTC 2024",
    "Ubuntu 24.04": "6.8.0-47-lowlatency #47-Ubuntu SMP PREEMPT_DYNAMIC",
    "SLES 12 SP5": "4.12.14-122.124-default #1 SMP Thu Jun 2 2022",
    "SLES 15 SP1": "4.12.14-197.108-default #1 SMP",
    "SLES 15 SP2": "5.3.18-24.107-default #1 SMP",
    "SLES 15 SP3": "5.3.18-150300.59.93-default #1 SMP Tue Sep 6 2022",
    "SLES 15 SP4": "5.14.21-150400.24.100-default #1 SMP PREEMPT_DYNAMIC",
    "SLES 15 SP5": "5.14.21-150500.55.83-default #1 SMP PREEMPT_DYNAMIC",
    "SLES 15 SP6": "6.4.0-150600.23.25-default #1 SMP PREEMPT_DYNAMIC",
    "SLES 15 SP7": "6.4.0-150700.53.3-default #1 SMP PREEMPT_DYNAMIC",
    "Amazon Linux 2 (4.14)": "4.14.355-276.618.amzn2.x86_64 #1 SMP",
    "Amazon Linux 2 (5.4)": "5.4.290-201.394.amzn2.x86_64 #1 SMP",
    "Amazon Linux 2 (5.10)": "5.10.236-228.935.amzn2.x86_64 #1 SMP",
    "Amazon Linux 2 (5.15)": "5.15.178-120.180.amzn2.aarch64 #1 SMP",
    "Amazon Linux 2023 (6.1)": "6.1.134-152.225.amzn2023.x86_64 #1 SMP PREEMPT_DYNAMIC",
    "Amazon Linux 2023 (6.12)": "6.12.22-27.96.amzn2023.aarch64 #1 SMP PREEMPT_DYNAMIC",
}
# The kernels of the media, whose versions are shorter than those of updates, and others.
MORE_KERNELS = (
    ("SLES 12 SP5", "4.12.14-120-default #1 SMP"),
    ("SLES 15 SP1", "4.12.14-195-default #1 SMP"),
    ("SLES 15 SP1", "4.12.14-150100.197.201-default #1 SMP"),
    ("SLES 15 SP2", "5.3.18-22-default #1 SMP"),
    ("SLES 15 SP2", "5.3.18-150200.24.203-default #1 SMP"),
    ("SLES 15 SP3", "5.3.18-57-default #1 SMP"),
    ("SLES 15 SP3", "5.3.18-59.5-default #1 SMP"),
    ("SLES 15 SP4", "5.14.21-150400.22-default #1 SMP PREEMPT_DYNAMIC"),
    ("SLES 15 SP6", "6.4.0-150600.21-default #1 SMP PREEMPT_DYNAMIC"),
)
# Of no distribution, or of another source package, whose versions are others.
OTHERS = (
    "5.15.0-125-generic #135~20.04.1-Ubuntu SMP Mon Oct 7 13:56:22 UTC 2024",
    "5.4.0-216-generic #236~18.04.1-Ubuntu SMP Fri Apr 11 2025",
    # Either of an Ubuntu, or for the one before it.
    "5.15.0-125-generic",
    "5.15.0-125-generic ",
    "6.1.0-25-rt-amd64 #1 SMP PREEMPT_RT Debian 6.1.106-3 (2024-08-26)",
    "6.12.38+deb13-rt-arm64 #1 SMP PREEMPT_RT Debian 6.12.38-1 (2025-07-16)",
    "5.3.18-22-azure #1 SMP",
    "5.15.0-1072-aws #78-Ubuntu SMP Fri Oct 11 2024",
    "4.18.0-305.rt7.72.el8.x86_64 #1 SMP PREEMPT_RT",
    "6.4.0-150600.10.17-rt #1 SMP PREEMPT_RT",
    "6.12.9+bpo-amd64 #1 SMP Debian 6.12.9-1~bpo12+1",
    "5.18.0 #1 SMP",
    "",
    "\x1b[31m4.18.0-240.el8.x86_64",
)


def row(patch: str, distribution: str) -> str:
    return where_fixed(CATALOGUE.patches[patch], KERNELS[distribution], CATALOGUE.distributions)


def test_there_is_a_kernel_of_each_distribution() -> None:
    assert list(KERNELS) == list(NAMES)


@pytest.mark.parametrize(("name", "build"), [*KERNELS.items(), *MORE_KERNELS])
def test_one_distribution_has_a_kernel(name: str, build: str) -> None:
    fitting = [each.name for each in NAMES.values() if re.match(each.kernel, build)]
    assert fitting == [name]


@pytest.mark.parametrize("build", OTHERS)
def test_other_kernels_have_no_package(build: str) -> None:
    patch = CATALOGUE.patches["list-lru-xarray"]
    assert where_fixed(patch, build, CATALOGUE.distributions) == ""


@pytest.mark.parametrize(
    ("patch", "distribution", "words"),
    [
        ("dm-snapshot-cow-in-progress", "RHEL 8", ["RHEL 8.1", "kernel-4.18.0-147.8.1.el8_1"]),
        ("bfq-wakers", "RHEL 8", ["RHEL 8.2", "kernel-4.18.0-193.el8"]),
        ("dm-snapshot-cow-in-progress", "RHEL 7", ["RHEL 7.9", "-1160.el7 or earlier"]),
        ("list-lru-xarray", "RHEL 9", ["RHEL 9.1", "kernel-5.14.0-162.6.1.el9_1"]),
        # Not in RHEL 8: the next release of the distribution that has it.
        ("list-lru-xarray", "RHEL 8", ["RHEL 8", "4.18.0-553.66.1.el8_10", "RHEL 9.1"]),
        ("list-lru-xarray", "UEK 6", ["UEK 6", "not known", "UEK 7", "5.15.0-100.96.32"]),
        ("list-lru-xarray", "Debian 11", ["Debian 11", "5.10.251-5", "Debian 12", "first release"]),
        ("fsnotify-lazy-parent-watched", "Debian 12", ["Debian 12", "linux 6.1.112-1"]),
        ("fsnotify-lazy-parent-watched", "SLES 15 SP6", ["SLES 15 SP6", "6.4.0-150600.23.30.1"]),
        ("cgroup-threadgroup-cpus-lock", "Ubuntu 20.04", ["Ubuntu 20.04", "5.4.0-136.153"]),
        ("cfq-async-starvation", "SLES 12 SP5", ["SLES 12 SP5", "first release"]),
        # Nobody has it yet.
        ("slab-obj-exts-placement", "RHEL 10", ["RHEL 10", "6.12.0-55.24.1.el10_0"]),
    ],
)
def test_packages_of_a_kernel(patch: str, distribution: str, words: list[str]) -> None:
    text = row(patch, distribution)
    places = [text.find(each) for each in words]
    assert -1 not in places
    assert places == sorted(places)
    assert len(text.split("; ")) == (2 if len(words) == 4 or words[-1] == "RHEL 9.1" else 1)


def test_what_is_in_no_mainline_kernel_has_no_packages() -> None:
    unmerged = [each for each in CATALOGUE.patches.values() if not each.is_upstream]
    assert len(unmerged) > 10
    assert [each.id for each in unmerged if each.packages] == []
    assert {row(each.id, "RHEL 9") for each in unmerged} == {""}


def test_every_row_fits_its_distribution() -> None:
    """A package of another kernel, or of one that is based on the fix, is a mistake."""
    count = 0
    for patch in CATALOGUE.patches.values():
        for known in patch.packages:
            own = NAMES[known.distribution]
            version = (known.package or known.absent_up_to).replace("linux ", "")
            version = re.sub(r"^kernel-((default|uek)-)?", "", version)
            assert version.startswith(f"{own.base}."), patch.id
            assert known.source, patch.id
            assert not known.release or known.release.split(".")[0] in own.name, patch.id
            bare = replace(patch, packages=())
            assert carrier(bare, own).carried is Carried.UNKNOWN, (patch.id, own.name)
            count += 1
    assert count > 80


def test_a_base_has_what_was_merged_before() -> None:
    patch, own = CATALOGUE.patches["bfq-wakers"], NAMES["Debian 11"]
    assert patch.release == "5.3"
    assert carrier(patch, own).carried is Carried.BASE
    assert carrier(replace(patch, release="5.10"), own).carried is Carried.BASE
    assert carrier(replace(patch, release="5.11"), own).carried is Carried.UNKNOWN
    assert carrier(replace(patch, release=""), own).carried is Carried.UNKNOWN
    assert carrier(replace(patch, status=Status.REVERTED), own).carried is Carried.UNKNOWN


ROW = '[[packages]]\ndistribution = "RHEL 8"\npackage = "kernel-4.18.0-1.el8"\nsource = "x"\n'
PACKAGE = GOOD.replace("[detect]", f"{ROW}[detect]", 1)


def test_packages_of_a_user(tmp_path: Path) -> None:
    patch_file(tmp_path, PACKAGE)
    ours = load([tmp_path], entry_points=False).patches["ours"]
    assert carrier(ours, NAMES["RHEL 8"]).which == "since kernel-4.18.0-1.el8"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('package = "kernel-4.18.0-1.el8"\n', "", "packages[0].package: is required"),
        ('source = "x"\n', "", "packages[0].source: is missing"),
        ("package =", "pakage =", "packages[0].pakage: unknown key (did you mean 'package'?)"),
        ("package =", "absent-up-to = 'x'\npackage =", "package: is required, or absent-up-to"),
        ("package =", "or-earlier = true\nabsent-up-to =", "or-earlier: is for a package with"),
        ("package =", "release = '8.1'\nabsent-up-to =", "release: is for a package with"),
    ],
)
def test_wrong_packages(tmp_path: Path, old: str, new: str, problem: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        read_file(patch_file(tmp_path, PACKAGE.replace(old, new, 1)))
    assert problem in str(caught.value)


def test_unknown_and_doubled_distributions(tmp_path: Path) -> None:
    patch_file(tmp_path, PACKAGE.replace("RHEL 8", "RHEL 8.4"))
    with pytest.raises(CatalogueError, match=r"distribution: unknown distribution 'RHEL 8\.4'"):
        load([tmp_path], entry_points=False)
    twice = PACKAGE.replace(ROW, ROW + ROW)
    with pytest.raises(CatalogueError, match="packages: 'RHEL 8' is listed twice"):
        read_file(patch_file(tmp_path, twice))


def test_wrong_distributions(tmp_path: Path) -> None:
    path = tmp_path / "distributions.toml"
    head = '[[distributions]]\nname = "x"\nfamily = "x"\nbase = "5.4"\n'
    path.write_text(f'{head}kernel = "("\n')
    with pytest.raises(CatalogueError, match="kernel: is not a regular expression"):
        read_distributions(path)
    path.write_text(head)
    with pytest.raises(CatalogueError, match="kernel: is missing"):
        read_distributions(path)


def test_a_backport_is_not_said_twice() -> None:
    """Where packages of a distribution are known, prose would go stale beside them."""
    for patch in PACKAGED:
        for port in patch.backports:
            wanted = re.match(r"(RHEL|UEK|Debian|Ubuntu|SLES) ?([0-9]+)", port.kernel)
            known = [row.distribution for row in patch.packages if row.package]
            # The rework of this one ends the time that it was in RHEL.
            if wanted and patch.status is not Status.REWORKED:
                assert " ".join(wanted.groups()) not in known, patch.id


def test_names_of_distributions_are_unique() -> None:
    assert len(NAMES) == len(CATALOGUE.distributions) > 25


def test_the_tables_of_the_site_are_those_of_the_catalogue() -> None:
    page = DOCS.read_text()
    assert page == written(page)


_MARK = "<!-- tables -->\n"


def written(page: str) -> str:
    """The page with the tables of the catalogue at its end."""
    return page[: page.index(_MARK)] + _MARK + "\n" + "\n".join(map(_section, _sections()))


def _sections() -> list[Distribution]:
    """The distributions with a row in the catalogue."""
    named = {known.distribution for patch in PACKAGED for known in patch.packages}
    return [each for each in CATALOGUE.distributions if each.name in named]


def _section(own: Distribution) -> str:
    carriers = [(patch, carrier(patch, own)) for patch in PACKAGED]
    rows = [
        f"| `{patch.id}` | {patch.release} | {each.which if each.known else 'not known'} |\n"
        for patch, each in carriers
        if each.carried is not Carried.BASE
    ]
    base = [f"`{patch.id}`" for patch, each in carriers if each.carried is Carried.BASE]
    lines = f"Since its first release, based on {own.base}: {', '.join(base)}.\n" if base else ""
    head = "| patch | mainline | package |\n|---|---|---|\n"
    return f"### {own.name}\n\n{head}{''.join(rows)}\n{lines}"


if __name__ == "__main__":  # writes the tables anew
    DOCS.write_text(written(DOCS.read_text()))
