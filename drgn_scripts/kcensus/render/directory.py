# SPDX-License-Identifier: LGPL-2.1-or-later
"""A directory of result files, each of which is complete or absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    """Check that :func:`replacing` can write, before what is to be written is computed.

    :raises OutputError: it cannot
    """
    check_replaceable(path)
    path = path.resolve()
    part = _part(path)
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise OutputError(f"cannot write '{path}': {error.strerror or error}") from None


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces ``path`` when the context ends without an error.

    A symbolic link stays, and what it points to is replaced.

    :raises OutputError: the operating system refuses, or ``path`` is a device, a FIFO or the like
    """
    check_replaceable(path)
    path = path.resolve()
    part = _part(path)
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        raise OutputError(f"cannot write '{path}': {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
