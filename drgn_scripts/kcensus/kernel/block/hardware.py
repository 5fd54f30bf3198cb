# SPDX-License-Identifier: LGPL-2.1-or-later
"""blk-mq: hardware queues, software queues, and their tags."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import gather, gather_pointers
from kcensus.engine.layout import Path, element_paths, layout
from kcensus.engine.memory import Faults, Memory, Numbers, Words
from kcensus.engine.rows import Addressed, rows_of, spread, within
from kcensus.engine.slub.percpu import cpu_offsets
from kcensus.engine.xarray import XArrayWalk
from kcensus.kernel.block.disks import BlockDevices, QueueKind, block_devices
from kcensus.kernel.kernel import Kernel, once

_MAX_HARDWARE_QUEUES = 1 << 13
"""Hardware queues of one disk: at most one per CPU and type."""
_MAX_DEPTH = 1 << 16
"""Tags of one map; BLK_MQ_MAX_DEPTH is 10240, and schedulers' shared maps have fewer."""
_MAX_WORDS = 1 << 20
"""Words of all maps of tags: a word may have as few as one bit."""


@dataclass(frozen=True)
class Tags:
    """``struct blk_mq_tags`` as columns, by ascending address."""

    address: Words
    depth: Numbers
    """Tags, with the reserved ones."""
    reserved: Numbers
    rqs: Words
    """Array of the request that last got each tag in the driver."""
    static_rqs: Words
    """Array of the preallocated request of each tag."""
    map: Words
    """Address of the map of its ordinary tags, which several may share."""
    reserved_map: Words
    """Address of the map of its reserved tags."""
    used: Numbers
    """Number of tags with a bit set and not lazily cleared."""
    bit_row: Lanes
    """Row of each set bit; ascending. Each row with a map has all of its bits."""
    bit_tag: Numbers
    """Tag of each set bit."""

    def rows(self, addresses: Words) -> Numbers:
        """Return the row of each ``struct blk_mq_tags``, or -1.

        Tags with the same map have one row, so that unique rows count each tag once.
        """
        row = rows_of(self.address, addresses)
        return np.where(row >= 0, np.append(self.first, -1)[row], -1)

    @cached_property
    def first(self) -> Numbers:
        """Row of the first ``struct blk_mq_tags`` with the same map."""
        _, first, inverse = np.unique(self.map, return_index=True, return_inverse=True)
        return first[inverse]


@dataclass
class HardwareQueues(Addressed):
    """``struct blk_mq_hw_ctx`` as columns, disk by disk."""

    address: Words
    disk: Lanes
    """Row of the disk; ascending."""
    number: Numbers
    tags: Words
    """Address of the tags of the driver."""
    sched_tags: Words
    """Address of the tags of the scheduler; 0 without one."""
    sched_data: Words
    flush_queue: Words
    is_stopped: npt.NDArray[np.bool_]
    """Whether the driver has stopped the queue (BLK_MQ_S_STOPPED)."""
    nr_contexts: Numbers
    """Number of its software queues."""
    tag_sets: Tags
    """The tags of all hardware queues."""
    damaged: int = 0
    """Unreadable or impossible hardware queues and maps of tags."""
    faults: Faults = field(default_factory=Faults)


@once
def hardware_queues(kernel: Kernel) -> HardwareQueues:
    """Return the hardware queues of all disks.

    :raises LookupError: the debug info lacks blk-mq
    """
    memory, prog, faults = kernel.memory, kernel.prog, Faults()
    devices = block_devices(kernel)
    disk, address, damaged = _contexts(memory, devices, faults)
    # Since Linux kernel commit e155b0c238b2 ("blk-mq: Use shared tags for shared sbitmap support")
    # (in v5.16), hardware queues with a shared map share the tags around it, too.
    columns = layout(
        prog,
        "struct blk_mq_hw_ctx",
        ["tags", "queue", "queue_num", "state", "nr_ctx"],
        # Since Linux kernel commit bd166ef183c2 ("blk-mq-sched: add framework for MQ capable IO
        # schedulers") (in v4.11), blk-mq has schedulers.
        {"sched_tags": "sched_tags", "sched_data": "sched_data", "fq": "fq"},
    )
    read = gather(memory, address, columns, faults)
    queues = np.array([device.queue for device in devices.disks], np.uint64)
    known = read.readable & (read["queue"] == queues[disk])
    damaged += int((~known).sum())
    column = {name: values[known] for name, values in read.columns.items()}
    zeros = np.zeros(int(known.sum()), np.uint64)
    sched_tags = column.get("sched_tags", zeros)
    sets, lost = _tags(memory, np.union1d(column["tags"], sched_tags), faults)
    return HardwareQueues(
        address=address[known],
        disk=disk[known],
        number=column["queue_num"].astype(np.int64),
        tags=column["tags"],
        sched_tags=sched_tags,
        sched_data=column.get("sched_data", zeros),
        flush_queue=column.get("fq", zeros),
        # BLK_MQ_S_STOPPED has always been bit 0.
        is_stopped=(column["state"] & np.uint64(1)) != 0,
        nr_contexts=column["nr_ctx"].astype(np.int64),
        tag_sets=sets,
        damaged=damaged + lost,
        faults=faults,
    )


def _contexts(memory: Memory, devices: BlockDevices, faults: Faults) -> tuple[Lanes, Words, int]:
    """Return row of the disk and address of the hardware queues, and the number of lost disks."""
    prog = memory.prog
    disk, queue = devices.of_kind(QueueKind.MULTI)
    count = np.array([devices.disks[row].hardware_queues for row in disk], np.int64)
    type_ = prog.type("struct request_queue")
    # Between Linux kernel commits 4e5cc99e1e48 ("blk-mq: manage hctx map via xarray") (in v5.18)
    # and d0c98769ee7d ("blk-mq: use array manage hctx map instead of xarray") (in v6.19), hardware
    # queues are in an xarray.
    if type_.has_member("hctx_table"):
        heads = gather(memory, queue, layout(prog, type_, {"head": "hctx_table.xa_head"}), faults)
        walk = XArrayWalk(memory, faults)
        blocks = list(walk.blocks(heads["head"]))
        lane = np.concatenate([disk[:0], *(block.lane for block in blocks)])
        entry = np.concatenate([queue[:0], *(block.entry for block in blocks)])
        index = np.concatenate([queue[:0], *(block.index for block in blocks)])
        order = np.lexsort((index, lane))
        damaged = walk.damage.unreadable + walk.damage.torn + int((~heads.readable).sum())
        return disk[lane[order]], entry[order], damaged
    array = gather(memory, queue, layout(prog, type_, {"array": "queue_hw_ctx"}), faults)
    possible = array.readable & (count <= _MAX_HARDWARE_QUEUES)
    counts = np.where(possible, count, 0)
    lane, entry, readable = gather_pointers(memory, array["array"], counts, faults)
    lost = int((~possible).sum()) + int((~readable).sum())
    return disk[lane[entry != 0]], entry[entry != 0], lost


def _tags(memory: Memory, addresses: Words, faults: Faults) -> tuple[Tags, int]:
    """Return tags with their set bits, and the number of damaged ones."""
    prog = memory.prog
    type_ = prog.type("struct blk_mq_tags")
    address = addresses[addresses != 0]
    # Until Linux kernel commit 2af8cbe30531 ("blk-mq: split tag ->rqs[] into two") (in v4.11), rqs
    # are the preallocated requests.
    required: dict[str, Path] = {name: name for name in ("nr_tags", "nr_reserved_tags", "rqs")}
    members = layout(prog, type_, required | {"static_rqs": ("static_rqs", "rqs")})
    read = gather(memory, address, members, faults)
    damaged = int((~read.readable).sum())
    address = address[read.readable]
    column = {name: values[read.readable] for name, values in read.columns.items()}
    maps: dict[str, Words] = {}
    for name in ("bitmap_tags", "breserved_tags"):
        # From Linux kernel commit 222a5ae03cdd ("blk-mq: Use pointers for blk_mq_tags bitmap tags")
        # to ae0f1a732f4a ("blk-mq: Stop using pointers for blk_mq_tags bitmap tags") (v5.10 to
        # v5.15), the maps are pointers: with BLK_MQ_F_TAG_HCTX_SHARED, hardware queues have tags of
        # their own around one map.
        if type_.member(name).type.kind == drgn.TypeKind.POINTER:
            maps[name] = gather(memory, address, layout(prog, type_, [name]), faults)[name]
        else:
            maps[name] = address + np.uint64(drgn.offsetof(type_, name))
    places, place = np.unique(np.concatenate([*maps.values()]), return_inverse=True)
    own, bits, lost = set_bits(memory, places + _map_offset(prog), faults)
    # Repeat the bits of a map for each row with it; set_bits() does not order them by map.
    order = np.argsort(own, kind="stable")
    begin, end = (np.searchsorted(own[order], place, side) for side in ("left", "right"))
    lane, index = spread(end - begin)
    bit = bits[order][begin[lane] + index]
    row = lane % max(len(address), 1)
    reserved = column["nr_reserved_tags"].astype(np.int64)
    # Reserved tags come first.
    tag = np.where(lane < len(address), bit + reserved[row], bit)
    order = np.lexsort((tag, row))
    found = Tags(
        address,
        column["nr_tags"].astype(np.int64),
        reserved,
        column["rqs"],
        column["static_rqs"],
        maps["bitmap_tags"],
        maps["breserved_tags"],
        np.bincount(row, minlength=len(address)).astype(np.int64),
        row[order],
        tag[order],
    )
    return found, damaged + lost


def _map_offset(prog: drgn.Program) -> np.uint64:
    """Return the offset of the ``struct sbitmap`` in a ``struct sbitmap_queue``."""
    try:
        return np.uint64(drgn.offsetof(prog.type("struct sbitmap_queue"), "sb"))
    except LookupError:
        return np.uint64(0)  # the maps that set_bits() reads without it


def tags_in_use(kernel: Kernel) -> Numbers:
    """Return the present :attr:`Tags.used` of the tags of all hardware queues.

    :raises LookupError: the debug info lacks blk-mq
    """
    sets = hardware_queues(kernel).tag_sets
    maps = np.concatenate([sets.map, sets.reserved_map])
    places, place = np.unique(maps, return_inverse=True)
    own, _, _ = set_bits(kernel.memory, places + _map_offset(kernel.prog), Faults())
    counts = np.bincount(own, minlength=len(places))[place]
    return np.asarray(counts.reshape(2, len(sets.address)).sum(axis=0))


def set_bits(memory: Memory, maps: Words, faults: Faults) -> tuple[Lanes, Numbers, int]:
    """Return the set bits of many ``struct sbitmap``: row of the map, bit; and damaged maps."""
    prog = memory.prog
    # Until v4.8 (commit not verified), blk-mq has maps of its own.
    try:
        type_, word_type = prog.type("struct sbitmap"), "struct sbitmap_word"
    except LookupError:
        type_, word_type = prog.type("struct blk_mq_bitmap_tags"), "struct blk_align_bitmap"
    members: dict[str, Path] = {name: name for name in ("depth", "map_nr", "map")}
    columns = layout(prog, type_, members | {"shift": ("shift", "bits_per_word")})
    read = gather(memory, maps, columns, faults)
    depth, words = read["depth"].astype(np.int64), read["map_nr"].astype(np.int64)
    shift = read["shift"].astype(np.int64)
    possible = read.readable & (depth <= _MAX_DEPTH) & (shift <= 6)
    possible &= words <= (depth >> np.clip(shift, 0, 6)) + 1
    possible &= (depth == 0) | (read["map"] != 0)
    # Bound the sum over all maps, since damage could make each as long as possible.
    possible &= within(np.where(possible, words, 0), _MAX_WORDS)
    count = np.where(possible, words, 0)
    lane, index = spread(count)
    # Since Linux kernel commit ea86ea2cdced ("sbitmap: ammortize cost of clearing bits") (in v5.0),
    # freed bits are first noted in a second word.
    columns = layout(prog, word_type, {"word": "word"}, {"cleared": "cleared"})
    places = read["map"][lane] + index.astype(np.uint64) * np.uint64(columns.size)
    # Without a tag in use, all are zero.
    word = gather(memory, places, columns, faults, may_be_zero=True)
    value = word["word"].astype(np.uint64)
    if "cleared" in columns:
        value = value & ~word["cleared"].astype(np.uint64)
    used = np.flatnonzero(value)
    bits = np.unpackbits(value[used].astype("<u8").view(np.uint8), bitorder="little")
    row, place = np.nonzero(bits.reshape(-1, 64))
    row = used[row]
    bit = (index[row] << shift[lane[row]]) + place
    real = (place < (1 << shift[lane[row]])) & (bit < depth[lane[row]])
    damaged = int((~possible).sum()) + int((~word.readable).sum())
    return lane[row][real], bit[real], damaged


def disks_of_maps(kernel: Kernel, maps: Words) -> Lanes:
    """Return the row of the disk with tags in each ``struct sbitmap_queue``.

    :return: -1 for other maps, and for maps shared by several disks
    :raises LookupError: the debug info lacks blk-mq
    """
    hardware = hardware_queues(kernel)
    sets = hardware.tag_sets
    addresses = np.concatenate([hardware.tags, hardware.sched_tags])
    row, disk = rows_of(sets.address, addresses), np.tile(hardware.disk, 2)
    row, disk = row[row >= 0], disk[row >= 0]
    owned = np.concatenate([sets.map[row], sets.reserved_map[row]])
    disk = np.tile(disk, 2)
    order = np.lexsort((disk, owned))
    owned, disk = owned[order], np.append(disk[order], -1)
    first = np.searchsorted(owned, maps, "left")
    end = np.searchsorted(owned, maps, "right")
    return np.where((end > first) & (disk[first] == disk[end - 1]), disk[first], -1)


def maps_of_queues(kernel: Kernel, queues: Words) -> Words:
    """Return the ``struct sbitmap_queue`` of each wait queue for tags, or 0.

    :raises LookupError: the debug info lacks blk-mq, or its wait queues
    """
    hardware, prog = hardware_queues(kernel), kernel.prog
    sets = hardware.tag_sets
    maps = np.unique(np.concatenate([sets.map, sets.reserved_map]))
    states = layout(prog, "struct sbitmap_queue", ["ws"])
    # SBQ_WAIT_QUEUES is 8.
    size = np.uint64(8 * drgn.sizeof(prog.type("struct sbq_wait_state")))
    first = gather(kernel.memory, maps, states, hardware.faults)["ws"]
    order = np.argsort(first)
    maps, first = np.append(maps[order], np.uint64(0)), np.append(first[order], np.uint64(0))
    place = np.searchsorted(first[:-1], queues, "right") - 1
    holds = (first[place] != 0) & (queues - first[place] < size)
    return np.where(holds, maps[place], np.uint64(0))


def software_queues(
    memory: Memory, devices: BlockDevices, faults: Faults
) -> tuple[Lanes, Words, int]:
    """Return the lists of requests in software queues: row of the disk, address of the head.

    There is one per CPU and, since v5.0, type of hardware queue.

    :return: also the number of disks without readable queues
    """
    prog = memory.prog
    disk, queue = devices.of_kind(QueueKind.MULTI)
    read = gather(memory, queue, layout(prog, "struct request_queue", ["queue_ctx"]), faults)
    type_ = prog.type("struct blk_mq_ctx")
    # Since v5.0 (commit not verified), there is a list per type of hardware queue.
    name = "rq_lists" if type_.has_member("rq_lists") else "rq_list"
    heads = [drgn.offsetof(type_, path) for path in element_paths(type_, name)]
    known = np.flatnonzero(read["queue_ctx"])
    offsets = cpu_offsets(prog)
    steps = (offsets[:, None] + np.array(heads, np.uint64)[None, :]).ravel()
    head = read["queue_ctx"][known][:, None] + steps[None, :]
    return np.repeat(disk[known], len(steps)), head.ravel(), len(disk) - len(known)
