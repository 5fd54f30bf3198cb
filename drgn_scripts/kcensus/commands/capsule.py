# SPDX-License-Identifier: LGPL-2.1-or-later
"""Extract the part of a vmcore that the analyses need."""

from __future__ import annotations

from pathlib import Path

import click

from kcensus.commands import Exit
from kcensus.commands.shared import options
from kcensus.commands.shared.errors import complain
from kcensus.commands.shared.redacting import check_out, key_of, redacting
from kcensus.commands.shared.target import chosen_analyses, left_out, opened
from kcensus.text import printable

PARTS = ("manifest", "types and symbols", "memory")
"""Of a capsule."""


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
    wanted, key = chosen_analyses(analyses), key_of(redact_key, redact, keep)
    check_out([target], out, force)
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
        *redacting(),
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


def _search(target: str, words: tuple[str, ...]) -> Exit:
    if not all(words) or not words:
        raise click.UsageError("name at least one WORD, such as the name of the host.")
    from kcensus import samples
    from kcensus.sources import TargetError
    from kcensus.sources.capsule.container import BadCapsule, Reader
    from kcensus.sources.capsule.contents import contents

    path = target if Path(target).exists() else str(samples.capsule(target) or target)
    found = {(word, part): 0 for word in words for part in PARTS}
    try:
        for part, data in contents(Reader(path)):
            for word in words:
                found[word, part] += data.count(word.encode(errors="surrogateescape"))
    except (BadCapsule, OSError) as error:
        raise TargetError(f"{printable(target)}: {error}") from None
    for (word, part), times in found.items():
        if times:
            click.echo(f"{printable(word)}: {times:,} times in the {part}")
    if not any(found.values()):
        click.echo(f"{printable(target)} has none of these words")
    return Exit.FINDING if any(found.values()) else Exit.DONE


_SEARCH = options.command(
    "search",
    _search,
    [
        options.target(required=True),
        click.Argument(["words"], nargs=-1, required=False, metavar="WORD..."),
    ],
    "Look for words in all of a capsule, decompressed: manifest, types, symbols and memory. "
    "TARGET is the capsule. Upper and lower case differ. The exit status is 1 if a word is there, "
    "and 0 if none is.",
    (("kcensus capsule search case.capsule web01.example.com web01", "is the host in it?"),),
)


def _names(words: tuple[str, ...], redact_key: Path | None, pseudonyms: bool) -> Exit:
    if not words:
        raise click.UsageError("name at least one WORD, as it is in the redacted report.")
    key = key_of(redact_key, ("names",), ())
    if key is None:
        raise click.UsageError(
            "only the key that made the pseudonyms translates them: pass --redact-key. Without "
            "one, `kcensus explain pseudonym` has another way."
        )
    from kcensus.redaction.pseudonyms import Pseudonyms

    made = Pseudonyms(key)
    turned = made.of if pseudonyms else made.original
    for word in words:
        other = turned(word.encode(errors="surrogateescape"))
        if other is None:
            click.echo(f"{printable(word)}: no name has this pseudonym with this key; check both.")
            continue
        name = other.decode(errors="surrogateescape")
        click.echo(f"{printable(word)}: {printable(name)}")
    return Exit.DONE


_NAMES = options.command(
    "names",
    _names,
    [
        click.Argument(["words"], nargs=-1, required=False, metavar="WORD..."),
        options.files("--redact-key", "FILE", "The secret that the capsule was made with."),
        options.flag("--pseudonyms", "Translate names into their pseudonyms instead."),
    ],
    "Translate pseudonyms of a redacted capsule back into names, for whoever has the key. A WORD "
    "can be a path or a part of a name. A word that was never replaced, as a word of the kernel in "
    "its log, comes out as another one, and letters that are not ASCII do not come back.",
    (
        ("kcensus capsule names --redact-key key /xrq/k", "which path does support ask about?"),
        (
            "kcensus capsule names --redact-key key --pseudonyms web01",
            "what is this host called in the redacted report?",
        ),
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
    [_CREATE, _SEARCH, _NAMES],
)
