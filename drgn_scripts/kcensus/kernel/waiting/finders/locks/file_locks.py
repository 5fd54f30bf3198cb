# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks of files, of flock(2) and fcntl(2), and the processes that hold them.

A waiting task has a request, a ``struct file_lock`` of its own, with a wait queue that only this
task waits on. The request names the lock, or another request, that blocks it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kcensus.engine.gather import Gathered, gather
from kcensus.engine.layout import Layout, Path, layout
from kcensus.engine.memory import Guess, Mask, Numbers, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.locking.waiters import entry_link, entry_type
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.vfs.files import file_paths, open_files
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import HELD, PROCESS, NodeKind
from kcensus.kernel.waiting.objects.queued import own_mentions

_LOCK = "struct file_lock"
FILE_LOCK = NodeKind(
    "file lock",
    (_LOCK,),
    is_any=True,
    is_lock=True,
    shows_stopped=True,
    advice="Look for the holder in /proc/locks; a lock of NFS or of a cluster may have it on "
    "another machine",
)
_WAITS = frozenset(
    {"locks_lock_inode_wait", "flock_lock_inode_wait", "posix_lock_inode_wait"}
    | {"flock_lock_file_wait", "posix_lock_file_wait", "do_lock_file_wait"}
    | {"fcntl_setlk", "fcntl_setlk64", "__break_lease"}
)
_POSIX, _FLOCK, _LEASE, _OFD = 1, 2, 32, 1024
"""FL_POSIX, FL_FLOCK, FL_LEASE and FL_OFDLCK."""
_HOW = ((_OFD, "OFD"), (_LEASE, "lease"), (_FLOCK, "flock"))
"""Kinds of locks by flag; all others are of fcntl()."""
_MAX_CHAIN = 1 << 8
"""Most requests between one and the lock that blocks it."""


def _members(**names: str) -> Mapping[str, Path]:
    """Return the members of a lock, with a prefix in newer kernels.

    Since Linux kernel commit a69ce85ec9af ("filelock: split common fields into struct
    file_lock_core") (in v6.9), they are in a ``struct file_lock_core`` at the start.
    """
    return {key: (f"c.flc_{name}", f"fl_{name}") for key, name in names.items()}


class FileLocks(Finder):
    """Finds the locks of files that tasks wait for, and their holders."""

    about = "file locks"
    kinds = (FILE_LOCK,)
    sleeps = {WaitKind.LOCK: " ".join(sorted(_WAITS))}

    def note(self) -> None:
        """Note the locks that block the requests of tasks.

        :raises LookupError: the debug info lacks a type or member
        """
        lanes = self._having(_WAITS)
        if not len(lanes):
            return
        index, request = self._requests(lanes)
        fields = self._layout()
        for lane, lock in zip(
            lanes[index].tolist(), self._blocking(request, fields).tolist(), strict=True
        ):
            if lock:
                self._note(lane, lock, _LOCK, "file_lock.fl_blocker")

    def _layout(self) -> Layout:
        names = _members(owner="owner", flags="flags", pid="pid", file="file")
        # Since Linux kernel commit fd7732e033e3 ("fs/locks: create a tree of dependent requests.")
        # (in v5.0), requests wait for requests, too; until then, fl_next names the lock.
        blocker: dict[str, Path] = {"blocker": ("c.flc_blocker", "fl_blocker", "fl_next")}
        return layout(self.kernel.prog, _LOCK, {**names, **blocker}, {"ops": "fl_lmops"})

    def _requests(self, lanes: Numbers) -> tuple[Numbers, Words]:
        """Return the index in ``lanes`` and address of the requests of waiting tasks.

        The wait queue of a request has its task as the only waiter.
        """
        prog, memory = self.kernel.prog, self.kernel.memory
        rows, size = self.rows[lanes], self.waits.stacks.size
        index, mention = own_mentions(memory, self.known, rows, size, self.faults)
        private = layout(prog, entry_type(prog), ["private"]).fields["private"].offset
        link = mention - np.uint64(private) + np.uint64(entry_link(prog))
        beside = self._read("struct list_head", link, ["next", "prev"], is_guess=True)
        head = beside["next"]
        around = self._read("struct list_head", head, ["next", "prev"], is_guess=True)
        is_only = beside.readable & around.readable & (head == beside["prev"]) & (head != link)
        is_only &= (around["next"] == link) & (around["prev"] == link)
        heads = {
            "head": tuple(
                f"{queue}.{member}.next"
                for queue in ("c.flc_wait", "fl_wait")
                for member in ("head", "task_list")
            )
        }
        inside = layout(prog, _LOCK, heads).fields["head"].offset
        request = head - np.uint64(inside)
        read = gather(memory, request, self._layout(), Guess())
        process = self._member("struct task_struct", "tgid", self.waits.task[lanes[index]])
        # The request is one of this process, for an open file.
        is_own = read["pid"].astype(np.int64) & 0xFFFFFFFF == process.astype(np.int64)
        is_own |= (read["flags"].astype(np.int64) & (_OFD | _LEASE)) != 0
        sound = is_only & read.readable & is_own & (self._inodes(read["file"]) != 0)
        _, first, count = np.unique(index[sound], return_index=True, return_counts=True)
        return index[sound][first[count == 1]], request[sound][first[count == 1]]

    def _inodes(self, files: Words) -> Words:
        return self._member("struct file", "f_inode", files, is_guess=True).astype(np.uint64)

    def _blocking(self, request: Words, fields: Layout) -> Words:
        """Return the lock that blocks each request; 0 if unknown.

        Both locks are of the same file and kind.
        """
        memory = self.kernel.memory
        own = gather(memory, request, fields, Guess())
        lock = own["blocker"]
        if "fl_next" not in fields.fields["blocker"].path:
            for _ in range(_MAX_CHAIN):
                blocker = gather(memory, lock, fields, Guess())["blocker"]
                if not blocker.any():
                    break
                lock = np.where(blocker != 0, blocker, lock)
        read = gather(memory, lock, fields, Guess())
        kinds = _POSIX | _FLOCK | _LEASE
        sound = read.readable & (lock != 0) & _same(own, read, kinds)
        sound &= self._inodes(own["file"]) == self._inodes(read["file"])
        return np.where(sound, lock, np.uint64(0))

    def find(self) -> None:
        """Add edges to the processes that hold the locks.

        A lock of fcntl() belongs to a table of open files, the others to an open file. That may be
        open in several processes, any of which can unlock it.
        """
        lanes = self._of_type(_LOCK)
        if not len(lanes):
            return
        locks = np.unique(self.object[lanes])
        read = gather(self.kernel.memory, locks, self._layout(), self.faults)
        self._name(locks, read)
        files = open_files(self.kernel)
        self.faults += files.faults
        flags = read["flags"].astype(np.int64)
        is_local = read.columns.get("ops", np.zeros(len(locks), np.uint64)) == 0
        is_table = ((flags & _POSIX) != 0) & ((flags & _OFD) == 0) & is_local
        is_table &= np.isin(read["owner"], files.tables[files.tables != 0])
        owner = read["owner"]
        self.build.edges(
            HELD,
            (FILE_LOCK, locks[is_table]),
            (PROCESS, owner[is_table]),
            "file_lock.fl_owner",
            place=locks[is_table],
        )
        is_file = (flags & (_FLOCK | _OFD | _LEASE)) != 0
        of_file: dict[int, list[int]] = {}
        for lock in np.flatnonzero(is_file & (read["file"] != 0)).tolist():
            of_file.setdefault(int(read["file"][lock]), []).append(lock)
        entries = np.flatnonzero(np.isin(files.address, np.array([*of_file], np.uint64)))
        pairs = [(lock, at) for at in entries.tolist() for lock in of_file[int(files.address[at])]]
        row = np.array([lock for lock, _ in pairs], np.int64)
        entry = np.array([at for _, at in pairs], np.int64)
        # The process that has taken the lock is more likely to release it than its children.
        named = self._processes(files.tables)
        is_taker = np.array(
            [named.get(int(files.files[at])) == int(read["pid"][lock]) for lock, at in pairs],
            np.bool_,
        )
        is_sure = is_taker | ~np.isin(row, row[is_taker])
        self.build.edges(
            HELD,
            (FILE_LOCK, locks[row]),
            (PROCESS, files.files[entry]),
            [f"file descriptor {files.descriptor[at]}" for at in entry.tolist()],
            strength=np.where(is_sure, int(Strength.DERIVED), int(Strength.POSSIBLE)),
            place=files.address[entry],
        )
        self._add_threads(
            files.tables, np.union1d(owner[is_table], files.files[entry]).astype(np.uint64)
        )

    def _processes(self, tables: Words) -> dict[int, int]:
        """Return the process with each table of open files."""
        process = self._member("struct task_struct", "tgid", self.known.address)
        return dict(zip(tables.tolist(), process.tolist(), strict=True))

    def _name(self, locks: Words, read: Gathered) -> None:
        inodes = self._inodes(read["file"])
        paths = file_paths(self.kernel, inodes, self.faults)
        for row, lock in enumerate(locks.tolist()):
            flags = int(read["flags"][row])
            how = next((name for bit, name in _HOW if flags & bit), "fcntl")
            path = paths.get(int(inodes[row]), f"0x{lock:x}")
            self.names[FILE_LOCK, lock] = f"({how}) on {path}"


def _same(left: Gathered, right: Gathered, bits: int) -> Mask:
    """Return which locks have the same of some flags."""
    one, other = (each["flags"].astype(np.int64) & bits for each in (left, right))
    return np.asarray((one == other) & (one != 0))


FINDER = FileLocks
