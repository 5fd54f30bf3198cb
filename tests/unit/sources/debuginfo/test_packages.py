# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel releases of many distributions and the packages with their debug info."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcensus.sources.debuginfo import packages
from kcensus.sources.debuginfo.loading import is_out_of_tree

EL, EL7 = "RHEL, CentOS, AlmaLinux, Rocky or Oracle Linux", "RHEL, CentOS or Oracle Linux"
EULER = "openEuler, Anolis OS or Alibaba Cloud Linux"

PACKAGES = {
    ("Debian", "apt install linux-image-{}-dbg"): """
        5.10.0-46-cloud-amd64 6.1.0-18-amd64
        5.10.0-0.bpo.9-amd64 6.1.0-0.deb11.13-amd64 6.12.9+bpo-cloud-amd64
        6.12.38+deb13-amd64 7.3.4+deb13-cloud-amd64 6.7.12-amd64""",
    ("Debian", "apt install linux-image-{}-dbg:arm64"): "6.1.0-18-rt-arm64 6.12.9-arm64-16k",
    ("Debian", "apt install linux-image-{}-dbg:i386"): "4.19.0-20-686-pae",
    ("Debian", "apt install linux-image-{}-dbg:ppc64el"): "6.12.107+deb13-powerpc64le-64k",
    ("Debian", "apt install linux-image-{}-dbg:s390x"): "6.12.107+deb13-s390x",
    ("Ubuntu", "apt install linux-image-{}-dbgsym"): """
        5.15.0-101-generic 4.15.0-213-lowlatency 6.8.0-1015-aws 6.8.0-1015-azure
        6.8.0-31-generic-64k 5.15.0-1052-realtime""",
    (EL7, "debuginfo-install kernel-{}"): "2.6.32-754.el6.x86_64 3.10.0-1160.118.1.el7.x86_64",
    (EL7, "debuginfo-install kernel-debug-3.10.0-957.el7.x86_64"): "3.10.0-957.el7.x86_64.debug",
    ("RHEL or CentOS", "debuginfo-install kernel-rt-{}"): "3.10.0-1160.rt56.1131.el7.x86_64",
    (EL, "dnf debuginfo-install kernel-{}"): """
        4.18.0-553.el8_10.x86_64 4.18.0-305.lve.el8.x86_64 5.14.0-427.13.1.el9_4.x86_64
        6.12.0-55.9.1.el10_0.x86_64""",
    (EL, "dnf debuginfo-install kernel-rt-{}"): "4.18.0-553.rt7.342.el8_10.x86_64",
    (EL, "dnf debuginfo-install kernel-64k-5.14.0-427.13.1.el9_4.aarch64"): """
        5.14.0-427.13.1.el9_4.aarch64+64k""",
    (EL, "dnf debuginfo-install kernel-rt-debug-5.14.0-427.13.1.el9_4.x86_64"): """
        5.14.0-427.13.1.el9_4.x86_64+rt-debug""",
    ("Fedora", "dnf debuginfo-install kernel-{}"): """
        6.8.5-301.fc40.x86_64 6.10.0-0.rc4.20240618git14d7c92f8df9.41.fc41.x86_64""",
    ("Fedora", "dnf debuginfo-install kernel-debug-6.8.5-301.fc40.x86_64"): """
        6.8.5-301.fc40.x86_64+debug""",
    ("Oracle Linux", "yum install kernel-uek-debuginfo-{}"): "4.14.35-2047.502.5.el7uek.x86_64",
    ("Oracle Linux", "dnf install kernel-uek-debuginfo-{}"): """
        5.15.0-200.131.27.el8uek.x86_64 6.12.0-1.23.3.2.el9uek.aarch64""",
    ("SUSE", "zypper install kernel-default-debuginfo"): """
        5.14.21-150500.55.52-default 5.3.18-57-default 6.7.1-1-default""",
    ("SUSE", "zypper install kernel-rt_debug-debuginfo"): "6.4.0-150600.6.1-rt_debug",
    ("SUSE", "zypper install kernel-azure-debuginfo"): "4.12.14-16.88-azure",
    ("Amazon Linux 2", "debuginfo-install kernel-{}"): "5.10.205-195.804.amzn2.x86_64",
    ("Amazon Linux 2023", "dnf debuginfo-install kernel-{}"): "6.1.72-96.166.amzn2023.x86_64",
    ("Amazon Linux 2023", "dnf debuginfo-install kernel6.12-{}"): "6.12.22-27.96.amzn2023.aarch64",
    ("Azure Linux", "tdnf install kernel-debuginfo-{}"): "6.6.57.1-7.azl3 5.15.131.1-2.cm2",
    (EULER, "dnf install kernel-debuginfo-{}"): """
        5.10.0-136.12.0.86.oe2203sp1.x86_64 5.10.134-16.al8.x86_64""",
}
"""Releases by distribution and command, in which they are ``{}``."""
RELEASES = {
    release: (distribution, command.format(release))
    for (distribution, command), releases in PACKAGES.items()
    for release in releases.split()
}

UNKNOWN = [
    *("", "6.6.0", "6.8.1-arch1-1", "6.8.4-2-pve", "6.8.1-1.el9.elrepo.x86_64"),
    "6.5.0-060500-generic",  # Ubuntu's builds of mainline
    *("3.10.0-1160.el7.centos.plus.x86_64", "5.15.153.1-microsoft-standard-WSL2"),
    *("6.1.0; rm -rf ~-amd64", "6.1.0-18-amd64\n", "6.1.0-$(id)-amd64", "\u0666.1.0-18-amd64"),
    "6." + "1" * 100 + "-amd64",
]

COMMAND = r"(?:(?:apt|dnf|tdnf|yum|zypper) )?(?:debuginfo-)?install [A-Za-z0-9][\w.+~-]*(?::\w+)?"
BUILD_ID = "3b43fad5034874490492495d552c0af6a5fab235"


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_names_its_distribution_and_package(release: str) -> None:
    found = packages.package(release)
    assert found is not None
    assert (found.distribution, found.command) == RELEASES[release]


@pytest.mark.parametrize("release", UNKNOWN)
def test_nothing_is_guessed_for_an_unknown_release(release: str) -> None:
    assert packages.package(release) is None
    sentence = packages.missing_kernel(release, BUILD_ID)
    assert f"(build ID {BUILD_ID})" in sentence
    assert "--debuginfod downloads it" in sentence
    assert "-s" in sentence
    assert sentence.isprintable()


def test_all_names_and_the_version_of_a_package_are_said() -> None:
    sentence = packages.missing_kernel("6.8.0-31-generic", None)
    assert "linux-image-6.8.0-31-generic-dbgsym" in sentence
    assert "linux-image-unsigned-6.8.0-31-generic-dbgsym" in sentence
    assert "5.14.21-150500.55.52," in packages.missing_kernel("5.14.21-150500.55.52-default", None)
    # Modules of one package are one remedy.
    names = ("dm_mod", "xfs", "dm_mod")
    sentences = [packages.missing_module(name, "6.1.0-18-amd64", BUILD_ID) for name in names]
    (gap,) = packages.module_gaps(sentences, "")
    assert gap.reason.startswith("install it with `apt install linux-image-6.1.0-18-amd64-dbg`")
    assert gap.what == "debug info of modules dm_mod, xfs"
    assert packages.modules_of(gap) == ["dm_mod", "xfs"]


def test_a_module_that_is_not_of_the_package() -> None:
    sentences = [
        packages.missing_module(name, "6.1.0-18-amd64", None, is_out_of_tree=name == "vendors")
        for name in ("dm_mod", "vendors")
    ]
    assert ["apt install" in each for each in sentences] == [True, False]
    gaps = packages.module_gaps(sentences, "")
    assert [packages.modules_of(gap) for gap in gaps] == [["dm_mod"], ["vendors"]]
    # The alternative to the package and the file.
    assert all("type pack" in gap.reason for gap in gaps)


@pytest.mark.parametrize(("taints", "is_foreign"), [(1 << 12, True), (4097, True), (1, False)])
def test_a_module_that_was_built_outside_of_the_tree(taints: int, is_foreign: bool) -> None:
    module: Any = SimpleNamespace(taints=taints)
    unknown: Any = None
    assert is_out_of_tree(module) == is_foreign
    assert not is_out_of_tree(unknown)


def test_modules_with_build_ids_of_their_own_have_one_remedy() -> None:
    ids = {"dm_mod": BUILD_ID, "xfs": BUILD_ID[::-1]}
    sentences = [packages.missing_module(name, "6.1.0", each) for name, each in ids.items()]
    for suffix in ("", ", or load it with `mod -S DIRECTORY`"):
        (gap,) = packages.module_gaps([each + suffix for each in sentences], "")
        assert packages.modules_of(gap) == ["dm_mod", "xfs"]
        assert not any(each in gap.reason for each in ids.values())
        assert gap.reason.endswith(f"DEBUGINFOD_URLS has it{suffix}")
        (alone,) = packages.module_gaps([sentences[0] + suffix], "")
        assert f"(build ID {BUILD_ID})" in alone.reason


def test_a_sentence_of_another_form_is_a_gap_of_its_own() -> None:
    sentences = ["cannot determine whether the modules a, b are loaded", "failed when recorded: x"]
    gaps = packages.module_gaps(sentences, "")
    assert [gap.reason for gap in gaps] == sentences
    assert [packages.modules_of(gap) for gap in gaps] == [[], []]


@given(st.text(max_size=80) | st.from_regex(r"[\w.+-]{1,60}-(amd64|default|generic)"))
def test_what_a_dump_says_never_becomes_more_than_a_word_of_a_command(release: str) -> None:
    found = packages.package(release)
    if found is not None:
        assert re.fullmatch(COMMAND, found.command, re.ASCII)
    assert packages.missing_kernel(release, None).isprintable()
    assert packages.missing_module(release, release, BUILD_ID).isprintable()
