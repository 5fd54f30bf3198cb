# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who holds the locks of files that tasks wait for, in *synthetic* kernels."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.vfs.files import OpenFiles, open_files
from kcensus.kernel.waiting.finders.locks import file_locks
from kcensus.kernel.waiting.finders.locks.file_locks import FILE_LOCK, FileLocks
from kcensus.kernel.waiting.graph import HELD
from tests.unit.kernel.waiting.making import Sleepers, links, words

_COMMON = """
struct task_struct 64 : 8 int tgid
struct wait_queue_head 24 : 8 struct list_head head
struct wait_queue_entry 40 : 8 void * private; 24 struct list_head entry
struct file 32 : 8 void * f_inode
"""
_MEMBERS = """\
    0 struct file_lock{core} * {p}_blocker; 48 void * {p}_owner; 56 unsigned int {p}_flags
    64 int {p}_pid; 72 struct wait_queue_head {p}_wait; 96 struct file * {p}_file
"""
_CORE = "struct file_lock_core 128\n" + _MEMBERS.format(core="_core", p="flc")
_LOCKS = {
    "old": "struct file_lock 176\n"
    + _MEMBERS.format(core="", p="fl").replace("fl_blocker", "fl_next")
    + "    136 void * fl_lmops\n",
    "flat": "struct file_lock 176\n"
    + _MEMBERS.format(core="", p="fl")
    + "    136 void * fl_lmops\n",
    "core": _CORE + "struct file_lock 176 : 0 struct file_lock_core c; 136 void * fl_lmops\n",
}
_POSIX, _FLOCK, _OFD = 1, 2, 1 | 1024
_TABLES = 0xFFFF_8881_0000_0000, 0xFFFF_8881_0000_1000, 0xFFFF_8881_0000_2000
_WAITS = "locks_lock_inode_wait"
_ENTRY = 2048
"""Where the entry of a wait queue is on a stack."""
_DERIVED, _POSSIBLE = int(Strength.DERIVED), int(Strength.POSSIBLE)


class Files(Sleepers):
    """Processes of one task each, with files open that have locks."""

    def __init__(self, era: str, *functions: str) -> None:
        super().__init__(_COMMON + _LOCKS[era], *functions)
        for lane, task in enumerate(self.task):
            self.k.write_words(task + 8, 101 + lane)
        self.open: list[tuple[int, int]] = []
        self.inode = [0xFFFF_8881_1000_0000 + 0x1000 * row for row in range(2)]

    def file(self, *lanes: int, inode: int = 0) -> int:
        """Open a file of an inode in some processes."""
        file = int(self.k.alloc("struct file", f_inode=self.inode[inode]).address_)
        self.open += [(_TABLES[lane], file) for lane in lanes]
        return file

    def lock(self, flags: int, lane: int, file: int, owner: int = 0, blocker: int = 0) -> int:
        at = int(self.k.alloc("struct file_lock").address_)
        self._fill(at, flags, lane, file, owner, blocker)
        return at

    def _fill(self, at: int, flags: int, lane: int, file: int, owner: int, blocker: int) -> None:
        self.k.write_words(at, blocker)
        self.k.write_words(at + 48, owner, flags, 101 + lane)
        self.k.write_words(at + 96, file)

    def request(
        self, flags: int, lane: int, blocker: int, *, inode: int = 0, place: int = 0, pid: int = 0
    ) -> int:
        """Let a task wait for a request of its own, which may be on its stack."""
        at = self.stack[lane] + place if place else self.lock(flags, lane, 0)
        self._fill(at, flags, lane + pid, self.file(lane, inode=inode), 0, blocker)
        entry = self.stack[lane] + _ENTRY
        self.put(lane, 0, self.task[lane], 0, at + 80, at + 80, place=_ENTRY)
        self.k.write_words(at + 80, entry + 24, entry + 24)
        return at

    def found(self, monkeypatch: pytest.MonkeyPatch) -> tuple[set[tuple[int, int, int]], FileLocks]:
        """Return locks, tables of processes that hold them, and strengths."""
        count = len(self.open)
        tables = words(*(table for table, _ in self.open))
        self.remember(
            open_files,
            OpenFiles(
                files=tables,
                descriptor=3 + np.arange(count),
                address=words(*(file for _, file in self.open)),
                private=np.zeros(count, np.uint64),
                reads=np.ones(count, np.bool_),
                writes=np.ones(count, np.bool_),
                tables=words(*_TABLES[: len(self.task)]),
            ),
        )
        paths = dict(zip(self.inode, ("/a", "/b"), strict=True))
        monkeypatch.setattr(file_locks, "file_paths", lambda *_: paths)
        graph, finder = self.run(FileLocks)
        held = {each for each in links(graph) if each[2] is HELD}
        return {(lock, table, sure) for _, lock, _, table, sure in held}, finder


@pytest.mark.parametrize("era", _LOCKS)
@pytest.mark.parametrize("place", [0, 512])
def test_a_lock_of_an_open_file(era: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Files(era, _WAITS, "holds", "inherits")
    # The process that has taken it, and its child; a request may be on the stack.
    lock = scene.lock(_FLOCK, 1, scene.file(1, 2))
    scene.request(_FLOCK, 0, lock, place=place)
    held, finder = scene.found(monkeypatch)
    assert scene.waits.object.tolist()[0] == lock
    assert held == {(lock, _TABLES[1], _DERIVED), (lock, _TABLES[2], _POSSIBLE)}
    assert finder.names[FILE_LOCK, lock] == "(flock) on /a"


def test_a_process_that_has_taken_a_lock_has_exited(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Files("core", _WAITS, "other", "inherits")
    lock = scene.lock(_OFD, 8, scene.file(2))
    scene.request(_OFD, 0, lock)
    held, finder = scene.found(monkeypatch)
    assert held == {(lock, _TABLES[2], _DERIVED)}
    assert finder.names[FILE_LOCK, lock] == "(OFD) on /a"


@pytest.mark.parametrize("era", _LOCKS)
def test_a_lock_of_a_process(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Files(era, "fcntl_setlk", "holds")
    # Another process has the same file open.
    lock = scene.lock(_POSIX, 1, scene.file(0, 1), owner=_TABLES[1])
    scene.request(_POSIX, 0, lock)
    held, finder = scene.found(monkeypatch)
    assert held == {(lock, _TABLES[1], int(Strength.PROVEN))}
    assert finder.names[FILE_LOCK, lock] == "(fcntl) on /a"


def test_a_request_behind_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Files("flat", _WAITS, _WAITS, "holds")
    lock = scene.lock(_FLOCK, 2, scene.file(2))
    first = scene.request(_FLOCK, 0, lock)
    scene.request(_FLOCK, 1, first)
    held, _ = scene.found(monkeypatch)
    assert scene.waits.object.tolist() == [lock, lock, 0]
    assert held == {(lock, _TABLES[2], _DERIVED)}


def test_requests_in_a_circle_end(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Files("flat", _WAITS, "holds")
    lock = scene.lock(_FLOCK, 1, scene.file(1))
    scene.k.write_words(lock, lock)
    scene.request(_FLOCK, 0, lock)
    scene.found(monkeypatch)


@pytest.mark.parametrize("damage", ["kind", "inode", "pid", "waiter", "blocker", "owner"])
def test_what_is_no_request_and_no_lock(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Files("core", _WAITS, "holds")
    lock = scene.lock(
        _FLOCK if damage == "kind" else _POSIX, 1, scene.file(1), owner=_TABLES[damage != "owner"]
    )
    at = scene.request(
        _POSIX,
        0,
        0x10 if damage == "blocker" else lock,
        inode=int(damage == "inode"),
        pid=int(damage == "pid"),
    )
    if damage == "waiter":
        # More than one waiter.
        scene.k.write_words(at + 88, lock)
    if damage == "owner":
        scene.k.write_words(lock + 48, 0x5A5A_5A5A)
    held, _ = scene.found(monkeypatch)
    assert held == set()
    assert (scene.waits.object[0] == 0) == (damage != "owner")
