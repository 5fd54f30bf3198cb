# SPDX-License-Identifier: LGPL-2.1-or-later
"""The archive of ``kcensus collect``: a tar file, compressed, with a README and a manifest.

All names in it are those of this module, never those of a dump.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from kcensus.commands.collect.order import CAPSULE, FORMS, Account
from kcensus.text import printable

ROOT = "kcensus-case"
SCHEMA = 1
_BLOCK = 1 << 20
_ABOUT = {
    "report.txt": "the report, to read",
    "report.html": "the report as a page, with charts and tables",
    "report.json": "the report for programs, with all rows",
    CAPSULE: "the memory that the analyses read: `kcensus report case.capsule`",
}
_NAMES = """\
The files have names of files, mounts, cgroups, devices and processes, and the kernel log. They
have no pages of programs or files. Read report.txt before you send the archive; `--redact names`
makes one whose names are pseudonyms."""
_REDACTED = """\
Names of files, mounts, cgroups, devices, processes and hosts are pseudonyms of the same shape in
all files{log}. Figures are unchanged, but for patterns of names and numbers of hash buckets in
`dentries`. Numbers of up to 7 digits in the kernel log are those of the machine.

Do not run commands of the reports: their names are pseudonyms, too. A report on the original has
the right ones. To speak about an object, use its numbers: `kcensus explain pseudonym`."""
_KEPT = ", but the text of the kernel log is kept"


@dataclass(frozen=True)
class File:
    """A file for the archive, open and without a name."""

    target: int
    """Number of its target, from 1 on."""
    name: str
    descriptor: int

    @property
    def bytes(self) -> int:
        return os.fstat(self.descriptor).st_size


def write(
    path: Path, files: Sequence[File], accounts: Sequence[Account], facts: Mapping[str, Any]
) -> int:
    """Write the archive to ``path``; return its size.

    :param facts: of the manifest, besides files and targets
    """
    listed = [
        {
            "name": f"{each.target}/{each.name}",
            "bytes": each.bytes,
            "sha256": _digest(each.descriptor),
        }
        for each in files
    ]
    targets = [_target(number, account) for number, account in enumerate(accounts, 1)]
    left_out = [
        {"what": f"{number}/{what}", "why": why}
        for number, account in enumerate(accounts, 1)
        for what, why in left_out_of(account)
    ]
    readme = _readme(files, accounts, left_out, facts).encode()
    listed.insert(
        0,
        {"name": "README.txt", "bytes": len(readme), "sha256": hashlib.sha256(readme).hexdigest()},
    )
    manifest = {"schema": SCHEMA, **facts, "targets": targets, "files": listed}
    text = json.dumps({**manifest, "left_out": left_out}, indent=1).encode() + b"\n"
    now = int(time.time())
    with (
        path.open("wb") as out,
        zstandard.ZstdCompressor(level=3).stream_writer(out, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name, data in (("README.txt", readme), ("manifest.json", text)):
            tar.addfile(_member(name, len(data), now), io.BytesIO(data))
        for each in files:
            with open(os.dup(each.descriptor), "rb") as source:
                source.seek(0)
                tar.addfile(_member(f"{each.target}/{each.name}", each.bytes, now), source)
    return path.stat().st_size


def left_out_of(account: Account) -> list[tuple[str, str]]:
    """Return what the archive lacks of a target, and why."""
    lacking = list(account.left_out)
    if account.error:
        lacking.insert(0, ("report", account.error))
    reasons: dict[str, list[str]] = {}
    for name, why in account.analyses.items():
        if why != "done":
            reasons.setdefault(why, []).append(name)
    lacking += [
        (f"{'analysis' if len(names) == 1 else 'analyses'} {', '.join(names)}", why)
        for why, names in reasons.items()
    ]
    return [(what, printable(why)) for what, why in lacking]


def _member(name: str, size: int, now: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(f"{ROOT}/{name}")
    member.size, member.mtime, member.mode = size, now, 0o600
    return member


def _digest(descriptor: int) -> str:
    digest, offset = hashlib.sha256(), 0
    while data := os.pread(descriptor, _BLOCK, offset):
        digest.update(data)
        offset += len(data)
    return digest.hexdigest()


def _target(number: int, account: Account) -> dict[str, Any]:
    return {
        "number": number,
        "target": account.name,
        "kernel": account.kernel,
        "format": account.format,
        "seconds": account.seconds,
        "cpu_seconds": account.cpu_seconds,
        "analyses": {name: printable(why) for name, why in account.analyses.items()},
        "capsule": account.capsule,
        "error": printable(account.error),
    }


def _readme(
    files: Sequence[File],
    accounts: Sequence[Account],
    left_out: Sequence[Mapping[str, str]],
    facts: Mapping[str, Any],
) -> str:
    versions = facts["versions"]
    log = _KEPT if "log" in facts["kept"] else ""
    lines = [
        f"A case for support, by `kcensus collect` of kcensus {versions.get('kcensus', '?')}",
        f"on {facts['collected_at']}, in {facts['seconds']} s.",
        "",
        _REDACTED.format(log=log) if facts["redacted"] else _NAMES,
        "",
        "manifest.json  versions, times, and the size and SHA-256 of each file",
    ]
    for number, account in enumerate(accounts, 1):
        kernel = f", Linux {account.kernel}" if account.kernel else ""
        lines += ["", f"{number}/  {account.name}{kernel}"]
        names = {each.name for each in files if each.target == number}
        lines += [f"    {name:<13} {_ABOUT[name]}" for name in (*FORMS, CAPSULE) if name in names]
    lines += ["", "Left out" if left_out else "Nothing was left out."]
    lines += [f"    {each['what']}: {each['why']}" for each in left_out]
    return "\n".join(lines) + "\n"
