# SPDX-License-Identifier: LGPL-2.1-or-later
"""The targets of a fleet: files, patterns, directories, and lists of them."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path

from kcensus.fleets import FleetError
from kcensus.samples import capsule
from kcensus.sources.capsule.container import MAGIC as CAPSULE
from kcensus.sources.debuginfo.unused import check
from kcensus.sources.formats import elf, kdump
from kcensus.sources.reader import os_reason

_STARTS = (CAPSULE, kdump.MAGIC, kdump.FLAT_MAGIC)
"""First bytes of the targets in a directory; files with others are left out."""
_CORE = b"\x04\0", b"\0\x04"
"""``e_type`` of an ELF core dump (ET_CORE), little- and big-endian."""
_NAMES = re.compile(r"(?!.*\.(?:txt|log)$)(?:vmcore|core\.|dump\.|kdump(?!_)|.*\.capsule$)")
"""Names of dumps and capsules, but not of the logs and locks beside them."""
_TEXT = bytes((*b"\t\n\r\f\x1b", *range(0x20, 0x7F)))
_HEAD = 64
_MAX_PATH = 4096
_MAX_EXAMPLES = 3


@dataclass
class Found:
    """Targets by path, and what was left out on the way."""

    targets: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    """Reasons by the paths of directories that cannot be read."""
    others: int = 0
    """Number of files in directories that are not targets."""
    examples: dict[str, str] = field(default_factory=dict)
    """Of the first of these, what they are, by path."""
    roots: list[str] = field(default_factory=list)
    """Directories with targets, absolute."""


def find(words: Iterable[str], lines: Iterable[str] = ()) -> Found:
    """Return the targets that words name, each path once, absolute, in their order.

    A word is the path of a file or directory, the name of a bundled capsule, or a pattern, in which
    ``**`` stands for all directories below. A directory stands for the dumps, capsules and
    documents below it, and for files that are named like dumps and are empty or damaged; links to
    directories are not followed. A file is a target whatever is in
    it: the run says why it is not readable.

    :param lines: for the word ``-``: more words, one per line
    :raises FleetError: a word is empty
    """
    found, seen = Found(), set()
    for word in words:
        for each in _lines(lines) if word == "-" else (word,):
            for path in _expand(each, found):
                is_name = not os.path.lexists(path) and capsule(path)
                full = path if is_name else os.path.abspath(path)
                if (key := _real(full)) not in seen:
                    seen.add(key)
                    found.targets.append(full)
    return found


def check_symbols(paths: Iterable[str | os.PathLike[str]], *, is_remote: bool) -> list[str]:
    """Return places of debug info of any kernels, absolute.

    :param is_remote: whether others read the targets: what is not here may be there
    :raises TargetError: one cannot be read, or has nothing for any kernel
    """
    places = [Path(path) for path in paths]
    check(path for path in places if not is_remote or os.path.lexists(path))
    return [os.path.abspath(path) for path in places]


def changed(paths: Iterable[str]) -> float:
    """Return when files, or directories and the files below, last changed; seconds since 1970.

    A file that is moved into a directory may be old, but the directory changes. Times in the future
    count as now.
    """
    latest = 0.0
    for path in paths:
        below = (
            os.path.join(folder, name)
            for folder, _, names in os.walk(path)
            for name in ("", *names)
        )
        for each in (path, *below):
            with contextlib.suppress(OSError):
                latest = max(latest, os.stat(each).st_mtime)
    return min(latest, time.time())


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:  # no file can have this name
        return path


def _lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the words in lines, without the blanks around them unless a file has them in its name.

    A line that is longer than any path is cut, and does not exist.
    """
    for line in lines:
        word = line.rstrip("\n")[:_MAX_PATH]
        if word := word if os.path.lexists(word) else word.strip():
            yield word


def _expand(word: str, found: Found) -> Iterator[str]:
    if not word:
        raise FleetError("a target is empty text; is a variable of the shell not set?")
    if os.path.isdir(word):
        yield from _below(word, found)
    elif os.path.lexists(word) or capsule(word) or not glob.has_magic(word):
        yield word
    else:
        # glob.glob() follows links to directories, also to those above.
        try:
            matches = sorted(map(str, Path(Path(word).anchor).glob(word.lstrip("/"))))
        except (OSError, ValueError):  # no pattern, such as `**x`, or no file can have this name
            matches = []
        yield from (each for each in matches if not os.path.isdir(each))
        if not matches:
            yield word  # it does not exist, which its row says


def _below(directory: str, found: Found) -> Iterator[str]:
    def failed(error: OSError) -> None:
        found.unreadable[os.path.abspath(error.filename)] = error.strerror or str(error)

    has_targets = False
    for folder, folders, names in os.walk(directory, onerror=failed):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not (other := _other(path)):
                has_targets = True
                yield path
                continue
            found.others += 1
            if len(found.examples) < _MAX_EXAMPLES:
                found.examples[path] = other
    if has_targets:  # else its disk may be away
        found.roots.append(os.path.abspath(directory))


def gone(known: Iterable[str], named: Set[str], roots: Iterable[str]) -> list[str]:
    """Return the known paths below roots that have no file any more, but for named ones.

    :param known: paths as in a store; files with odd names cannot be looked up
    """
    places = tuple(os.path.join(root, "") for root in roots)
    return [
        path
        for path in known
        if path not in named and path.startswith(places) and "\\" not in path and _is_gone(path)
    ]


def _is_gone(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass  # it may be there
    return False


def _other(path: str) -> str:
    """Return what a file is that neither begins like a target nor, without being text, is named
    like one; empty for a target.

    One without permission is a target, to be reported.
    """
    try:
        if not stat.S_ISREG(mode := os.stat(path).st_mode):
            # Opening a FIFO waits for its writer.
            return "a named pipe" if stat.S_ISFIFO(mode) else "no regular file"
        with open(path, "rb", buffering=0) as file:
            head = file.read(_HEAD)
    except PermissionError:
        return ""
    except OSError as error:
        return f"cannot be read ({os_reason(error)})"
    is_core = head.startswith(elf.MAGIC) and head[16:18] in _CORE
    is_document = head.lstrip().startswith(b"{") and b'"schema"' in head
    if is_core or is_document or head.startswith(_STARTS):
        return ""
    is_text = bool(head) and not head.translate(None, _TEXT)
    is_other = head.startswith(elf.MAGIC) or is_text
    if _NAMES.match(os.path.basename(path)) and not is_other:
        return ""
    return "no dump by its content" if head else "empty"
