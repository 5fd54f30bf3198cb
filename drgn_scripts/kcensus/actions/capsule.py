# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus capsule create``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from kcensus import capsule
from kcensus.actions import Exit, Reading
from kcensus.actions.shared.target import chosen_analyses, left_out, opened
from kcensus.render.directory import OutputError
from kcensus.sources.capsule.container import CannotWrite
from kcensus.sources.reader import os_reason
from kcensus.sources.session import is_session
from kcensus.text import printable

_MIN_KEY_BYTES = 16


def create(
    target: str,
    out: Path | None,
    analyses: str | None,
    level: int,
    force: bool,
    redact: tuple[str, ...],
    redact_key: Path | None,
    reading: Reading,
) -> Exit:
    """Write a capsule of ``target`` to ``out``.

    :param out: None if the command line has one of the two; in a session, that is ``out``
    """
    if out is None:
        target, out = left_out("OUT"), Path(target)
    wanted, key = chosen_analyses(analyses), _key(redact_key, redact)
    _check_out(target, out, force)
    with opened(target, reading) as (opened_target, progress):
        try:
            made = capsule.create(
                opened_target,
                out,
                wanted,
                level=level,
                redact=redact,
                key=key,
                progress=progress,
                chunk_bytes=reading.chunk_size,
            )
        except CannotWrite as reason:
            raise OutputError(f"{out}: {reason}") from reason
    for name, error in made.failed.items():
        sentence = printable(f"{name} failed on this target: {error}")
        click.echo(f"kcensus: {sentence}", err=True)
    for sentence in made.unredacted:
        click.echo(f"kcensus: not redacted: {printable(sentence)}", err=True)
    names = ", ".join(name for name in made.analyses if name not in made.failed)
    unreadable = f", {made.unreadable:,} pages unreadable" if made.unreadable else ""
    click.echo(
        f"{printable(str(out))}: {out.stat().st_size:,} bytes, {made.stored:,} pages{unreadable}, "
        f"for {names}" + (f"; redacted: {', '.join(redact)}" if redact else "")
    )
    return Exit.INCOMPLETE if made.failed else Exit.DONE


def _check_out(target: str, out: Path, force: bool) -> None:
    """Refuse an impossible place before any work is done."""
    problem = ""
    if is_session(out):
        problem = "is the dump that is open here; choose another name"
    elif os.path.lexists(out) and not force:
        problem = "exists; choose another name, or add --force"
    elif out.is_dir():
        problem = "is a directory; give a file"
    elif out.exists() and not out.is_file():
        problem = "is not a regular file; choose another name"
    elif out.exists() and os.path.exists(target) and out.samefile(target):
        problem = "is the target itself; choose another name"
    if problem:
        raise click.UsageError(f"'{out}' {problem}.")
    if not out.parent.is_dir():
        raise click.UsageError(f"'{out.parent}' is not a directory.")


def _key(path: Path | None, redact: tuple[str, ...]) -> bytes | None:
    if path is None:
        return None
    if "names" not in redact:
        raise click.UsageError("--redact-key is for --redact names; add that option.")
    try:
        key = path.read_bytes()
    except OSError as error:
        raise click.UsageError(f"--redact-key: '{path}': {os_reason(error)}.") from None
    if len(key) < _MIN_KEY_BYTES:
        problem = f"is too short for a key; it takes {_MIN_KEY_BYTES} bytes"
        raise click.UsageError(f"--redact-key: '{path}' {problem}.")
    return key
