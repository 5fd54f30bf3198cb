# SPDX-License-Identifier: LGPL-2.1-or-later
"""Options of commands that write capsules: what to redact, and where to write."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click

from kcensus.commands.shared import options

_MIN_KEY_BYTES, _MAX_KEY_BYTES = 16, 1 << 20


def redacting() -> list[click.Parameter]:
    """Return the options ``--redact``, ``--keep`` and ``--redact-key``."""
    return [
        click.Option(
            ["--redact"],
            type=click.Choice(["names"]),
            multiple=True,
            help="Keep only memory that the analyses use, and replace all text in it except words"
            " of the kernel with pseudonyms of the same shape: names of files, mounts, cgroups,"
            " devices, processes and hosts, and the kernel log. In the log, a name that is also a"
            " word of the kernel (`dd`, `server`) can stay, and numbers of up to 7 digits do.",
        ),
        click.Option(
            ["--keep"],
            type=click.Choice(["log"]),
            multiple=True,
            help="With --redact names, leave this as it is: the text of the kernel log.",
        ),
        options.files(
            "--redact-key",
            "FILE",
            "A secret of 16 bytes or more; the same key gives the same pseudonyms in every"
            " capsule. Default: a random key that is not saved.",
        ),
    ]


def key_of(path: Path | None, redact: tuple[str, ...], keep: tuple[str, ...]) -> bytes | None:
    """Return the key of pseudonyms; refuse options without ``--redact names``."""
    if keep and "names" not in redact:
        raise click.UsageError("--keep needs --redact names; add --redact names.")
    if path is None:
        return None
    if "names" not in redact:
        raise click.UsageError("--redact-key needs --redact names; add --redact names.")
    from kcensus.sources.reader import os_reason

    try:
        if path.exists() and not path.is_file():
            raise click.UsageError(f"--redact-key: '{path}' is not a regular file; give one.")
        with path.open("rb") as file:
            key = file.read(_MAX_KEY_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"--redact-key: '{path}': {os_reason(error)}.") from None
    if not _MIN_KEY_BYTES <= len(key) <= _MAX_KEY_BYTES:
        problem = f"is no key; give a file of {_MIN_KEY_BYTES} bytes or more, up to 1 MiB"
        raise click.UsageError(f"--redact-key: '{path}' {problem}.")
    return key


def check_out(targets: Iterable[str | None], out: Path, force: bool) -> None:
    """Refuse an impossible place before any work is done."""
    problem, is_dump = "", False
    if options.session_is_open():
        from kcensus.sources.session import is_session

        is_dump = is_session(out)
    if is_dump:
        problem = "is the dump that is open here; choose another name"
    elif os.path.lexists(out) and not force:
        problem = "exists; choose another name, or add --force"
    elif out.is_dir():
        problem = "is a directory; give a file"
    elif out.exists() and not out.is_file():
        problem = "is not a regular file; choose another name"
    elif out.exists() and any(
        target and os.path.exists(target) and out.samefile(target) for target in targets
    ):
        problem = "is the target itself; choose another name"
    if problem:
        raise click.UsageError(f"'{out}' {problem}.")
    if not out.parent.is_dir():
        raise click.UsageError(f"'{out.parent}' is not a directory.")
