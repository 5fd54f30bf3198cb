# SPDX-License-Identifier: LGPL-2.1-or-later
"""A dump with requests in which words are damaged at random: gaps, never a wrong kind of error."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import drgn
import numpy as np
import pytest
from drgn.helpers.linux.percpu import per_cpu_ptr

from kcensus.analyses.iosched.kernel.run import of_kernel
from kcensus.engine import gather as gather_module
from kcensus.engine.memory import Memory, Words
from kcensus.engine.slub.caches import find_caches
from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.hardware import hardware_queues
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.tasks import tasks
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.results import Answer, CheckStatus
from kcensus.sources import open_target
from kcensus.sources.capsule import NotRecorded
from tests.sample.block.poked import Poked

pytestmark = pytest.mark.ends

_CAPSULES = (str(Path(__file__).parent / "cfq-4.19.capsule"), "sample-io")
_SEVERE = 1e-2
"""Share of damaged words from which on analyses may fail, in one sentence."""


def damaging(
    read: Callable[[Memory, int, int], bytes], seed: int, share: float
) -> Callable[[Memory, int, int], bytes]:
    """Return a function that reads memory and damages some words of it, the same each time."""

    def damaged(memory: Memory, address: int, size: int) -> bytes:
        words = np.frombuffer(read(memory, address, size), np.uint8).copy()
        whole = words[: size // 8 * 8].view(np.uint64)
        chance = np.random.default_rng((seed, address & 0xFFFFFFFF, address >> 32))
        bad = chance.random(len(whole)) < share
        # Nothing, anything, a flipped bit, a pointer to somewhere, and one to another word.
        kind = chance.integers(0, 5, len(whole))
        anything = chance.integers(0, 1 << 64, len(whole), np.uint64)
        bit = np.uint64(1) << (anything % np.uint64(64))
        pointer = np.uint64(0xFFFF_8880_0000_0000) | (anything & np.uint64(0xFFF_FFF8))
        other = np.roll(whole, 1)
        choices = [np.zeros_like(whole), anything, whole ^ bit, pointer, other]
        whole[bad] = np.choose(kind, choices)[bad]
        return words.tobytes()

    return damaged


@pytest.mark.slow
@pytest.mark.parametrize("share", [1e-4, 1e-3, _SEVERE])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("capsule", _CAPSULES, ids=["cfq", "bfq"])
def test_random_damage(
    capsule: str, seed: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    prog = open_target(capsule).prog
    monkeypatch.setattr(Memory, "_read", damaging(Memory._read, seed, share))
    start = time.process_time()
    try:
        answer = of_kernel(Kernel(prog))
    except (LookupError, NotRecorded, drgn.FaultError):
        assert share >= _SEVERE
    else:
        assert len(answer.tables["requests"].frame) == answer.summary["requests"].value
        assert all(gap.count > 0 for gap in answer.gaps)
    assert time.process_time() - start < 30


@pytest.mark.slow
@pytest.mark.parametrize("capsule", _CAPSULES, ids=["cfq", "bfq"])
def test_much_damage_shows_as_gaps(capsule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prog = open_target(capsule).prog
    monkeypatch.setattr(Memory, "_read", damaging(Memory._read, 7, 1e-3))
    assert of_kernel(Kernel(prog)).gaps


# What is damaged on purpose: a guest with BFQ, of which tasks wait for starved writes.


@pytest.fixture
def poked() -> Poked:
    return Poked(open_target("sample-io").prog)


@pytest.fixture(scope="module")
def plain() -> Kernel:
    return Kernel(open_target("sample-io").prog)


@pytest.fixture(scope="module")
def sound(plain: Kernel) -> Answer:
    return of_kernel(plain)


def _gaps(answer: Answer) -> set[str]:
    assert all(gap.count > 0 and gap.effect for gap in answer.gaps)
    return {gap.what for gap in answer.gaps}


def _starved(answer: Answer) -> list[int]:
    """Return the addresses of the requests in the longest queue of the scheduler."""
    frame = answer.tables["requests"].frame
    own = frame[frame["queue"] == frame["queue"].mode()[0]]
    found: list[int] = own["address"].tolist()
    return found


@pytest.mark.parametrize("bent", ["itself", "nothing", "program", "earlier", "other"])
def test_a_torn_list_of_a_scheduler(poked: Poked, sound: Answer, bent: str) -> None:
    """A request of the queue leads on to another place; all are found by their tags."""
    requests = _starved(sound)
    link = drgn.offsetof(poked.prog.type("struct request"), "queuelist")
    victim = requests[len(requests) // 2] + link
    target = {
        "itself": victim,
        "nothing": 0,
        "program": 0x7FFF_1234_5678,
        "earlier": requests[0] + link,
        "other": int(poked.prog["init_task"].tasks.address_of_()),
    }[bent]
    poked.word(victim, target)
    answer = of_kernel(Kernel(poked.prog))
    assert "lists and trees of requests" in _gaps(answer)
    assert answer.summary["requests"] == sound.summary["requests"]
    assert answer.findings[0].id == sound.findings[0].id
    assert answer.summary["sleepers_proven"] == sound.summary["sleepers_proven"]


@pytest.mark.slow
def test_requests_that_are_freed_meanwhile(poked: Poked, plain: Kernel, sound: Answer) -> None:
    """Their tags are free, but they are still in a queue."""
    frame = sound.tables["requests"].frame.set_index("address")
    hardware = hardware_queues(plain)
    sched_tags = drgn.Object(poked.prog, "struct blk_mq_tags *", value=_only(hardware.sched_tags))
    bitmap = sched_tags.bitmap_tags.sb
    freed = _starved(sound)[:3]
    for tag in frame["sched_tag"][freed].tolist():
        word = bitmap.map[tag >> int(bitmap.shift)].word
        bit = tag & ((1 << int(bitmap.shift)) - 1)
        poked.word(int(word.address_), int(word) & ~(1 << bit))
    answer = of_kernel(Kernel(poked.prog))
    assert "requests on lists" in _gaps(answer)
    left = set(answer.tables["requests"].frame["address"])
    assert left == set(frame.index) - set(freed)
    assert answer.findings[0].id == sound.findings[0].id


def test_stacks_that_are_missing(poked: Poked, sound: Answer) -> None:
    """Lists of waiters prove what tasks wait for; where they sleep is unknown."""
    frame = sound.tables["sleepers"].frame
    openers = frame[frame["function"] == "xfs_buf_lock"]
    for address in openers["address"].tolist():
        task = drgn.Object(poked.prog, "struct task_struct", address=address)
        poked.remove(int(task.stack), int(poked.prog["THREAD_SIZE"]))
    answer = of_kernel(Kernel(poked.prog))
    gaps = {gap.what: gap.count for gap in answer.gaps}
    assert gaps["stacks of tasks"] == len(openers)
    found = answer.tables["sleepers"].frame.set_index("address")
    # The links of the list of waiters are on these stacks.
    assert gaps["lists of waiters"] > 0
    assert len(found) == len(frame)
    others = frame[frame["function"] != "xfs_buf_lock"].set_index("address")
    assert found.loc[others.index, "link"].equals(others["link"])


@pytest.mark.slow
def test_unwinding_tables_that_are_missing(poked: Poked, sound: Answer) -> None:
    start, end = (
        poked.prog.symbol(name).address for name in ("__start_orc_unwind_ip", "__start_orc_unwind")
    )
    poked.remove(start, end - start)
    answer = of_kernel(Kernel(poked.prog))
    gaps = {gap.what: gap.count for gap in answer.gaps}
    assert gaps["stacks of tasks"] == sound.summary["sleepers"].value
    frame = answer.tables["sleepers"].frame
    # Lists prove the buffers of XFS, without a stack.
    assert set(frame["object_by"][frame["kind"] == "xfs_buf"]) == {"xfs_buf.b_sema"}
    assert answer.summary["sleepers_xfs_buf"] == sound.summary["sleepers_xfs_buf"]
    starved = [{each.id: each.figures for each in one.findings} for one in (answer, sound)]
    assert starved[0]["requests-starved:vda-async"] == starved[1]["requests-starved:vda-async"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_pages_that_are_missing(poked: Poked, sound: Answer, seed: int) -> None:
    """Pages of requests, bios, buffers and tasks: gaps, and never more than there is."""
    frames = [sound.tables[name].frame for name in ("requests", "sleepers")]
    columns = [frames[0]["address"], frames[1]["address"], frames[1]["object"]]
    addresses = np.unique(np.concatenate([column.to_numpy(np.uint64) for column in columns]))
    chosen = np.random.default_rng(seed).choice(addresses[addresses != 0], 12, replace=False)
    for address in chosen.tolist():
        poked.remove(address)
    answer = of_kernel(Kernel(poked.prog))
    assert _gaps(answer)
    for name in ("requests", "sleepers"):
        assert len(answer.tables[name].frame) <= len(sound.tables[name].frame)


@pytest.mark.parametrize(
    "what",
    ["part0", "queue", "elevator", "elevator_data", "tag_set", "hctx", "tags", "requests", "task"],
)
def test_a_page_of_zeros_hides_no_starved_disk(
    poked: Poked, plain: Kernel, sound: Answer, what: str
) -> None:
    """A pointer leads to it, so that something was there: the figures are right, or a gap shows."""
    disk = next(each for each in block_devices(plain).disks if each.name == "vda")
    gendisk = drgn.Object(poked.prog, "struct gendisk *", value=disk.address)
    hardware = hardware_queues(plain)
    place = {
        "part0": lambda: gendisk.part0,
        "queue": lambda: gendisk.queue,
        "elevator": lambda: gendisk.queue.elevator,
        "elevator_data": lambda: gendisk.queue.elevator.elevator_data,
        "tag_set": lambda: gendisk.queue.tag_set,
        "hctx": lambda: hardware.address[0],
        "tags": lambda: hardware.tags[0],
        "requests": lambda: sound.tables["requests"].frame["address"].iloc[0],
        "task": lambda: tasks(plain).address[0],
    }[what]()
    start = int(place) & ~4095
    poked.write(start, bytes(4096))
    try:
        answer = of_kernel(Kernel(poked.prog))
    except (LookupError, drgn.FaultError):
        return
    differ = [check for check in answer.checks if check.status == CheckStatus.DIFFER]
    same = all(
        answer.summary[key].value == sound.summary[key].value
        for key in ("requests", "inserted", "overdue", "sleepers", "sleepers_proven")
    )
    assert same or _gaps(answer) or differ


_NOWHERE = 0x0000_1234_0000_1000
_BENT = 12
"""Pointers to bend, one at a time."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bent", "value"),
    [
        *((name, _NOWHERE) for name in ("device", "elevator", "sched_tags", "tags", "static_rqs")),
        *(("map", _NOWHERE), ("kernfs", _NOWHERE)),
        *((name, 0) for name in ("queue", "elevator_data", "map")),
    ],
)
def test_a_bent_pointer_shows(
    poked: Poked, plain: Kernel, sound: Answer, bent: str, value: int
) -> None:
    """Whatever a pointer led to: it is found otherwise, or a gap says that it is missing."""
    prog = poked.prog
    hardware = hardware_queues(plain)
    disk = next(each for each in block_devices(plain).disks if each.name == "vda")
    gendisk = drgn.Object(prog, "struct gendisk *", value=disk.address)
    (context,) = (
        drgn.Object(prog, "struct blk_mq_hw_ctx *", value=address)
        for address in hardware.address[hardware.sched_tags != 0].tolist()
    )
    (group,) = np.unique(bios(plain).group).tolist()
    node = drgn.Object(prog, "struct blkcg_gq *", value=group).blkcg.css.cgroup.kn
    pointer = {
        "device": gendisk.part0.bd_device.p.device,
        "elevator": gendisk.queue.elevator,
        "queue": gendisk.queue,
        "elevator_data": gendisk.queue.elevator.elevator_data,
        "sched_tags": context.sched_tags,
        "tags": context.tags,
        "static_rqs": context.sched_tags.static_rqs,
        "map": context.sched_tags.bitmap_tags.sb.map,
        "kernfs": node.parent,
    }[bent]
    is_loop = bent == "kernfs"
    poked.word(int(pointer.address_), int(node) if is_loop else value)
    answer = of_kernel(Kernel(prog))
    gaps = _gaps(answer)
    if bent in ("device", "elevator", "queue", "elevator_data"):
        assert any(gap.startswith("disk") for gap in gaps)
        return
    if is_loop:
        assert "cgroups of requests" in gaps
    else:
        assert gaps & {"hardware queues and their tags", "tags"}
    # The lists of the scheduler have them, too.
    assert answer.summary["overdue"] == sound.summary["overdue"]
    assert answer.findings[0].id == sound.findings[0].id
    assert answer.findings[0].severity == sound.findings[0].severity


@pytest.mark.slow
def test_a_request_expired_before_it_was_allocated(poked: Poked, sound: Answer) -> None:
    requests = _starved(sound)
    link = drgn.Object(poked.prog, "struct request", address=requests[0]).fifo_time
    poked.word(int(link.address_), max(int(link) - 50_000_000_000, 1))
    answer = of_kernel(Kernel(poked.prog))
    late, before = (each.summary["worst_lateness"].value for each in (answer, sound))
    assert float(late or 0) <= float(before or 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bent", "value"), [("s_type", _NOWHERE), ("name", _NOWHERE), ("s_fs_info", 0)]
)
def test_a_damaged_file_system_shows(
    poked: Poked, plain: Kernel, sound: Answer, bent: str, value: int
) -> None:
    """It may be an XFS, or is one, whose lists of waiters are then missing."""
    blocks = super_blocks(plain)
    address = int(blocks.address[blocks.type.index("xfs")])
    block = drgn.Object(poked.prog, "struct super_block", address=address)
    pointer = block.s_type.name if bent == "name" else block.member_(bent)
    poked.word(int(pointer.address_), value)
    answer = of_kernel(Kernel(poked.prog))
    assert answer.summary["sleepers_proven"] != sound.summary["sleepers_proven"]
    assert "lists of waiters" in _gaps(answer)


@pytest.mark.slow
def test_an_owner_of_a_request_that_is_nowhere_shows(
    poked: Poked, plain: Kernel, sound: Answer
) -> None:
    found = bios(plain)
    objects = sound.tables["sleepers"].frame["object"].to_numpy(np.uint64)
    row = np.flatnonzero(np.isin(found.origin_private, objects[objects != 0]))[0]
    bio = drgn.Object(poked.prog, "struct bio", address=int(found.address[row]))
    poked.word(int(bio.bi_private.address_), _NOWHERE)
    answer = of_kernel(Kernel(poked.prog))
    lost = [sound.summary[key] != answer.summary[key] for key in ("requests", "sleepers_proven")]
    assert lost == [False, True]
    assert "bios of requests" in _gaps(answer)


@pytest.mark.slow
def test_a_chain_of_bios_that_ends_early_shows(poked: Poked, plain: Kernel) -> None:
    found = bios(plain)
    (row, *_) = np.flatnonzero(found.request[1:] == found.request[:-1]).tolist()
    bio = drgn.Object(poked.prog, "struct bio", address=int(found.address[row]))
    poked.word(int(bio.bi_next.address_), 0)
    assert "bios of requests" in _gaps(of_kernel(Kernel(poked.prog)))


@pytest.mark.slow
def test_an_active_slab_of_no_cache_shows() -> None:
    """Its buffers are missing, and so are the tasks that wait for them."""
    poked = Poked(open_target(_CAPSULES[0]).prog)
    slabs = Kernel(open_target(_CAPSULES[0]).prog).slab_map
    (cache,) = find_caches(slabs, "struct xfs_buf")
    active = drgn.Object(poked.prog, "struct kmem_cache *", value=cache.address).cpu_slab
    page = per_cpu_ptr(active, 0).page
    poked.word(int(page.slab_cache.address_), _NOWHERE)
    assert "freelists of CPUs, or sheaves" in _gaps(of_kernel(Kernel(poked.prog)))


def _words_read(capsule: str) -> list[tuple[int, int]]:
    """Return places of pointers that the analysis reads: address and size of what it read there."""
    blocks, places = gather_module._blocks, dict[str, list[tuple[int, int]]]()

    def noted(memory: Memory, addresses: Words, size: int, *args: Any) -> Any:
        caller = sys._getframe(2)
        name = f"{caller.f_code.co_filename}:{caller.f_lineno}:{size}"
        places.setdefault(name, []).extend((each, size) for each in addresses.tolist())
        return blocks(memory, addresses, size, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather_module, "_blocks", noted)
        of_kernel(Kernel(open_target(capsule).prog))
    # One place of each kind that is read.
    chosen = random.Random(1)
    return [chosen.choice(each) for each in places.values() if each]


def _said(answer: Answer) -> dict[str, object]:
    """Return all that an answer says of requests.

    One pointer leads from a request to its owner: without it, the request is that of no task, as
    many are.
    """
    single = ("clock", "sleepers_behind_requests", "sleepers_proven")
    said: dict[str, object] = {
        key: figure.value for key, figure in answer.summary.items() if key not in single
    }
    for each in answer.findings:
        said[each.id] = each.severity
        said |= {
            f"{each.id} {key}": f.value for key, f in each.figures.items() if key != "sleepers"
        }
    return said


@pytest.mark.slow
@pytest.mark.parametrize("value", [_NOWHERE, 0])
@pytest.mark.parametrize("capsule", _CAPSULES, ids=["cfq", "bfq"])
def test_one_bent_pointer_changes_no_figure_unseen(capsule: str, value: int) -> None:
    """Any figure that differs comes with a gap, or a check that differs."""
    plain = open_target(capsule).prog
    before, choice, bent = _said(of_kernel(Kernel(plain))), random.Random(value), 0
    words = _words_read(capsule)
    for address, size in choice.sample(words, len(words)):
        own = []
        for place in range(address & ~7, address + size, 8):
            try:
                own += [place] if int.from_bytes(plain.read(place, 8), "little") >> 47 else []
            except drgn.FaultError:
                continue
        if address >> 47 != (1 << 17) - 1 or not own or bent == _BENT:
            continue
        place = choice.choice(own)
        poked = Poked(open_target(capsule).prog)
        poked.word(place, value)
        answer, bent = of_kernel(Kernel(poked.prog)), bent + 1
        if not answer.gaps and all(each.status is CheckStatus.AGREE for each in answer.checks):
            assert _said(answer) == before, hex(place)
    assert bent == _BENT


def test_hostile_names_join_tables_and_are_escaped_on_screen(poked: Poked, plain: Kernel) -> None:
    disk = next(each for each in block_devices(plain).disks if each.name == "vda")
    name = drgn.Object(poked.prog, "struct gendisk *", value=disk.address).disk_name
    poked.write(int(name.address_), b"v\x1b[1m\0")
    answer = of_kernel(Kernel(poked.prog))
    for table in ("disks", "scheduler_queues", "requests", "request_ages", "sleepers", "tunables"):
        assert "v\x1b[1m" in set(answer.tables[table].frame["disk"]), table
    told = [each.title + (each.evidence or "") + each.id for each in answer.findings]
    assert told
    assert not any("\x1b" in each for each in told)


def _only(values: np.ndarray[Any, Any]) -> int:
    (value,) = np.unique(values[values != 0]).tolist()
    return int(value)
