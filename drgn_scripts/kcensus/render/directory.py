# SPDX-License-Identifier: LGPL-2.1-or-later
"""A directory of result files, each written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class OutputError(Exception):
    """Where the output should go, it cannot; the message is one sentence for the user."""


def prepare(directory: Path) -> None:
    """Make ``directory`` unless it is there; anything else of that name is an error."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OutputError(f"{directory} is in the way: a directory is needed, not a file") from None
    except OSError as error:
        raise OutputError(f"cannot make {directory}: {error.strerror}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; it takes the place of ``path`` once it is complete."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
