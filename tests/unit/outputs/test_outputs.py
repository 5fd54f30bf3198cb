# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file that is written is complete or absent, and is where the user meant it to be."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcensus.outputs import (
    OutputError,
    check_replaceable,
    check_writable,
    prepare,
    remove,
    replacing,
)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture
def _no_tmpfile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let file systems be like NFS, where a file has a name from the start."""
    monkeypatch.setattr(os, "open", _open_like_nfs(os.open))


def _open_like_nfs(real: object) -> object:
    def open_(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, mode, dir_fd=dir_fd)  # type: ignore[operator, no-any-return]

    return open_


@pytest.fixture(params=["without a name", "named"])
def _of_both_kinds(request: pytest.FixtureRequest) -> None:
    if request.param == "named":
        request.getfixturevalue("_no_tmpfile")


@pytest.mark.usefixtures("_of_both_kinds")
def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("before")

    def fail_half_way() -> None:
        with replacing(path) as part:
            part.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert path.read_text() == "before"
    assert names(tmp_path) == ["table.csv"]


@pytest.mark.usefixtures("_of_both_kinds")
def test_each_of_two_writers_at_once_writes_all_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "kcensus.prom"
    with replacing(path) as first, first.open("w") as file:
        file.write("first")
        with replacing(path) as second:
            second.write_text("second, and longer")
        assert path.read_text() == "second, and longer"
        check_writable(path)
    assert path.read_text() == "first"
    assert names(tmp_path) == ["kcensus.prom"]


@pytest.mark.usefixtures("_no_tmpfile")
def test_a_link_in_the_place_of_what_is_written_is_not_followed(tmp_path: Path) -> None:
    """Root writes to directories of other programs."""
    path, victim = tmp_path / "kcensus.prom", tmp_path / "victim"
    victim.write_text("precious")
    with replacing(path) as new:
        (part,) = tmp_path.glob(".*.part")
        part.unlink()
        part.symlink_to(victim)
        new.write_text("metrics")
    assert victim.read_text() == "precious"


def test_a_link_of_ones_own_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to(tmp_path / "there" / "file")
    for text in ("new", "replaced"):
        with replacing(tmp_path / "one") as part:
            part.write_text(text)
        assert (tmp_path / "there" / "file").read_text() == text
    assert (tmp_path / "one").is_symlink()
    assert names(tmp_path) == ["one", "there", "two"]


@pytest.mark.parametrize("bits", [0o777, 0o1777])
def test_no_link_is_followed_where_others_may_have_made_it(tmp_path: Path, bits: int) -> None:
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    victim.write_text("precious")
    shared.mkdir()
    shared.chmod(bits)
    link = shared / "report.html"
    link.symlink_to(victim)
    for check in (check_replaceable, check_writable):
        with pytest.raises(OutputError, match="another user"):
            check(link)
    with pytest.raises(OutputError, match="another user"), replacing(link) as part:
        part.write_text("report")
    remove(link, victim.stat())
    assert victim.read_text() == "precious"
    assert link.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to any group")
def test_a_group_that_can_write_can_make_links(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o770)
    (shared / "report.html").symlink_to(tmp_path / "victim")
    os.chown(shared, 0, 0)
    check_writable(shared / "report.html")  # the user's own group
    os.chown(shared, 0, 4321)
    with pytest.raises(OutputError, match="another user"):
        check_writable(shared / "report.html")


@pytest.mark.parametrize("bits", [0o777, 0o1777, 0o755])
def test_no_link_to_a_directory_is_followed_where_others_may_have_made_it(
    tmp_path: Path, bits: int
) -> None:
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    for each in (shared, victim, victim / "sub"):
        each.mkdir()
    shared.chmod(bits)
    (shared / "out").symlink_to(victim)
    (tmp_path / "near").symlink_to("shared/out/../victim/sub")
    owners = [os.geteuid()]
    if os.geteuid() == 0:
        owners.append(65534)
        os.chown(shared, 4321, 4321)
    for owner in owners:
        os.chown(shared / "out", owner, owner, follow_symlinks=False)
        for path in (shared / "out" / "file", tmp_path / "near" / "file"):
            if bits == 0o777 or (bits == 0o1777 and owner == 65534):
                with pytest.raises(OutputError, match="another user"):
                    check_writable(path)
                with pytest.raises(OutputError, match="another user"):
                    prepare(path.parent / "new")
            else:
                check_writable(path)
                prepare(path.parent / "new")
    assert (victim / "new").exists() == (bits != 0o777)
    assert names(victim / "sub") == (["new"] if bits != 0o777 else [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_no_link_of_another_user_is_followed(tmp_path: Path) -> None:
    link, victim = tmp_path / "report.html", tmp_path / "victim"
    link.symlink_to(victim)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(OutputError, match="another user"):
        check_writable(link)
    os.chown(link, 0, 0, follow_symlinks=False)
    check_writable(link)
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(OutputError, match="another user"):
        check_writable(link)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "null").symlink_to("/dev/null")
    for name, words in (
        ("fifo", "not a regular file"),
        ("null", "not a regular file"),
        (".", "not a regular file"),
        ("loop", "[Ll]evels"),
        ("nowhere/file", "No such file"),
    ):
        with pytest.raises(OutputError, match=words):
            check_writable(tmp_path / name)


@pytest.mark.usefixtures("_of_both_kinds")
def test_modes(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def written(bits: int = 0o666) -> int:
        with replacing(path, bits) as new:
            new.write_text("")
        return mode(path)

    with umask(0o027):
        assert written() == 0o640
        assert written(0o600) == 0o600, "private, whatever it replaces"
    for bits in (0o600, 0o664, 0o444, 0o400):
        path.chmod(bits)
        assert written() == bits
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        for bits, expected in ((0o600, 0o600), (0o666, 0o644)):
            os.chown(path, 65534, 65534)
            path.chmod(bits)
            with umask(0o022):
                assert written() == expected, "no wider than either"
        os.chown(path, 65534, 65534)
        assert written(0o600) == 0o600


@pytest.mark.usefixtures("_of_both_kinds")
def test_names_of_any_length(tmp_path: Path) -> None:
    with replacing(tmp_path / ("n" * 255)) as part:
        part.write_text("")
    assert names(tmp_path) == ["n" * 255]


_WRITE = """
import os, pathlib, signal, sys
from kcensus import outputs
from tests.unit.outputs.test_outputs import _open_like_nfs
if {named}: os.open = _open_like_nfs(os.open)
with outputs.replacing(pathlib.Path({path!r})) as part:
    part.write_text("half")
    {what}
"""


def write_in_a_process(path: Path, what: str, named: bool) -> int:
    program = _WRITE.format(path=str(path), named=named, what=what)
    return subprocess.run([sys.executable, "-c", program], check=False, stderr=-3).returncode


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals, named: bool) -> None:
    kill = f"os.kill(os.getpid(), {int(number)})"
    assert write_in_a_process(tmp_path / "file", kill, named) == -number
    assert names(tmp_path) == []


def test_what_a_killed_writer_left_is_removed_later(tmp_path: Path) -> None:
    path = tmp_path / "file"
    kill = f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    assert write_in_a_process(path, kill, named=False) == -signal.SIGKILL
    assert names(tmp_path) == []
    assert write_in_a_process(path, kill, named=True) == -signal.SIGKILL
    (part,) = names(tmp_path)
    check_writable(path)
    assert names(tmp_path) == [part], "its writer may be about to lock it"
    os.utime(tmp_path / part, (0, 0))
    check_writable(path)
    assert names(tmp_path) == []


@pytest.mark.usefixtures("_no_tmpfile")
def test_the_part_of_a_slow_writer_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as part:
        part.write_text("slow")
        os.utime(part, (0, 0))
        check_writable(path)
    assert path.read_text() == "slow"


@pytest.mark.usefixtures("_of_both_kinds")
def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OutputError, match="too large"), replacing(path) as part:
            part.write_bytes(bytes(8192))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "before"
    assert names(tmp_path) == ["file"]


def test_what_another_writer_wrote_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "kcensus.prom"
    path.write_text("first")
    first = path.stat()
    with replacing(path) as part:
        part.write_text("second")
    remove(path, first)
    assert path.read_text() == "second"
    remove(path, path.stat())
    remove(path, first)
    assert names(tmp_path) == []


def test_an_open_file_of_the_process_is_no_name(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("precious")
    code = """
import sys
from pathlib import Path
from kcensus.outputs import OutputError, replacing
for name in "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1":
    try:
        with replacing(Path(name)) as part:
            part.write_text("new")
    except OutputError as error:
        print(error, file=sys.stderr)
"""
    with path.open("a") as out:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=out, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr.count("open file")) == (0, 3)
    assert path.read_text() == "precious"


def test_ctrl_c_while_a_file_gets_its_name_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "x") as part:
        part.write_text("x")
    assert list(tmp_path.iterdir()) == []
