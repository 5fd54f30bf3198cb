# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that commands write: each complete or absent, whoever else writes beside it."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import signal
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAX_LINKS = 40
"""Most links from one name to the next, as in the kernel (MAXSYMLINKS)."""
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
"""What file systems without O_TMPFILE answer."""
_PART = re.compile(r"\.kcensus-[0-9a-f]{16}\.part")
_LIST, _MAX_LIST = ".kcensus-files", 1 << 20
"""Name and most bytes of a list of files that runs wrote to a directory."""
_LISTED = re.compile(r"(\d+-\d+-\d+) ((?:[\w-]+/)?[\w-]+\.\w+)", re.ASCII)
_MAX_SECONDS = 600
"""Seconds since the last write, after which a partial file without a lock is abandoned."""


class OutputError(Exception):
    """The output cannot be written; the message is one sentence for the user."""


def prepare(directory: Path, mode: int = 0o777) -> None:
    """Make ``directory`` unless it exists; ``mode`` is less the umask.

    :raises OutputError: a file has its name, it cannot be made, or a link leads there that others
        may have made
    """
    try:
        there = next(each for each in (directory, *directory.parents) if os.path.lexists(each))
        if there.is_dir():
            os.close(_opened(there))
        directory.mkdir(mode, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OutputError(f"'{directory}' is not a directory; choose another name") from None
    except OSError as error:
        raise OutputError(f"cannot make '{directory}': {error.strerror}") from None


def check_replaceable(path: Path) -> None:
    """Refuse to replace anything but a regular file: as root, that would destroy a device node.

    :raises OutputError: ``path`` exists and is not a regular file, or is a link not to be followed
    """
    with _refusals(path), _place(path):
        pass


def check_writable(path: Path) -> None:
    """Check that :func:`replacing` can write, before the content is computed.

    :raises OutputError: it cannot
    """
    with _refusals(path), _place(path) as place, _part(place, 0o600):
        pass


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a path to write to, which replaces ``path`` when the context ends without an error.

    The last of several writers of one path wins. A symbolic link stays, and its target is
    replaced; but only a link of this user or of root, in a directory that no other user may write
    to, since others could make this process replace any file.

    :param mode: permissions of a new file, less the umask. Without any for others, they are those
        of a file that is replaced, too. Else a file of this user that is replaced keeps its own,
        and what replaces a file of another user has no more than that had
    :raises OutputError: the operating system refuses, or ``path`` is a device, a FIFO or the like
    """
    with _refusals(path), _place(path) as place, _part(place, mode) as part:
        # Not by its name: whoever owns the directory could put a link there meanwhile.
        yield Path(f"/proc/self/fd/{part.descriptor}")
        part.replace()


def remove(path: Path, written: os.stat_result) -> None:
    """Remove a file if it is still the one that was ``written``, and can be removed."""
    with suppress(OSError, OutputError), _place(path) as place:
        if place.replaced is not None and _identity(place.replaced) == _identity(written):
            os.unlink(place.name, dir_fd=place.directory)


@contextmanager
def renewing(directory: Path, names: Collection[str]) -> Iterator[None]:
    """Remove files of earlier runs from a directory, after the context has written those of now.

    A hidden file lists what runs wrote, with its inode and time; files that were changed or made by
    others since then stay.

    :param names: paths in ``directory`` of the files of now, with one suffix
    :raises OutputError: the list cannot be written
    """
    list_ = directory / _LIST
    before, suffixes = _listed(list_), {Path(name).suffix for name in names}
    try:
        yield
    finally:
        written = before | {name: mark for name in names if (mark := _mark(directory / name))}
        old = {
            name: mark
            for name, mark in before.items()
            if name not in names and Path(name).suffix in suffixes
        }
        _write_list(list_, written)
    for name, mark in old.items():
        path = directory / name
        if mark == _mark(path) and not path.parent.is_symlink():
            with suppress(OSError):
                remove(path, os.lstat(path))
                path.parent.rmdir()  # unless it has other files
    _write_list(list_, {name: mark for name, mark in written.items() if name not in old})


def _mark(path: Path) -> str:
    """Return what tells a file from a later one of its name; empty for anything else."""
    try:
        status = os.lstat(path)
    except OSError:
        return ""
    return "-".join(map(str, _identity(status))) if stat.S_ISREG(status.st_mode) else ""


def _listed(path: Path) -> dict[str, str]:
    """Return the names in a list, and the mark of each, unless another user wrote it."""
    try:
        found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    with open(found, encoding="ascii", errors="replace") as file:
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return {}
        lines = map(_LISTED.fullmatch, file.read(_MAX_LIST).split("\n"))
        return {found[2]: found[1] for found in lines if found}


def _write_list(path: Path, marks: Mapping[str, str]) -> None:
    with replacing(path) as part:
        text = "".join(f"{mark} {name}\n" for name, mark in sorted(marks.items()))
        part.write_text(text, encoding="ascii")


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    # An inode alone may be used again once it is free.
    return status.st_dev, status.st_ino, status.st_mtime_ns


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into sentences."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write '{path}': {error.strerror or error}") from None


@dataclass(frozen=True)
class _Place:
    """Where a file will be: a name in a directory, with all links followed."""

    directory: int
    """Descriptor."""
    name: str
    replaced: os.stat_result | None
    """The file that has the name; None if there is none."""


@contextmanager
def _place(path: Path) -> Iterator[_Place]:
    """Yield where ``path`` leads.

    :raises OutputError: to something that is not a regular file, or through a link that others may
        have made
    """
    asked = path
    for _ in range(_MAX_LINKS):
        directory = _opened(path.parent)
        try:
            link, status = _looked_up(directory, path.name)
            if not link:
                if status is not None and not stat.S_ISREG(status.st_mode):
                    raise OutputError(f"'{asked}' is not a regular file; choose another name")
                yield _Place(directory, path.name, status)
                return
            if os.fstat(directory).st_dev == os.stat("/proc/self/fd").st_dev:
                raise OutputError(f"'{asked}' is an open file, not a name; give a file a name")
            if not _is_trusted(os.fstat(directory), status):
                raise _untrusted(path)
        finally:
            os.close(directory)
        path = path.parent / link
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _untrusted(link: Path) -> OutputError:
    return OutputError(
        f"'{link}' is a symbolic link that another user can have made; choose another name, or "
        "give what it leads to"
    )


def _opened(directory: Path) -> int:
    """Return a descriptor of a directory.

    Links on the way follow the rule of protected_symlinks, also where that is off, and in all
    directories to which others than their owner can write; the owner of a directory is trusted.

    :raises OutputError: through a link that others may have made
    """
    flags = os.O_DIRECTORY | os.O_CLOEXEC
    found = os.open("/" if directory.is_absolute() else ".", os.O_PATH | flags)
    way = [part for part in reversed(directory.parts) if part != "/"]
    links = 0
    try:
        while way:
            name = way.pop()
            link, status = _looked_up(found, name)
            above, here = found, os.fstat(found)
            if link and here.st_dev != os.stat("/proc/self/fd").st_dev:
                if (links := links + 1) > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                users = (0, os.geteuid(), here.st_uid)
                is_kept = here.st_mode & stat.S_ISVTX and status and status.st_uid in users
                if _is_shared(here) and not is_kept:
                    raise _untrusted(directory)
                way += reversed(Path(link).parts)
                continue
            found = os.open(name, os.O_PATH | flags, dir_fd=found)
            os.close(above)
        with suppress(PermissionError):  # one can write to a directory that one cannot read
            above, found = found, os.open(".", os.O_RDONLY | flags, dir_fd=found)
            os.close(above)
    except BaseException:
        os.close(found)
        raise
    return found


def _looked_up(directory: int, name: str) -> tuple[str, os.stat_result | None]:
    """Return where a link leads, or an empty text, and the status of what has the name, if any."""
    try:
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return "", None
    try:
        status = os.fstat(found)
        return os.readlink("", dir_fd=found) if stat.S_ISLNK(status.st_mode) else "", status
    finally:
        os.close(found)


def _is_trusted(directory: os.stat_result, link: os.stat_result | None) -> bool:
    users = (0, os.geteuid())
    return (
        link is not None
        and link.st_uid in users
        and directory.st_uid in users
        and not _is_shared(directory)
    )


def _is_shared(directory: os.stat_result) -> bool:
    """Return whether others than the owner can write; a group of the owner's number is private."""
    others = stat.S_IWOTH if directory.st_gid == directory.st_uid else stat.S_IWOTH | stat.S_IWGRP
    return bool(directory.st_mode & others)


@dataclass(frozen=True)
class _Part:
    """A new file beside a place, used by no other writer."""

    place: _Place
    descriptor: int
    mode: int
    """Permissions of the complete file."""
    name: str
    """Empty while it has none."""

    def replace(self) -> None:
        """Give it the name of the place."""
        directory, name = self.place.directory, self.name
        os.fchmod(self.descriptor, self.mode)
        os.fsync(self.descriptor)
        is_named, name = bool(name), name or _new_name()
        try:
            with _removed_by_signals(directory, name):
                if not is_named:
                    os.link(f"/proc/self/fd/{self.descriptor}", name, dst_dir_fd=directory)
                os.replace(name, self.place.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:  # Ctrl-C, too
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            raise
        with suppress(OSError):  # some file systems cannot
            os.fsync(directory)


def _new_name() -> str:
    return f".kcensus-{secrets.token_hex(8)}.part"


@contextmanager
def _part(place: _Place, mode: int) -> Iterator[_Part]:
    """Yield a new file; it has no name, so that nothing is left of a killed process.

    File systems such as NFS must name it: then signals that end the process remove it, and the
    next writer to the directory what SIGKILL left.
    """
    _remove_abandoned(place.directory)
    name = ""
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        descriptor = os.open(".", flags | os.O_TMPFILE, mode, dir_fd=place.directory)
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
        name = _new_name()
        descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, mode, dir_fd=place.directory)
    try:
        given = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if (old := place.replaced) is not None and mode & 0o077:
            is_own = old.st_uid == os.geteuid()
            given = stat.S_IMODE(old.st_mode) & 0o777 if is_own else given & old.st_mode
        os.fchmod(descriptor, given & 0o600 | 0o200)  # nobody reads what is not complete
        with _removed_by_signals(place.directory, name):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield _Part(place, descriptor, given, name)
    finally:
        os.close(descriptor)
        if name:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=place.directory)


@contextmanager
def on_termination(handle: Callable[[int, dict[int, Any]], object]) -> Iterator[None]:
    """Call ``handle`` with the number of a signal, and with the handlers outside of this context.

    Ignored signals stay ignored: nohup has SIGHUP ignored. A handler that is not Python's belongs
    to a program around it, and so do all handlers outside of the main thread: these stay, too.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        both = ((each, signal.getsignal(each)) for each in (signal.SIGTERM, signal.SIGHUP))
        before = {each: known for each, known in both if known not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, lambda number, _: handle(number, before))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def before_termination(act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` first, and leave the rest to the handler outside of this context."""

    def handle(number: int, before: dict[int, Any]) -> None:
        act()
        signal.signal(number, before[number])
        os.kill(os.getpid(), number)

    with on_termination(handle):
        yield


@contextmanager
def _removed_by_signals(directory: int, name: str) -> Iterator[None]:
    """Let SIGTERM and SIGHUP first remove a file, if it has a name."""

    def remove() -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)

    with before_termination(remove) if name else nullcontext():
        yield


def _remove_abandoned(directory: int) -> None:
    """Remove the named parts of killed writers."""
    with suppress(OSError):  # they only take space
        for name in filter(_PART.fullmatch, os.listdir(directory)):
            with suppress(OSError):
                _remove_if_abandoned(directory, name)


def _remove_if_abandoned(directory: int, name: str) -> None:
    part = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    try:
        status = os.fstat(part)
        if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _MAX_SECONDS:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
            os.unlink(name, dir_fd=directory)
    finally:
        os.close(part)
