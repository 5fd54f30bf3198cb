# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who holds futexes, in words of *synthetic* kernels and programs."""

from __future__ import annotations

import struct

import drgn
import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.locks import futexes
from kcensus.kernel.waiting.finders.locks.futexes import FUTEX, Futexes
from kcensus.kernel.waiting.finders.locks.locks import RT_MUTEX
from kcensus.kernel.waiting.graph import HELD, Graph
from tests.unit.kernel.waiting.making import SIZE, Sleepers, links

_TYPES = """
struct plist_node 40 : 24 struct list_head node_list
struct both 24 : 0 unsigned long ptr; 8 unsigned long word; 16 unsigned int offset
union futex_key 24 : 0 struct both both
struct rt_mutex_base 24 : 0 struct task_struct * owner
struct futex_pi_state 80 : 16 struct rt_mutex_base pi_mutex; 48 union futex_key key
struct futex_q 88
    0 struct plist_node list; 40 struct task_struct * task; 48 void * lock_ptr
    56 union futex_key key
struct pt_regs 168 : 96 unsigned long dx; 112 unsigned long di; 136 unsigned long cs
struct upid 16 : 0 int nr; 8 void * ns
struct pid 48 : 0 unsigned int level; 16 struct upid [2] numbers
struct mm_struct 64
struct atomic64_t 8 : 0 long counter
struct inode 8 : 0 struct atomic64_t i_sequence
struct file 8 : 0 struct inode * f_inode
struct vm_area_struct 8 : 0 struct file * vm_file
struct task_struct 112
    0 struct task_struct * group_leader; 8 int pid; 12 int tgid; 16 struct list_head tasks
    32 struct pid * thread_pid; 40 struct mm_struct * mm; 48 char [16] comm
"""
_ADDRESS, _PAGE = 0x7F00_1000_0120, 0x7F00_1000_0000
_WAITERS = 1 << 31
_NAMESPACE = 0xFFFF_8880_0000_1000


class Program(Sleepers):
    """A process whose threads have IDs from 1 on in their namespace, and 100 more outside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *functions: str) -> None:
        super().__init__(_TYPES, *functions)
        self.bytes: dict[int, bytes] = {}
        self.mm = self.k.alloc("struct mm_struct").address_
        self.head = self.k.alloc("struct list_head")
        self.k.list_init(self.head)
        for lane, task in enumerate(self.task):
            pid = self.k.alloc("struct pid", level=1)
            self.k.set(pid.numbers[0].nr, 101 + lane)
            self.k.set(pid.numbers[1].nr, 1 + lane)
            self.k.set(pid.numbers[1].ns, _NAMESPACE)
            self.k.write_words(task, self.task[0], 101 + lane | 101 << 32)
            self.k.write_words(task + 32, pid.address_, self.mm)
            self.k.write(task + 48, b"program\0")

        def read(mm: drgn.Object, address: int, size: int) -> bytes:
            assert int(mm) == self.mm
            if address not in self.bytes:
                raise drgn.FaultError("page excluded from this synthetic dump", address)
            return self.bytes[address][:size]

        monkeypatch.setattr(futexes, "access_remote_vm", read)

    def sleep(self, lane: int, passed: int, *, offset: int = 0x120, page: int = _PAGE) -> int:
        self.put(lane, *[0] * 11, place=2048)
        queue = drgn.Object(self.k.prog, "struct futex_q", address=self.stack[lane] + 2048)
        self.k.list_add_tail(queue.list.node_list, self.head)
        self.k.fill(queue, task=self.task[lane], lock_ptr=0x10)
        self.k.fill(queue.key.both, ptr=self.mm, word=page, offset=offset)
        registers = self.stack[lane] + SIZE - 168
        self.k.write_words(registers + 96, passed)
        self.k.write_words(registers + 136, 0x33)
        return int(queue.address_)

    def mutex(self, lock: int, owner: int = 0, users: int = 1, kind: int = 0) -> None:
        self.bytes[_ADDRESS] = struct.pack("=IIiIi", lock, 0, owner, users, kind)


_SLEEP = "futex_wait_queue"


def _held(graph: Graph) -> list[tuple[int, int, int]]:
    assert all(edge is HELD for edge in graph.edge)
    return [(source, target, strength) for _, source, _, target, strength in sorted(links(graph))]


@pytest.mark.parametrize(
    ("passed", "mutex", "strength"),
    [
        # Its owner and FUTEX_WAITERS: robust mutexes.
        (_WAITERS | 3, {"lock": _WAITERS | 3}, Strength.DERIVED),
        # Another thread has had it since.
        (_WAITERS | 2, {"lock": _WAITERS | 3}, Strength.DERIVED),
        (2, {"lock": 2, "owner": 3}, Strength.POSSIBLE),
    ],
)
def test_owners(
    monkeypatch: pytest.MonkeyPatch, passed: int, mutex: dict[str, int], strength: Strength
) -> None:
    scene = Program(monkeypatch, _SLEEP, _SLEEP, "owner")
    node = min(scene.sleep(0, passed), scene.sleep(1, passed))
    scene.mutex(**mutex)
    graph, found = scene.run(Futexes)
    assert scene.waits.object.tolist() == [node, node, 0]
    assert scene.waits.type[:2] == ["struct futex_q"] * 2
    assert _held(graph) == [(node, scene.task[2], int(strength))]
    assert found.names[FUTEX, node] == f"0x{_ADDRESS:x} of program (PID 101)"
    assert found.unread == 0


@pytest.mark.parametrize(
    ("passed", "mutex"),
    [
        # A counter, such as that of a condition variable, is not read at all.
        (3, {"lock": 3, "owner": 3}),
        (0, {"lock": 0, "owner": 3}),
        # No waiters, no such thread, or the owner's ID outside of its namespace.
        (_WAITERS | 3, {"lock": 3}),
        (_WAITERS | 9, {"lock": _WAITERS | 9}),
        (_WAITERS | 103, {"lock": _WAITERS | 103}),
        # Not a mutex.
        (2, {"lock": 2, "owner": 0}),
        (2, {"lock": 2, "owner": 3, "users": 0}),
        (2, {"lock": 2, "owner": 3, "kind": 1 << 20}),
        (2, {"lock": 1, "owner": 3}),
    ],
)
def test_words_that_name_no_owner(
    monkeypatch: pytest.MonkeyPatch, passed: int, mutex: dict[str, int]
) -> None:
    scene = Program(monkeypatch, _SLEEP, "other", "other")
    node = scene.sleep(0, passed)
    scene.mutex(**mutex)
    graph, found = scene.run(Futexes)
    assert (int(scene.waits.object[0]), _held(graph), found.unread) == (node, [], 0)


def test_memory_of_programs_that_is_not_in_the_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Program(monkeypatch, _SLEEP, _SLEEP, _SLEEP)
    scene.sleep(0, 2)
    scene.sleep(1, 0, page=0x10_0000)
    scene.sleep(2, _WAITERS | 1, page=0x20_0000)
    graph, found = scene.run(Futexes)
    # Only two of them may name an owner.
    assert (_held(graph), found.unread) == ([], 2)
    assert len(set(scene.waits.object.tolist())) == 3


def test_what_is_not_read_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capsule takes no page of a program, and a futex in a file has no address."""
    scene = Program(monkeypatch, _SLEEP, _SLEEP, "owner")
    scene.sleep(0, _WAITERS | 3)
    node = scene.sleep(1, 2, offset=0x121)
    scene.mutex(_WAITERS | 3)
    monkeypatch.setattr(futexes, "is_assembled", lambda prog: True)
    graph, found = scene.run(Futexes)
    assert (_held(graph), found.unread) == ([], 1)
    assert found.names[FUTEX, node] == "in a file of program (PID 101)"


def test_words_on_the_stack_that_only_look_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Program(monkeypatch, _SLEEP, _SLEEP)
    queue = scene.sleep(0, 2)
    # Nothing leads back to it.
    scene.k.write_words(int(scene.head.next) + 8, 0)
    place = queue + 24
    scene.k.write_words(place, scene.stack[1] + 512, scene.stack[1] + 512)
    graph, found = scene.run(Futexes)
    assert scene.waits.object.tolist() == [0, 0]
    assert [(gap.what, gap.count) for gap in found.gaps(graph)] == [("futexes", 2), ("futexes", 0)]


def test_a_mutex_with_priority_inheritance_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Program(monkeypatch, "futex_lock_pi")
    state = scene.k.alloc("struct futex_pi_state")
    scene.k.fill(state.key.both, word=_PAGE, offset=0x122)
    lock = state.address_ + 16
    scene.wait(0, lock, "struct rt_mutex_base")
    _, found = scene.run(Futexes)
    name = f"of futex 0x{_ADDRESS:x} of program (PID 101)"
    assert found.names == {(RT_MUTEX, lock): name}


def _share(scene: Program, monkeypatch: pytest.MonkeyPatch, *mapped: int) -> list[int]:
    """Let the first two threads wait for a word of file 7, and some threads map that file."""
    queues = []
    for lane, base in ((0, 0x7F00_2000_0000), (1, 0x7F00_3000_0000)):
        queues.append(scene.sleep(lane, _WAITERS | 3, offset=0x121, page=5))
        queue = drgn.Object(scene.k.prog, "struct futex_q", address=queues[-1])
        scene.k.set(queue.key.both.ptr, 7)
        scene.k.write_words(scene.stack[lane] + SIZE - 168 + 112, base + 0x120)
        scene.bytes[base + 0x120] = struct.pack("=I", _WAITERS | 3)
    spaces = [scene.k.alloc("struct mm_struct").address_ for _ in scene.task]
    for lane, task in enumerate(scene.task):
        scene.k.write_words(task, task, 101 + lane | (101 + lane) << 32)
        scene.k.write_words(task + 40, spaces[lane])
    inode = scene.k.alloc("struct inode")
    scene.k.set(inode.i_sequence.counter, 7)
    file = scene.k.alloc("struct file", f_inode=inode.address_)
    area = scene.k.alloc("struct vm_area_struct", vm_file=file.address_)
    wanted = [spaces[lane] for lane in mapped]
    monkeypatch.setattr(
        futexes, "for_each_vma", lambda mm: [area] if int(mm) in wanted else [], raising=True
    )
    monkeypatch.setattr(futexes, "access_remote_vm", lambda _, at, size: scene.bytes[at][:size])
    return queues


@pytest.mark.parametrize("is_mapped", [True, False])
def test_owners_of_words_that_processes_share(
    monkeypatch: pytest.MonkeyPatch, is_mapped: bool
) -> None:
    scene = Program(monkeypatch, _SLEEP, _SLEEP, "owner")
    node = min(_share(scene, monkeypatch, 0, 1, *[2] * is_mapped))
    graph, found = scene.run(Futexes)
    wanted = [(node, scene.task[2], int(Strength.DERIVED))] if is_mapped else []
    assert (_held(graph), found.unread) == (wanted, 0)
    assert found.names[FUTEX, node] == "in a file of program (PID 101)"


def test_a_register_that_is_not_the_address_of_a_shared_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Program(monkeypatch, _SLEEP, _SLEEP, "owner")
    _share(scene, monkeypatch, 0, 1, 2)
    for lane in (0, 1):
        scene.k.write_words(scene.stack[lane] + SIZE - 168 + 112, 0x7F00_2000_0124)
    graph, _ = scene.run(Futexes)
    assert _held(graph) == []
