# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make one file for support: the report, a capsule, and the versions."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from kcensus.commands import Exit
from kcensus.commands.shared import options
from kcensus.commands.shared.errors import complain
from kcensus.commands.shared.redacting import check_out, key_of, redacting
from kcensus.human import human_bytes
from kcensus.text import printable

if TYPE_CHECKING:
    from kcensus.commands.collect.order import Account

_SECONDS, _MAX_BYTES = 60, 64_000_000
_NEWEST = 3
_HELP = """Make one file for support: a report as text, JSON and HTML, a capsule, and the versions.

TARGET is the running kernel by default (needs root), or a dump, a capsule, or a directory such as
/var/crash, of which the newest three dumps are taken.

The command takes at most 60 s and 64 MB. What it leaves out for that is in the README of the
archive, in its manifest, and on screen. It takes at most half of the available memory. With --full,
it yields to other programs (nice 19). If it is stopped, there is no file, or the old one.

With --redact names, the report is made from the redacted capsule: no file in the archive has names
of files, mounts, cgroups, devices, processes and hosts, but for what --redact says of the log."""


def _run(
    target: str | None,
    out: Path | None,
    full: bool,
    max_time: int | None,
    max_size: int | None,
    force: bool,
    redact: tuple[str, ...],
    keep: tuple[str, ...],
    redact_key: Path | None,
    reading: options.Reading,
) -> Exit:
    if options.session_is_open():
        raise click.UsageError("collect needs a process of its own; run it from a shell.")
    if full and (max_time or max_size):
        raise click.UsageError("--full lifts both limits; omit --max-time and --max-size.")
    key = key_of(redact_key, redact, keep)
    if out is not None and str(out) == "-":
        raise click.UsageError("-o: an archive is a file, not a stream; give a file a name.")
    path = out or Path(time.strftime("kcensus-%Y%m%d-%H%M%S.tar.zst", time.gmtime()))
    targets, unreadable = _targets(target)
    check_out(targets, path, force)
    from kcensus.commands.collect import run
    from kcensus.commands.collect.reasons import NO_FILE
    from kcensus.commands.shared.target import progress_bars
    from kcensus.limits import is_own_process, yield_to_others

    if is_own_process():
        yield_to_others(is_nice=full)
    case = run.Case(
        targets,
        reading,
        redact,
        keep,
        key,
        None if full else max_time or _SECONDS,
        None if full else max_size or _MAX_BYTES,
    )
    try:
        with progress_bars(reading.no_progress) as progress:
            accounts, seconds, size = run.collect(case, path, progress)
    except run.NothingError as nothing:
        for account in nothing.accounts:
            is_named = len(targets) == 1 or account.shown in account.error
            complain(account.error if is_named else f"{account.shown}: {account.error}")
        complain("nothing was written")
        is_wrong = all(each.error_kind == NO_FILE for each in nothing.accounts)
        return Exit.USAGE if is_wrong else Exit.TARGET
    status = _shown(path, accounts, seconds, size)
    return Exit.INCOMPLETE if unreadable and status is Exit.DONE else status


def _duration(text: str) -> int:
    """Return seconds; a number alone is seconds, too."""
    return options.interval(f"{text}s" if text.strip().isdecimal() else text)


def _targets(target: str | None) -> tuple[list[str | None], bool]:
    """Return the target, or the newest dumps below a directory, and whether others may be newer.

    :raises TargetError: there are none
    """
    if target is None or not os.path.isdir(target):
        return [target], False
    from kcensus.fleets.targets import find
    from kcensus.saved import is_document
    from kcensus.sources import TargetError
    from kcensus.sources.capsule.container import is_capsule

    found = find([target])
    dumps = [path for path in found.targets if not is_capsule(path) and not is_document(path)]
    for path, why in found.unreadable.items():
        complain(f"'{printable(path)}' is left out, whatever it has: {printable(why)}")
    if not dumps:
        what = "no readable dumps" if found.unreadable else "no dumps"
        but = ", only capsules or reports" if found.targets else ""
        raise TargetError(f"'{printable(target)}' has {what} below it{but}; pass the file of one")
    newest = sorted(dumps, key=lambda path: (-os.stat(path).st_mtime, path))
    return [*newest[:_NEWEST]], bool(found.unreadable)


def _shown(path: Path, accounts: Sequence[Account], seconds: float, size: int) -> Exit:
    from kcensus.commands.collect.archive import left_out_of

    click.echo(f"{printable(str(path))}: {human_bytes(size)} in {seconds:.0f} s")
    for number, account in enumerate(accounts, 1):
        kernel = f", Linux {account.kernel}" if account.kernel else ""
        has = [f"report{_part_of(account)}"] * account.has_report
        has += ["capsule"] * bool(account.capsule)
        click.echo(f"  {number}/ {account.shown}{kernel}: {' and '.join(has) or 'nothing'}")
        for what, why in left_out_of(account):
            complain(f"{number}/ lacks {what}: {why}")
        for module in account.capsule.get("modules_without_debug_info", ()):
            complain(f"{number}/ lacks debug info of {module}; pass it with -s")
        for sentence in account.capsule.get("not_redacted", ()):
            complain(f"{number}/ not redacted: {sentence}")
    click.echo(f"Look at it before you send it: tar --zstd -xf {quote(printable(str(path)))}")
    if not any(account.has_report for account in accounts):
        return Exit.TARGET
    is_complete = all(account.is_complete for account in accounts)
    return Exit.DONE if is_complete else Exit.INCOMPLETE


def _part_of(account: Account) -> str:
    """Return how much of a report there is, unless it is complete."""
    done = list(account.analyses.values()).count("done")
    return "" if account.is_complete else f" ({done} of {len(account.analyses)} analyses)"


COMMAND = options.command(
    "collect",
    _run,
    [
        options.target(),
        options.files(
            "out -o --output",
            "OUT",
            "The file to write. Default: kcensus-DATE-TIME.tar.zst in this directory.",
        ),
        options.flag("--full", "Lift the limits of time and size."),
        options.option(
            "--max-time",
            "TIME",
            "Take at most this long, such as 5m; a number alone is seconds.",
            type=_duration,
        ),
        options.option(
            "--max-size",
            "SIZE",
            "Write at most this much, such as 200M.",
            type=options.size(1 << 20, "1M, such as 64M"),
        ),
        *redacting(),
        options.flag("--force", "Overwrite OUT."),
        *options.reading(),
    ],
    _HELP,
    (
        ("sudo kcensus collect -o case.tar.zst", "the running kernel"),
        ("kcensus collect /var/crash -o case.tar.zst", "the newest three dumps there"),
        ("kcensus collect vmcore -o case.tar.zst --full", "without limits of time and size"),
        (
            "kcensus collect vmcore -o case.tar.zst --redact names",
            "without names of files, mounts, cgroups, devices, processes and hosts",
        ),
        ("tar --zstd -xf case.tar.zst", "look at it before you send it"),
    ),
)
