# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tagged pointers of *synthetic* kernels."""

from __future__ import annotations

from dataclasses import replace

import drgn
import numpy as np
import pytest

from kcensus.arch import KNOWN
from kcensus.engine import tags
from kcensus.engine.chase import circular
from kcensus.engine.gather import gather, gather_pointers, gather_words
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory
from kcensus.engine.tags import tag_of, untagged
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import holders
from kcensus.sources.capsule import NotRecorded
from tests.unit.fakekernel import FakeKernel

_TAG = 0xFF << 56
_TYPES = """
struct mutex 16 : 0 atomic_long_t owner
struct node 24 : 0 struct list_head link; 16 unsigned long number
"""


def _tagged(address: int, tag: int) -> int:
    return address & ~_TAG | tag << 56


@pytest.fixture
def k(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    """A kernel with symbols of KASAN, on an architecture with tags."""
    every = [replace(each, tag=_TAG, tagging=("absent", "kasan_flag_enabled")) for each in KNOWN]
    monkeypatch.setattr(tags, "architecture_of", lambda _: every[0])
    k = FakeKernel("6.10", _TYPES)
    k.functions({"kasan_flag_enabled": int(k.alloc("char [16]").address_)})
    return k


def test_a_kernel_without_tags_costs_nothing() -> None:
    k = FakeKernel("6.10", _TYPES)
    words = np.array([0x34FF_8880_0000_1000], np.uint64)
    assert tag_of(k.prog) == Memory(k.prog).tag == 0
    assert untagged(words, tag_of(k.prog)) is words


def test_the_kernels_pointers_alone_lose_their_tag() -> None:
    words = [0, 1, 0x34FF_8880_0000_1000, 0x3400_7F00_0000_0000, _TAG | 5 << 48, (1 << 64) - 2]
    found = untagged(np.array(words, np.uint64), _TAG).tolist()
    assert found == [0, 1, 0xFFFF_8880_0000_1000, words[3], words[4], words[5]]


def test_reads_at_and_of_tagged_pointers(k: FakeKernel) -> None:
    memory, faults = Memory(k.prog), Faults()
    nodes = [int(k.alloc("struct node").address_) for _ in range(3)]
    for at, node in enumerate(nodes):
        after, before = nodes[(at + 1) % 3], nodes[at - 1]
        k.write_words(node, _tagged(after, 0x12), _tagged(before, 0xF4), 0x34FF_8880_0000_1000)
    members = layout(k.prog, "struct node", {"next": "link.next", "number": "number"})
    read = gather(memory, np.array([_tagged(nodes[0], 0x77)], np.uint64), members, faults)
    # A number is as it is in memory.
    assert (read["next"][0], read["number"][0]) == (nodes[1], 0x34FF_8880_0000_1000)
    assert circular(memory, nodes[0], faults, limit=9)[0].tolist() == nodes[1:]
    start = np.array([_tagged(nodes[0], 0x55)], np.uint64)
    _, pointers, readable = gather_pointers(memory, start, np.array([2]), faults)
    assert pointers.tolist() == [nodes[1], nodes[2]]
    assert readable.all()
    assert gather_words(memory, start, "u8", faults)[1].all()
    assert not faults


def test_a_capsule_that_did_not_ask_for_tags(k: FakeKernel) -> None:
    def lacking(*_: object) -> list[drgn.Symbol]:
        raise NotRecorded("kasan_flag_enabled")

    k.prog.register_symbol_finder("earlier version", lacking, enable_index=0)
    assert tag_of(k.prog) == Memory(k.prog).tag == 0


def test_the_owner_of_a_lock_loses_its_tag(k: FakeKernel) -> None:
    task, mutex = (int(k.alloc(f"struct {name}").address_) for name in ("task_struct", "mutex"))
    k.write_words(mutex, _tagged(task, 0x21) | 1)
    found = holders(Kernel(k.prog), "struct mutex", np.array([mutex], np.uint64))
    assert found.task.tolist() == [task]
