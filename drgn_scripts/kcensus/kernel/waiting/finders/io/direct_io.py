# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that wait for their own direct I/O.

The structure of a direct I/O names the waiting task, and the bios point to the structure. No list
has these structures, but the waiting function keeps the address of its own in a register or on its
stack: the address is right if the structure there names the task.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import gather, plausible, within
from kcensus.engine.layout import layout
from kcensus.engine.memory import Guess, Mask, Words
from kcensus.kernel.symbols import image_range, symbols_of
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.places import places_of_devices
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.finders.io.devices import to_devices
from kcensus.kernel.waiting.graph import NodeKind
from kcensus.kernel.waiting.objects.queued import own_mentions, picked_words
from kcensus.kernel.waiting.objects.reading import Reading

IO = NodeKind("I/O", waits=(WaitKind.REQUEST,), is_io=True)
"""I/O submitted by the task itself."""


class _Kind(NamedTuple):
    name: str
    waiter: str
    functions: frozenset[str]
    """Functions that wait for such an I/O."""


_KINDS = (
    # Since Linux kernel commit ff6a9292e6f6 ("iomap: implement direct I/O") (in v4.10).
    _Kind("iomap_dio", "submit.waiter", frozenset({"iomap_dio_rw", "__iomap_dio_rw"})),
    _Kind(
        "dio",
        "waiter",
        frozenset({"dio_await_one", "do_blockdev_direct_IO", "__blockdev_direct_IO"}),
    ),
    # Since v4.10 (commit not verified).
    _Kind("blkdev_dio", "waiter", frozenset({"__blkdev_direct_IO", "blkdev_direct_IO"})),
)
_SIMPLE, _SIMPLE_END = "__blkdev_direct_IO_simple", "blkdev_bio_end_io_simple"


def direct_io(reading: Reading) -> None:
    """Note the direct I/Os that name their task."""
    is_request = [facts.kind is WaitKind.REQUEST for facts in reading.facts]
    asked = np.array(is_request, np.bool_) & (reading.object == 0)
    if asked.any():
        for kind in _KINDS:
            _in_frames(reading, asked, kind)
        _on_stacks(reading, asked)


def _in_frames(reading: Reading, asked: Mask, kind: _Kind) -> None:
    """Note the structures of a kind with an address in the frames of waiting functions."""
    kernel, known, size = reading.kernel, reading.known, np.uint64(reading.stacks.size)
    end = _frame_ends(reading.stacks, kind.functions)
    lanes = np.flatnonzero(asked & (end != 0))
    if not len(lanes):
        return
    try:
        dio = layout(kernel.prog, f"struct {kind.name}", {"waiter": kind.waiter})
    except LookupError:
        return
    image = image_range(kernel.prog)

    def is_heap(words: Words, _: Lanes) -> Mask:
        outside = plausible(kernel.memory, words, 8) & ~within(words, image)
        return np.asarray(outside & ((words & np.uint64(7)) == 0))

    for index, word, place in picked_words(
        kernel.memory, known, reading.rows[lanes], reading.stacks.size, reading.faults, is_heap
    ):
        lane = lanes[index]
        row = reading.rows[lane]
        # Registers are saved between the stack pointer and the end of the function's own frame.
        inside = (place >= known.sp[row]) & (place < end[lane])
        inside &= (word < known.stack[row]) | (word >= known.stack[row] + size)
        lane, row, candidate = lane[inside], row[inside], word[inside]
        read = gather(kernel.memory, candidate, dio, Guess())
        same = read["waiter"] == known.address[row]
        pairs = np.unique(np.stack([lane[same].view(np.uint64), candidate[same]]), axis=1)
        one, count = np.unique(pairs[0], return_counts=True)
        # With two structures of one task, its object is unknown.
        pairs = pairs[:, np.isin(pairs[0], one[count == 1])]
        own, found = pairs[0].view(np.int64), pairs[1]
        member, type_ = f"{kind.name}.{kind.waiter}", f"struct {kind.name}"
        reading.note(own, found, WaitKind.REQUEST, type_, member)
        # In struct blkdev_dio, the task takes the place of the kiocb.
        if kind.name != "blkdev_dio":
            _place(reading, type_, own[reading.object[own] == found])


def _place(reading: Reading, type_: str, lane: Lanes) -> None:
    """Note the files of direct I/Os, by their ``kiocb``."""
    prog, memory, faults = reading.kernel.prog, reading.kernel.memory, reading.faults
    iocb = gather(memory, reading.object[lane], layout(prog, type_, ["iocb"]), faults)
    kiocb = layout(prog, "struct kiocb", {"file": "ki_filp", "position": "ki_pos"})
    request = gather(memory, iocb["iocb"], kiocb, faults)
    file = layout(prog, "struct file", {"inode": "f_inode"})
    inode = gather(memory, request["file"], file, faults)["inode"]
    reading.place_files(lane, inode, np.where(request.readable, request["position"], -1))


def _on_stacks(reading: Reading, asked: Mask) -> None:
    """Note the bios on the stacks of waiting tasks that name the task.

    Bios of small direct I/O to block devices do, until v6.0 or so (commit not verified).
    """
    lanes = np.flatnonzero(asked & (_frame_ends(reading.stacks, frozenset({_SIMPLE})) != 0))
    if not len(lanes):
        return
    kernel, functions = reading.kernel, symbols_of(reading.kernel)
    bio = layout(kernel.prog, "struct bio", {"end_io": "bi_end_io", "private": "bi_private"})
    index, place = own_mentions(
        kernel.memory, reading.known, reading.rows[lanes], reading.stacks.size, reading.faults
    )
    place = place - np.uint64(bio.fields["private"].offset)
    end_io = gather(kernel.memory, place, bio, Guess())["end_io"]
    ours = [bool(each) and functions(each)[0] == _SIMPLE_END for each in end_io.tolist()]
    is_bio = np.array(ours, np.bool_)
    lane, proof = lanes[index[is_bio]], "bio.bi_private"
    reading.note(lane, place[is_bio], WaitKind.REQUEST, "struct bio", proof)


def _frame_ends(stacks: Stacks, functions: frozenset[str]) -> Words:
    """Return the end of each stack's innermost frame of some functions; 0 if it has none."""
    wanted = [pc for pc, name in stacks.names.items() if name.split(".")[0] in functions]
    at = np.flatnonzero(np.isin(stacks.pc, np.array(wanted, np.uint64)))
    lane, first = np.unique(stacks.lane[at], return_index=True)
    frame = at[first]
    ends = np.zeros(len(stacks), np.uint64)
    # A frame ends where its caller's begins; the outermost frame is of entry code.
    caller = np.minimum(frame + 1, len(stacks.sp) - 1)
    has_caller = (caller > frame) & (stacks.lane[caller] == lane)
    ends[lane[has_caller]] = stacks.sp[caller[has_caller]]
    return ends


class DirectIo(Finder):
    """Finds the I/O that tasks have submitted themselves."""

    about = "direct I/O"
    kinds = (IO,)
    pointers = {"direct I/O": direct_io}
    sleeps = {
        WaitKind.REQUEST: """
            iomap_dio_rw __iomap_dio_rw dio_await_one do_blockdev_direct_IO __blockdev_direct_IO
            __blkdev_direct_IO __blkdev_direct_IO_simple blkdev_direct_IO submit_bio_wait
            __iomap_dio_read_simple blk_execute_rq blkdev_issue_flush swap_readpage swap_read_folio
            bio_await
            """
    }

    def find(self) -> None:
        """Add edges from the waits for a bio, or for its completion, to its device.

        A bio without a request, such as one that device mapper defers, is on no list that was read;
        but a task in submit_bio_wait() has it, or its address, on its stack.

        :raises LookupError: the debug info lacks a type
        """
        own, lanes = (
            each[[self.waits.kind[lane] is WaitKind.REQUEST for lane in each.tolist()]]
            for each in (self._of_type("struct bio"), self._of_type("struct completion"))
        )
        if not len(own) and not len(lanes):
            return
        # From Linux kernel commit 74d46992e0d9 ("block: replace bi_bdev with a gendisk pointer and
        # partitions index") (in v4.14) to 309dca309fc3 ("block: store a block_device pointer in
        # struct bio") (in v5.12), a bio has its disk.
        bio = layout(
            self.kernel.prog,
            "struct bio",
            {"private": "bi_private"},
            {"bdev": "bi_bdev", "disk": "bi_disk"},
        )
        inside = np.uint64(bio.fields["private"].offset)
        found = [(own, self.object[own])]
        for lane, word, place in self._picked(lanes):
            is_own = word == self.object[lane]
            found += [(lane, word), (lane[is_own], place[is_own] - inside)]
        lane, address = (np.concatenate(part) for part in zip(*found, strict=True))
        read = gather(self.kernel.memory, address, bio, Guess())
        is_bio = np.isin(lane, own) | (read["private"] == self.object[lane])
        sound = np.flatnonzero(read.readable & is_bio)
        lane, first = np.unique(lane[sound], return_index=True)
        rows = sound[first]
        if "disk" in bio:
            disk = read["disk"][rows]
        else:
            disk = places_of_devices(self.kernel, read["bdev"][rows], Guess()).disk
        to_devices(self, lane, disk, "bio of the wait")


FINDER = DirectIo
