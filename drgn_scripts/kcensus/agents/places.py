# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files that the server may open: targets below its directories, and the samples."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from kcensus.samples import CAPSULES, capsule
from kcensus.text import bounded, printable

LIVE = "live"
"""Name of the running kernel."""
_MAX_SHOWN = 200


class PlaceError(Exception):
    """A target is not below the directories; the message is one sentence."""


@dataclass(frozen=True)
class Chosen:
    """A target that may be opened."""

    path: str | None
    """An absolute path; None is the running kernel."""
    size: int = 0
    modified_ns: int = 0
    """Identify the content: a file that changes is another target."""


@dataclass(frozen=True)
class Places:
    """The directories with targets."""

    roots: tuple[str, ...]
    """Absolute, without symbolic links."""
    allow_live: bool = False

    @staticmethod
    def of(directories: Sequence[str | os.PathLike[str]], *, allow_live: bool = False) -> Places:
        """Return the places below directories.

        :raises PlaceError: one of them is not a directory
        """
        roots = []
        for each in directories:
            root = os.path.realpath(each)
            if not os.path.isdir(root):
                raise PlaceError(f"'{printable(os.fspath(each))}' is not a directory")
            roots.append(root)
        return Places(tuple(dict.fromkeys(roots)), allow_live)

    def chosen(self, name: str) -> Chosen:
        """Return the target of a name: a sample, or a path, relative to one of the directories.

        :raises PlaceError: there is no such target; the sentence is the same for files elsewhere
            that exist, and for those that do not
        """
        if name in CAPSULES and (sample := capsule(name)):
            # Never by name: a file so called in the current directory would win.
            return Chosen(str(sample))
        if name == LIVE:
            if self.allow_live:
                return Chosen(None)
            raise PlaceError(
                f"'{LIVE}' is not served: start `kcensus mcp` with --live to read the running "
                "kernel"
            )
        for root in self.roots:
            if found := self._below(os.path.join(root, name)):
                return found
        shown = bounded(printable(name), _MAX_SHOWN)
        raise PlaceError(f"'{shown}' is not a target of this server; the tool `targets` lists them")

    def _below(self, path: str) -> Chosen | None:
        try:
            real = os.path.realpath(path, strict=True)
            status = os.stat(real)
        except (OSError, ValueError):
            return None
        if not any(real.startswith(os.path.join(root, "")) for root in self.roots):
            return None
        # Files below /proc are the running kernel, as kcore, or of other processes.
        is_proc = status.st_dev == _device("/proc")
        if not stat.S_ISREG(status.st_mode) or is_proc:
            return None
        return Chosen(real, status.st_size, status.st_mtime_ns)


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:
        return None
