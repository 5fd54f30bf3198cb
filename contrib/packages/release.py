# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build everything that a release publishes, twice, and try it: ``./run release``.

What is built comes from the last commit, in clean clones. All artefacts must have the same bytes
both times, although the second build has another directory, time zone and umask.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from contrib.packages.build import version_of
from contrib.packages.tree import LOCKS, ROOT

DEBS: dict[str, str | None] = {"3.11": "bookworm", "3.13": "trixie"}
RPMS: dict[str, str | None] = {"3.12": None, "3.13": "trixie"}
"""Versions of Python with packages, and the Debian where they are tried: 3.12 is that of RHEL."""

_LOCKS = (*LOCKS.values(), "requirements-notebook.lock")
_REMAINING = """
What is left for a person, with the files of {place}:
  1. set the version in pyproject.toml and the date in CHANGELOG.md, if this was a rehearsal
  2. install a .rpm where it belongs (RHEL, Fedora, SUSE): here it ran on Debian
  3. git tag -s v{version}, and push the tag
  4. gpg --detach-sign --armor SHA256SUMS; sign the .rpm (rpmsign --addsign), too, before the sums
  5. twine upload kcensus-{version}*; the other files go beside the tag, with SHA256SUMS and .asc
  6. set the next version, with .dev0, in pyproject.toml
"""


def obstacles() -> list[str]:
    """Return why the last commit is no release, as sentences."""
    version = _version()
    found = []
    if "dev" in version:
        found.append(f"pyproject.toml has the version {version}")
    dated = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$"
    if not re.search(dated, (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        found.append(f"CHANGELOG.md has no section '{version} (YEAR-MONTH-DAY)'")
    if _output("git", "status", "--porcelain"):
        found.append("there are changes that are not committed, which a release does not have")
    return found


def _version() -> str:
    found = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    return found[1]


def _output(*command: str | Path) -> str:
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()


def _say(sentence: str) -> None:
    sys.stderr.write(f"release: {sentence}\n")


def _build(clone: Path, uv: Path) -> Path:
    """Build all artefacts in a clone, and return their directory."""
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    made = clone / "dist"
    _run(clone, "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", made)
    (wheel,) = made.glob("*.whl")
    packages = ["--deb", *DEBS, "--rpm", *RPMS]
    _run(clone, "contrib.packages.build", wheel, made, "--uv", uv, *packages)
    for lock in _LOCKS:  # the wheel is installed with one of them
        shutil.copy(clone / lock, made)
    return made


def _run(clone: Path, *module: str | Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{clone}/drgn_scripts:{clone}"}
    environment["SOURCE_DATE_EPOCH"] = _output("git", "log", "-1", "--format=%ct")
    command = [sys.executable, "-m", *module]
    subprocess.run(command, cwd=clone, check=True, env=environment, stdout=subprocess.DEVNULL)


def build_twice(place: Path, uv: Path) -> None:
    """Leave all artefacts in a directory, after having built them twice."""
    _say("building everything")
    first = _build(place / "first", uv)
    _say("building everything again")
    os.environ["TZ"] = "Pacific/Chatham"
    mask = os.umask(0o077)
    second = _build(place / "elsewhere/second", uv)
    os.umask(mask)
    del os.environ["TZ"]
    names = sorted(path.name for path in first.iterdir())
    _, differ, absent = filecmp.cmpfiles(first, second, names, shallow=False)
    if differ or absent:
        raise SystemExit(f"release: these are not built the same twice: {differ + absent}")
    _say(f"{len(names)} files, the same bytes twice")
    for name in names:
        shutil.move(first / name, place / name)
    for folder in ("first", "elsewhere"):
        shutil.rmtree(place / folder)


def try_all(place: Path, uv: Path, pythons: list[str]) -> None:
    """Check the metadata, and use each artefact where it belongs."""
    (wheel,) = place.glob("*.whl")
    (sdist,) = place.glob("*.tar.gz")
    subprocess.run([uv, "tool", "run", "twine", "check", "--strict", wheel, sdist], check=True)
    subprocess.run([ROOT / "run", "wheel", wheel, *pythons], check=True)
    report = [sys.executable, "-m", "kcensus", "report", "sample", "--json"]
    expected = place / "expected.json"
    expected.write_bytes(subprocess.check_output(report, cwd=ROOT))
    script, cache = ROOT / "contrib/packages/try.sh", ROOT / "build/chroots"
    for kind, suites in (("1+py{}_amd64.deb", DEBS), ("1.py{}.x86_64.rpm", RPMS)):
        for python, suite in suites.items():
            packages = packages_of(place, version_of(wheel), kind.format(python))
            if suite:
                subprocess.run([script, suite, cache, expected, *packages], check=True)
    expected.unlink()


def packages_of(place: Path, version: str, end: str) -> list[Path]:
    """Return the packages with an end of the name; all have to be there."""
    sign = "_" if end.endswith(".deb") else "-"
    packages = [place / f"{name}{sign}{version}-{end}" for name in LOCKS]
    assert all(path.is_file() for path in packages), packages
    return packages


def write_sums(place: Path) -> None:
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(place.iterdir())
    ]
    (place / "SHA256SUMS").write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(prog="./run release", description=__doc__)
    parser.add_argument("--uv", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--rehearse", action="store_true", help="with a version .dev, too")
    parser.add_argument("python", nargs="*", help="versions for the wheel, such as 3.12")
    given = parser.parse_args()
    found = obstacles()
    for sentence in found:
        _say(sentence)
    if found and not given.rehearse:
        raise SystemExit("release: this is no release; --rehearse does all the same")
    place = ROOT / "build/release"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    uv = given.uv.resolve()
    build_twice(place, uv)
    try_all(place, uv, given.python)
    write_sums(place)
    sys.stdout.write((place / "SHA256SUMS").read_text())
    sys.stdout.write(_REMAINING.format(place=place.relative_to(ROOT), version=_version()))


if __name__ == "__main__":
    main()
