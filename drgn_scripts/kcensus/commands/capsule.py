# SPDX-License-Identifier: LGPL-2.1-or-later
"""Extract the part of a vmcore that the analyses need."""

from __future__ import annotations

import os
from pathlib import Path

import click

from kcensus.commands import Exit
from kcensus.commands.shared import options
from kcensus.commands.shared.errors import complain
from kcensus.commands.shared.target import chosen_analyses, left_out, opened
from kcensus.text import printable

_MIN_KEY_BYTES, _MAX_KEY_BYTES = 16, 1 << 20


def _create(
    target: str,
    out: Path | None,
    analyses: str | None,
    level: int,
    force: bool,
    redact: tuple[str, ...],
    keep: tuple[str, ...],
    redact_key: Path | None,
    reading: options.Reading,
) -> Exit:
    from kcensus import capsule

    if out is None:  # in a session, the only word is OUT
        target, out = left_out("OUT"), Path(target)
    wanted, key = chosen_analyses(analyses), _key(redact_key, redact)
    if keep and "names" not in redact:
        raise click.UsageError("--keep needs --redact names; add --redact names.")
    _check_out(target, out, force)
    with opened(target, reading) as (opened_target, progress):
        made = capsule.create(
            opened_target,
            out,
            wanted,
            level=level,
            redact=redact,
            keep=keep,
            key=key,
            progress=progress,
            chunk_bytes=reading.chunk_size,
        )
    for name, error in made.failed.items():
        complain(f"{name} failed on this target: {error}")
    if made.lacking:
        complain(
            f"no debug info of {', '.join(made.lacking)}: the capsule will never show what needs "
            "it; pass it with -s and record again (`kcensus doctor` has the reasons)"
        )
    for sentence in made.unredacted:
        complain(f"not redacted: {sentence}")
    names = ", ".join(name for name in made.analyses if name not in made.failed)
    unreadable = f", {made.unreadable:,} pages unreadable" if made.unreadable else ""
    click.echo(
        f"{printable(str(out))}: {made.bytes:,} bytes, {made.stored:,} pages{unreadable}, "
        f"for {names}" + (f"; redacted: {', '.join(redact)}" if redact else "")
    )
    return Exit.INCOMPLETE if made.failed else Exit.DONE


def _check_out(target: str, out: Path, force: bool) -> None:
    """Refuse an impossible place before any work is done."""
    from kcensus.sources.session import is_session

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


_CREATE = options.command(
    "create",
    _create,
    [
        options.target(required=True),
        # Inside crash and drgn, the only word is OUT.
        click.Argument(["out"], type=options.PATH, required=False, metavar="OUT"),
        options.analyses("Record for"),
        click.Option(
            ["--level"],
            type=click.IntRange(1, 19),
            default=3,
            show_default=True,
            help="Compression: 1 is the fastest, 19 the smallest.",
        ),
        click.Option(
            ["--redact"],
            type=click.Choice(["names"]),
            multiple=True,
            help="Keep only memory that the analyses use, and replace all text in it except words"
            " of the kernel with pseudonyms of the same shape: names of files, mounts, cgroups,"
            " devices, processes and hosts, and the kernel log. In the log, a name that is also a"
            " word of the kernel (`dd`, `server`) can stay.",
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
        options.flag("--force", "Overwrite OUT."),
        *options.reading(),
    ],
    "Run the analyses on TARGET and write the memory that they read to OUT. Inside crash and drgn, "
    "TARGET can be left out.",
    (
        ("kcensus capsule create vmcore case.capsule -s vmlinux", "for all analyses"),
        ("kcensus capsule create vmcore case.capsule --analyses slab,dentries", "for two of them"),
        (
            "kcensus capsule create vmcore case.capsule --redact names",
            "without names of files, mounts, cgroups, devices, processes and hosts",
        ),
        ("kcensus report case.capsule", "analyze it on any machine, without debug info"),
    ),
)


COMMAND = options.group(
    "capsule",
    (
        "Extract the part of a vmcore that the analyses need, small enough to attach to a "
        "ticket.\n\nA capsule holds the memory and types that analyses read. Every command takes "
        "it in place of the vmcore, without debug info.\n\nIt holds no pages of programs or files. "
        "For iosched, kcopyd and waits, it holds the kernel stacks of sleeping tasks, with the "
        "local variables of kernel functions: addresses, numbers, and possibly part of a path or "
        "of data being copied or encrypted."
    ),
    [_CREATE],
)
