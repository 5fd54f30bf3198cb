# SPDX-License-Identifier: LGPL-2.1-or-later
"""Packages of any Debian suite, from the mirrors that this machine already uses.

The machine's own apt configuration stays as it is: the suite is added in a configuration
of the lab's own, with its own package lists.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .. import host
from ..host import LabError
from .machines import AMD64

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True)
class _Mirror:
    """One address of a source, with the options that apt needs to trust it."""

    uri: str
    options: str
    security: bool


def _deb822_entries(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line for line in paragraph.splitlines() if not line.startswith("#")]
        pairs = re.findall(r"^(\S+):(.*(?:\n[ \t].*)*)", "\n".join(lines), re.MULTILINE)
        fields = {key.lower(): " ".join(value.split()) for key, value in pairs}
        if "deb" not in fields.get("types", "").split() or fields.get("enabled") == "no":
            continue
        # A key written out in the file cannot be named in a one-line source.
        signed = fields.get("signed-by", "")
        options = f"signed-by={signed}" if signed.startswith("/") else ""
        yield options, fields.get("uris", "").split(), fields.get("suites", "").split()


def _one_line_entries(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    for options, uri, suite in re.findall(
        r"^deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)", text, re.MULTILINE
    ):
        yield options, [uri], [suite]


def _mirrors() -> list[_Mirror]:
    """The mirrors of Debian itself and of its security updates that this machine uses."""
    release = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    codename = re.search(r"^VERSION_CODENAME=(\w+)", release, re.MULTILINE)
    if not re.search(r"^ID=debian$", release, re.MULTILINE) or not codename:
        raise LabError("The lab fetches its kernels with apt and runs on Debian only.")
    own = re.compile(rf"(?:{codename[1]}|stable)(-updates|-security|/updates)?")
    etc = Path("/etc/apt")
    entries = [
        entry
        for path in [etc / "sources.list", *sorted(etc.glob("sources.list.d/*.list"))]
        if path.exists()
        for entry in _one_line_entries(path.read_text())
    ]
    for path in sorted(etc.glob("sources.list.d/*.sources")):
        entries += _deb822_entries(path.read_text())
    found: dict[_Mirror, None] = {}
    for options, uris, suites in entries:
        for suite in suites:
            if match := own.fullmatch(suite):
                for uri in uris:
                    security = match[1] in ("-security", "/updates")
                    found[_Mirror(uri, options, security)] = None
    if not any(not mirror.security for mirror in found):
        raise LabError(f"No apt source of this machine offers Debian {codename[1]}.")
    return list(found)


def _options(mirror: _Mirror) -> str:
    # Older and newer suites may be signed with keys that the entry's own keyring lacks.
    options = mirror.options
    if not options and _KEYRING.exists():
        options = f"signed-by={_KEYRING}"
    return f"[{options}] " if options else ""


class Suite:
    """The packages of one suite, with its updates as far as the mirrors have them.

    :param machine: the architecture of the packages, as Debian names it
    """

    def __init__(self, name: str, machine: str = AMD64) -> None:
        self.name = name
        self._machine = machine
        self._home = host.cache() / "apt" / (name if machine == AMD64 else f"{name}-{machine}")
        self._environment = {"APT_CONFIG": str(self._home / "apt.conf")}

    @property
    def sources(self) -> Path:
        """The apt sources of the suite, which `update()` writes."""
        return self._home / "sources.list"

    def update(self) -> None:
        for directory in ("state/lists/partial", "cache/archives/partial"):
            (self._home / directory).mkdir(parents=True, exist_ok=True)
        archive, security = [self.name], []
        if not self.name.endswith("-backports"):
            archive.append(f"{self.name}-updates")
            security.append(f"{self.name}-security")
        sources = [
            f"deb {_options(mirror)}{mirror.uri} {suite} main"
            for mirror in _mirrors()
            for suite in (security if mirror.security else archive)
        ]
        self.sources.write_text("".join(f"{line}\n" for line in sources))
        (self._home / "apt.conf").write_text(
            f'Dir::State "{self._home}/state";\n'
            f'Dir::Cache "{self._home}/cache";\n'
            f'Dir::Etc::sourcelist "{self.sources}";\n'
            'Dir::Etc::sourceparts "/dev/null";\n'
            'Acquire::Languages "none";\n'
            f'APT::Architecture "{self._machine}";\n'
            f'APT::Architectures {{ "{self._machine}"; }};\n'
        )
        try:
            self._apt("apt-get", "update")
        except LabError as error:
            # Not every mirror carries the updates of every suite.
            if not self._apt("apt-cache", "pkgnames", "linux-image-").strip():
                raise LabError(f"Cannot read the package lists of {self.name}: {error}") from None

    def packages(self, prefix: str) -> dict[str, str]:
        """The packages whose names start with ``prefix``, and their newest versions."""
        names = self._apt("apt-cache", "pkgnames", prefix).split()
        if not names:
            return {}
        shown = self._apt("apt-cache", "madison", *names)
        found: dict[str, str] = {}
        for line in shown.splitlines():
            name, version, *_ = (field.strip() for field in line.split("|"))
            if name not in found or newer(version, found[name]):
                found[name] = version
        return found

    def download(self, packages: list[str], directory: Path) -> list[Path]:
        """Download packages and return their files, in the same order."""
        self._apt("apt-get", "download", *packages, cwd=directory)
        return [next(directory.glob(f"{package}_*.deb")) for package in packages]

    def closure(self, packages: list[str]) -> list[str]:
        """Return the names of packages with all that they depend on, whatever is installed here."""
        nothing = self._home / "state" / "nothing-installed"
        nothing.write_bytes(b"")
        install = ["install", "--yes", "--quiet=2", "--no-install-recommends", "--print-uris"]
        lines = self._apt("apt-get", f"-oDir::State::status={nothing}", *install, *packages)
        return re.findall(r"^'\S+' ([^_\s]+)_", lines, re.MULTILINE)

    def _apt(self, tool: str, *arguments: str, cwd: Path | None = None) -> str:
        # On the command line, because the machine's own settings are read after ours.
        options = [
            "-oAPT::Sandbox::User=root" if os.geteuid() == 0 else "-oDebug::NoLocking=true",
            "-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
            "-oAcquire::Retries=3",
        ]
        return host.run([tool, *options, *arguments], cwd=cwd, env=self._environment)


def unpack(suite: Suite, packages: list[str], directory: Path) -> None:
    """Download packages and unpack all their files into a directory."""
    for package in suite.download(packages, directory):
        host.run(["dpkg-deb", "-x", str(package), str(directory)])
        package.unlink()


def newer(left: str, right: str) -> bool:
    command = [host.find("dpkg"), "--compare-versions", left, "gt", right]
    return subprocess.run(command, check=False).returncode == 0


by_version = functools.cmp_to_key(lambda a, b: newer(str(a), str(b)) - newer(str(b), str(a)))
"""A sort key for Debian versions."""


@contextmanager
def contents(package: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """The regular files of a package, one after the other, as names and streams."""
    with (
        subprocess.Popen(
            [host.find("dpkg-deb"), "--fsys-tarfile", str(package)], stdout=subprocess.PIPE
        ) as unpack,
        tarfile.open(fileobj=unpack.stdout, mode="r|") as tar,
    ):
        yield (
            (member.name.removeprefix("./"), stream)
            for member in tar
            if member.isfile() and (stream := tar.extractfile(member))
        )
