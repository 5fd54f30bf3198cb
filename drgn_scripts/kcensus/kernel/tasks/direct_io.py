# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that wait for their own direct I/O.

The structure of a direct I/O names the task that waits for it, and the bios point to the structure.
No list has these structures, but the function that waits keeps the address of its own in a register
or on its stack: the address is right if the structure there names the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.symbols import symbols_of
from kcensus.kernel.tasks.queued import stack_words
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.tasks.tasks import Tasks


@dataclass(frozen=True)
class _Kind:
    type_name: str
    waiter: str
    functions: frozenset[str]
    """That wait for such an I/O."""


_KINDS = (
    # Since Linux kernel commit ff6a9292e6f6 ("iomap: implement direct I/O") (in v4.10).
    _Kind("struct iomap_dio", "submit.waiter", frozenset({"iomap_dio_rw", "__iomap_dio_rw"})),
    _Kind(
        "struct dio",
        "waiter",
        frozenset({"dio_await_one", "do_blockdev_direct_IO", "__blockdev_direct_IO"}),
    ),
    # Since v4.10 (commit not verified).
    _Kind("struct blkdev_dio", "waiter", frozenset({"__blkdev_direct_IO", "blkdev_direct_IO"})),
)


_SIMPLE, _SIMPLE_END = "__blkdev_direct_IO_simple", "blkdev_bio_end_io_simple"


@dataclass(frozen=True)
class DirectIO:
    """Tasks that wait for direct I/O, as columns."""

    lane: Lanes
    """Index of the task in what was asked for."""
    object: Words
    """The structure: ``bio.bi_private`` of its bios."""
    member: list[str]
    """Type and member that name the task, such as ``iomap_dio.submit.waiter``."""
    inode: Words
    """The file's; 0 where the structure does not lead to it."""
    offset: npt.NDArray[np.int64]
    """Position in the file, bytes; -1 if unknown."""
    faults: Faults = field(default_factory=Faults)


def direct_io(
    kernel: Kernel, known: Tasks, rows: npt.NDArray[np.int64], stacks: Stacks
) -> DirectIO:
    """Return the direct I/O that tasks wait for.

    :param rows: of the tasks
    :param stacks: theirs, in the same order
    """
    faults = Faults()
    lanes, objects, members = [np.empty(0, np.int64)], [np.empty(0, np.uint64)], list[str]()
    ends = {kind: _frame_ends(stacks, kind.functions) for kind in _KINDS}
    for kind, end in ends.items():
        waiting = np.flatnonzero(end)
        if not len(waiting):
            continue
        try:
            dio = layout(kernel.prog, kind.type_name, {"waiter": kind.waiter})
        except LookupError:
            continue
        for some, start, words in stack_words(
            kernel.memory, known, rows[waiting], stacks.size, faults
        ):
            lane = waiting[some]
            place = start[:, None] + np.uint64(8) * np.arange(words.shape[1], dtype=np.uint64)
            # What is saved between the stack pointer and the end of the function's own frame.
            inside = (place >= known.sp[rows[lane]][:, None]) & (place < end[lane][:, None])
            inside &= _is_heap(words, known.stack[rows[lane]], stacks.size)
            row, column = np.nonzero(inside)
            candidate = words[row, column]
            read = gather(kernel.memory, candidate, dio, Faults())
            same = read["waiter"] == known.address[rows[lane[row]]]
            pairs = np.unique(np.stack([lane[row[same]].view(np.uint64), candidate[same]]), axis=1)
            one, count = np.unique(pairs[0], return_counts=True)
            # Two structures of one task: which one it waits for is unknown.
            pairs = pairs[:, np.isin(pairs[0], one[count == 1])]
            lanes.append(pairs[0].view(np.int64))
            objects.append(pairs[1])
            name = f"{kind.type_name.removeprefix('struct ')}.{kind.waiter}"
            members += [name] * pairs.shape[1]
    lane, object_ = _on_stack(kernel, known, rows, stacks, faults)
    lanes.append(lane)
    objects.append(object_)
    members += ["bio.bi_private"] * len(lane)
    lane, object_ = np.concatenate(lanes), np.concatenate(objects)
    inode, offset = _files(kernel, object_, members, faults)
    return DirectIO(lane, object_, members, inode, offset, faults)


def _on_stack(
    kernel: Kernel,
    known: Tasks,
    rows: npt.NDArray[np.int64],
    stacks: Stacks,
    faults: Faults,
) -> tuple[Lanes, Words]:
    """Return the bios on the stacks of tasks that wait for them, which name the task.

    Those of small direct I/O to block devices do, until v6.0 or so (commit not verified).
    """
    waiting = np.flatnonzero(_frame_ends(stacks, frozenset({_SIMPLE})))
    lanes, objects = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    bio = layout(kernel.prog, "struct bio", {"end_io": "bi_end_io", "private": "bi_private"})
    inside = np.uint64(bio.fields["private"].offset)
    for some, start, words in stack_words(kernel.memory, known, rows[waiting], stacks.size, faults):
        lane = waiting[some]
        row, column = np.nonzero(words == known.address[rows[lane]][:, None])
        place = start[row] + np.uint64(8) * column.astype(np.uint64) - inside
        end_io = gather(kernel.memory, place, bio, Faults())["end_io"]
        functions = symbols_of(kernel)
        ours = [bool(each) and functions(each)[0] == _SIMPLE_END for each in end_io.tolist()]
        lanes.append(lane[row[ours]])
        objects.append(place[ours])
    return np.concatenate(lanes), np.concatenate(objects)


def _frame_ends(stacks: Stacks, functions: frozenset[str]) -> Words:
    """Return per stack where the innermost frame of some functions ends; 0 if it has none."""
    wanted = [pc for pc, name in stacks.names.items() if name.split(".")[0] in functions]
    at = np.flatnonzero(np.isin(stacks.pc, np.array(wanted, np.uint64)))
    lane, first = np.unique(stacks.lane[at], return_index=True)
    frame = at[first]
    ends = np.zeros(len(stacks), np.uint64)
    # The frame ends where that of its caller begins; the outermost one is of entry code.
    caller = np.minimum(frame + 1, len(stacks.sp) - 1)
    has_caller = (caller > frame) & (stacks.lane[caller] == lane)
    ends[lane[has_caller]] = stacks.sp[caller[has_caller]]
    return ends


def _is_heap(words: Words, stack: Words, size: int) -> Mask:
    """Return which words can be addresses of allocated memory: not of code, nor of the stack."""
    own = (words >= stack[:, None]) & (words < (stack + np.uint64(size))[:, None])
    aligned = (words & np.uint64(7)) == 0
    heap: Mask = (words >= np.uint64(1 << 63)) & (words < np.uint64((1 << 64) - (1 << 31)))
    heap &= aligned & ~own
    return heap


def _files(
    kernel: Kernel, objects: Words, members: Sequence[str], faults: Faults
) -> tuple[Words, npt.NDArray[np.int64]]:
    """Return inode and position of direct I/Os, by their ``kiocb``."""
    inode, offset = np.zeros(len(objects), np.uint64), np.full(len(objects), -1)
    names = np.array([name.split(".")[0] for name in members])
    # In struct blkdev_dio, the task is in the place of the kiocb.
    for name in ("iomap_dio", "dio"):
        rows = np.flatnonzero(names == name)
        if not len(rows):
            continue
        prog, memory = kernel.prog, kernel.memory
        iocb = gather(memory, objects[rows], layout(prog, f"struct {name}", ["iocb"]), faults)
        kiocb = layout(prog, "struct kiocb", {"file": "ki_filp", "position": "ki_pos"})
        request = gather(memory, iocb["iocb"], kiocb, faults)
        file = layout(prog, "struct file", {"inode": "f_inode"})
        inode[rows] = gather(memory, request["file"], file, faults)["inode"]
        offset[rows] = np.where(request.readable, request["position"], -1)
    return inode, offset
