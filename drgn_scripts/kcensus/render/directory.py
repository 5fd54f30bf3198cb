# SPDX-License-Identifier: LGPL-2.1-or-later
"""A directory of result files, each complete or absent."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MAX_SECONDS = 600
"""Seconds since the last write, after which a partial file is abandoned."""


class OutputError(Exception):
    """The output cannot be written; the message is one sentence for the user."""


def prepare(directory: Path) -> None:
    """Make ``directory`` unless it exists.

    :raises OutputError: a file has its name, or it cannot be made
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OutputError(f"'{directory}' is not a directory; choose another name") from None
    except OSError as error:
        raise OutputError(f"cannot make '{directory}': {error.strerror}") from None


def check_replaceable(path: Path) -> None:
    """Refuse to replace anything but a regular file: as root, that would destroy a device node.

    :raises OutputError: ``path`` exists and is not a regular file
    """
    if path.exists() and not path.is_file():
        raise OutputError(f"'{path}' is not a regular file; choose another name")


def check_writable(path: Path) -> None:
    """Check that :func:`replacing` can write, before the content is computed.

    :raises OutputError: it cannot
    """
    check_replaceable(path)
    path = path.resolve()
    try:
        with _part(path):
            pass
    except OSError as error:
        raise OutputError(f"cannot write '{path}': {error.strerror or error}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces ``path`` when the context ends without an error.

    A symbolic link stays, and its target is replaced. The last of several writers of one path
    wins.

    :raises OutputError: the operating system refuses, or ``path`` is a device, a FIFO or the like
    """
    check_replaceable(path)
    path = path.resolve()
    try:
        with _part(path) as (part, descriptor):
            # Not by its name: whoever owns the directory could put a link there meanwhile.
            yield Path(f"/proc/self/fd/{descriptor}")
            os.replace(part, path)
    except OSError as error:
        raise OutputError(f"cannot write '{path}': {error.strerror or error}") from None


@contextmanager
def _part(path: Path) -> Iterator[tuple[Path, int]]:
    """Yield a new file beside ``path``, used by no other writer, and an open descriptor of it."""
    _remove_abandoned(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        yield part, descriptor
    finally:
        os.close(descriptor)
        part.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """Remove the parts of killed writers of ``path``."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.part")
    with suppress(OSError):  # they only take space
        for part in [entry for entry in os.scandir(path.parent) if name.fullmatch(entry.name)]:
            status = part.stat(follow_symlinks=False)
            is_old = time.time() - status.st_mtime > _MAX_SECONDS
            if is_old and status.st_uid == os.geteuid():
                os.unlink(part)
