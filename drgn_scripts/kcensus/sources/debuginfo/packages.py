# SPDX-License-Identifier: LGPL-2.1-or-later
"""Name the package with the debug info of a kernel, by its release alone.

The local machine is not asked, because the dump may come from another one.

Sources of package names and commands: Debian's ``linux`` source package
(``linux-image-RELEASE-dbg``, in the main archive); Ubuntu's wiki on debug symbol packages; the
SystemTap guide of RHEL 7 and ``stap-prep`` (``debuginfo-install``, kernel variants); Oracle's drgn
guide (``kernel-uek-debuginfo``); SUSE's kdump package (``kernel-FLAVOUR-debuginfo``); Amazon's
advisories (``kernel6.12`` beside ``kernel``); Microsoft's Azure Linux package index.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from kcensus.results import Gap
from kcensus.text import printable


class Package(NamedTuple):
    """A package with the debug info of a kernel."""

    distribution: str
    command: str
    """Command that installs it, of harmless characters only, whatever the dump contains."""
    note: str


_ARCH = r"(?:x86_64|aarch64|ppc64le|s390x|i686)"
_REPO = "with its debuginfo repository enabled"
_VARIANT = r"(?:[.+](?P<variant>[a-z0-9][a-z0-9-]*))?"
# Rebuilds have their own name after the tag; ELRepo and CentOS Plus publish no debug info.
_REBUILD = r"(?:\.(?!elrepo|centos\.plus)[\w.]+)?"
_EL_YUM = rf"(?P<nvr>[\w.-]+\.el[67](?:_\d+)?{_REBUILD}\.{_ARCH}){_VARIANT}"
_EL_DNF = rf"(?P<nvr>[\w.-]+\.el\d+(?:_\d+)?{_REBUILD}\.{_ARCH}){_VARIANT}"
_RT = r"(?=[\w.-]+\.rt\d+\.)"
_EL_NAMES = "RHEL, CentOS, AlmaLinux, Rocky or Oracle Linux"
_YUM, _DNF = "debuginfo-install kernel", "dnf debuginfo-install kernel"
_NVR, _UEK = "{variant}-{nvr}", "kernel-uek-debuginfo-{release}"

_UBUNTU = (
    "generic|lowlatency|aws|azure|gcp|gke|gkeop|kvm|oracle|oem|ibm|intel|raspi|raspi2|nvidia|"
    "realtime|bluefield|xilinx|snapdragon|virtual"
)
_SUSE = "preempt|azure|rt|rt_debug|64kb|kvmsmall|pae|xen|debug|vanilla|longterm"
# Flavours by the architecture of the package, which apt needs on a machine of another one.
_DEBIAN = {
    "": "amd64",
    "arm64": "arm64|arm64-16k",
    "i386": "686|686-pae",
    "armhf": "armmp|armmp-lpae",
    "ppc64el": "powerpc64le|powerpc64le-64k",
    **{name: name for name in ("s390x", "riscv64", "loong64")},
}
_SNAPSHOT = "superseded kernels are in the snapshot archive"

# Sentences of missing_module(), and the part of its remedy that is of one module.
_MISSING = re.compile(r"debug info of module (\S+) .*? is missing: (.*)")
_OWN = re.compile(r" \(build ID \w+\)")
_MODULES = re.compile(r"debug info of modules? (.*)")

# struct new_utsname has room for 64 characters.
_MAX_RELEASE = 64

# A regular expression of the whole release, with groups for the other fields; the first match wins.
_RULES = (
    (rf"[\w.-]+\.el[567]uek\.{_ARCH}", "Oracle Linux", f"yum install {_UEK}", _REPO),
    (rf"[\w.-]+\.el\d+(?:_\d+)?uek\.{_ARCH}", "Oracle Linux", f"dnf install {_UEK}", _REPO),
    (rf"[\w.-]+\.amzn[12]\.{_ARCH}", "Amazon Linux 2", f"{_YUM}-{{release}}", "from yum-utils"),
    # The package of 6.1 is kernel; later ones are kernel6.12 and so on.
    (
        rf"(?:6\.1|(?P<series>\d+\.\d+))\.[\w.-]+\.amzn20\d\d\.{_ARCH}",
        "Amazon Linux 2023",
        f"{_DNF}{{series}}-{{release}}",
        _REPO,
    ),
    (rf"(?P<nvr>[\w.-]+\.fc\d+\.{_ARCH}){_VARIANT}", "Fedora", f"{_DNF}{_NVR}", _REPO),
    # Real-time kernels before RHEL 9.3 have .rt in their version, later ones +rt at the end.
    (_RT + _EL_YUM, "RHEL or CentOS", f"{_YUM}-rt{_NVR}", _REPO),
    (_RT + _EL_DNF, _EL_NAMES, f"{_DNF}-rt{_NVR}", _REPO),
    (_EL_YUM, "RHEL, CentOS or Oracle Linux", f"{_YUM}{_NVR}", _REPO),
    (_EL_DNF, _EL_NAMES, f"{_DNF}{_NVR}", _REPO),
    (
        rf"[\w.-]+\.(?:oe\d+\w*|an\d+|al\d+)\.{_ARCH}",
        "openEuler, Anolis OS or Alibaba Cloud Linux",
        "dnf install kernel-debuginfo-{release}",
        _REPO,
    ),
    (r"[\w.-]+\.(?:azl|cm)\d+", "Azure Linux", "tdnf install kernel-debuginfo-{release}", _REPO),
    *(
        (
            rf"\d+\.\d+[\w.+~-]*-(?:(?:cloud|rt)-)?(?:{flavours})",
            "Debian",
            "apt install linux-image-{release}-dbg" + f":{name}" * bool(name),
            f"{_SNAPSHOT}; elsewhere, first `dpkg --add-architecture {name}`"
            if name
            else _SNAPSHOT,
        )
        for name, flavours in _DEBIAN.items()
    ),
    # The version of the package adds a rebuild count to the release, so it is not known here.
    (
        r"(?P<version>\d+\.\d+\.\d+-(?:[\w.]+(?=-default)|\d+\.[\w.]+))"
        rf"-(?P<flavour>default|{_SUSE})",
        "SUSE",
        "zypper install kernel-{flavour}-debuginfo",
        "version {version}, with the debug repositories enabled",
    ),
    # Six digits are a mainline build, for which Ubuntu publishes no debug info.
    (
        rf"\d+\.\d+\.\d+-\d{{1,5}}-(?:{_UBUNTU})(?:-[a-z0-9]+)*",
        "Ubuntu",
        "apt install linux-image-{release}-dbgsym",
        "or linux-image-unsigned-{release}-dbgsym, with the debug symbol archive ddebs enabled",
    ),
)


def package(release: str) -> Package | None:
    """Return the package with the debug info of a kernel and its modules; None if unknown.

    :param release: kernel release from the dump, untrusted
    """
    if len(release) > _MAX_RELEASE:
        return None
    for pattern, *template in _RULES:
        match = re.fullmatch(pattern, release, re.ASCII)
        if match is not None:
            words = {key: value or "" for key, value in match.groupdict().items()}
            if words.get("variant"):
                words["variant"] = f"-{words['variant']}"
            return Package(*(text.format(release=release, **words) for text in template))
    return None


def remedy(
    release: str,
    build_id: str | None,
    file: str = "its vmlinux",
    *,
    it: str = "it",
    is_packaged: bool = True,
) -> str:
    """Return how to get debug info, as the rest of a sentence about ``it``.

    :param release: kernel release from the dump, untrusted
    :param file: to pass instead
    """
    known = package(release) if is_packaged else None
    if known is not None:
        return (
            f"install {it} with `{known.command}` ({known.distribution}; {known.note}), or pass "
            f"{file} with -s"
        )
    if build_id is None:
        return f"find {file} of exactly that build and pass it with -s"
    return (
        f"find {file} of exactly that build (build ID {build_id}) and pass it with -s; "
        "--debuginfod downloads it if a server in DEBUGINFOD_URLS has it"
    )


def missing_kernel(release: str, build_id: str | None, version: str = "") -> str:
    """Return a sentence about missing debug info of the kernel, and how to get it.

    :param version: of a kernel without a build ID, such as ``#1 SMP Fri Jul 1 12:00:00 UTC 2022``
    """
    kernel = f"{printable(release)} ({printable(version)})" if version else printable(release)
    return f"debug info of kernel {kernel} is missing: {remedy(release, build_id)}"


def missing_module(
    name: str, release: str, build_id: str | None, *, is_out_of_tree: bool = False
) -> str:
    """Return a sentence about missing debug info of a loaded module, and how to get it.

    :param is_out_of_tree: whether the package of the kernel does not have it
    """
    file = "its file with debug info, or a type pack with it,"
    how = remedy(release, build_id, file, is_packaged=not is_out_of_tree)
    if is_out_of_tree:
        how += "; it was built outside of the kernel's tree, whose packages do not have it"
    where = f"module {printable(name)} of kernel {printable(release)}"
    return f"debug info of {where} is missing: {how}"


def at_recording(sentence: str) -> str:
    """Return a sentence of :func:`missing_module` of a capsule, which takes no types later."""
    start, found, remedy = sentence.partition(" is missing: ")
    if not found:
        return sentence
    return f"{start}{found}record the capsule again from its vmcore; for that, {remedy}"


class Lack(NamedTuple):
    """Missing debug info that one remedy provides."""

    remedy: str
    modules: list[str]
    """Names of modules; empty if the sentence is not one of :func:`missing_module`."""
    sentences: list[str]

    @property
    def what(self) -> str:
        """A short phrase for the subject."""
        plural = "s" * (len(self.modules) != 1)
        return f"debug info of module{plural} {', '.join(sorted(self.modules))}"


def by_remedy(sentences: Iterable[str]) -> list[Lack]:
    """Group sentences of :func:`missing_module` by their remedy; any other one is alone."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for sentence in dict.fromkeys(sentences):
        named = _MISSING.fullmatch(sentence)
        name, remedy = named.groups() if named else ("", sentence)
        # Build IDs differ, but the modules of a kernel have one directory.
        groups.setdefault(_OWN.sub("", remedy), []).append((name, remedy, sentence))
    return [
        Lack(
            parts[0][1] if len(parts) == 1 else remedy,
            list(dict.fromkeys(name for name, _, _ in parts if name)),
            [sentence for _, _, sentence in parts],
        )
        for remedy, parts in groups.items()
    ]


def module_gaps(sentences: Iterable[str], effect: str) -> list[Gap]:
    """Return the gaps of sentences of :func:`missing_module`, one for each remedy."""
    return [
        Gap(lack.what if lack.modules else "module debug info", lack.remedy, 1, effect)
        for lack in by_remedy(sentences)
    ]


def modules_of(gap: Gap) -> list[str]:
    """Return the names of the modules whose debug info is missing by a gap."""
    named = _MODULES.fullmatch(gap.what)
    return named[1].split(", ") if named else []
