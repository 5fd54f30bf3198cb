# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bios of requests: their owners, and the pages that they read or write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import drgn
import numpy as np
from drgn import Object

from kcensus.engine.chase import Damage, Lanes, collect, pointer_step
from kcensus.engine.gather import gather, gather_arrays
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words, direct_map_start
from kcensus.engine.rows import Addressed, spread, within
from kcensus.engine.slub.pages import PageMap
from kcensus.kernel.block.operations import Operations
from kcensus.kernel.block.requests import requests
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.names import ABSENT, cgroup_path
from kcensus.sources.capsule import NotRecorded

_MAX_CHAIN = 1 << 12
"""Bios of one request: merging stops at ``max_segments``."""
_MAX_SEGMENTS = 1 << 16
"""Segments of one bio: BIO_MAX_VECS is 256, but loop devices and io_uring pass their own arrays."""
_MAX_PAGES = 1 << 22
"""Pages of all bios, which take 32 MiB."""
_MAX_LEVELS = 64
"""Most clones and splits of a bio: dm devices nest less deep."""
_SECTOR = 512
_MAPPING_FLAGS = np.uint64(3)
"""Bits of ``page.mapping`` without an address_space: anonymous, movable, KSM."""


@dataclass
class Bios(Addressed):
    """A row per bio, request by request, in the order of the request."""

    address: Words
    request: Lanes
    """Row of the request; ascending."""
    group: Words
    """``struct blkcg_gq`` charged for the bio; 0 if unknown."""
    origin: Words
    """The original of a clone or split, above device mapper, md and splits; else the bio."""
    origin_end_io: Words
    """``bi_end_io`` of the original: address of the function at its end."""
    origin_private: Words
    """``bi_private`` of the original, for that function: ``struct xfs_buf``, ``struct iomap_dio``,
    …"""
    page: Words
    """``struct page`` of each page left to read or write."""
    page_bio: Lanes
    """Row of the bio of each page."""
    folio: Words
    """Head of the folio or compound page of each page: the page itself if it is single."""
    inode: Words
    """``struct inode`` with each page in its page cache; 0 for direct I/O, swap and buffers."""
    functions: dict[int, str] = field(default_factory=dict)
    """Names of the functions in ``origin_end_io``, and others."""
    torn: int = 0
    """Requests with an incomplete chain of bios, and bios with unreadable pages or owner."""
    faults: Faults = field(default_factory=Faults)

    def ends_in(self, *names: str) -> Mask:
        """Return a mask of the bios whose ``origin_end_io`` is any of the functions."""
        known = [address for address, name in self.functions.items() if name in names]
        return np.isin(self.origin_end_io, np.array(known, np.uint64))

    def end_names(self) -> list[str]:
        """Return the name of each bio's ``origin_end_io``; empty without a symbol."""
        return [self.functions.get(int(address), "") for address in self.origin_end_io]


@once
def bios(kernel: Kernel) -> Bios:
    """Return the bios of all requests.

    :raises LookupError: the debug info lacks requests or bios
    """
    of_requests = requests(kernel)
    return bios_of(kernel, of_requests.bio, of_requests.last_bio)


def bios_of(kernel: Kernel, heads: Words, tails: Words, *, limit: int = _MAX_CHAIN) -> Bios:
    """Return the bios of many chains; the row of a chain takes the place of a request's.

    :param heads: first bio of each chain, or 0
    :param tails: last bio of each chain
    :param limit: most bios of a chain
    :raises LookupError: the debug info lacks bios
    """
    memory, prog, faults = kernel.memory, kernel.prog, Faults()
    type_ = prog.type("struct bio")
    step = pointer_step(memory, layout(prog, type_, ["bi_next"]), "bi_next", faults)
    damage = Damage()
    lanes, nodes = collect(heads, step, limit=limit, damage=damage)
    order = np.argsort(lanes, kind="stable")
    lanes, nodes = lanes[order], nodes[order]
    # A pointer cleared by damage ends a chain as usual, but not with its last bio.
    ends = np.flatnonzero(np.append(lanes[1:] != lanes[:-1], True)) if len(lanes) else lanes
    is_cut = nodes[ends] != tails[lanes[ends]]
    cut = np.union1d(damage.lanes(), lanes[ends[is_cut]])
    # Since Linux kernel commit 4f024f3797c4 ("block: Abstract out bvec iterator") (in v3.14), the
    # rest of a bio is a struct. Since Linux kernel commit 1eff9d322a44 ("block: rename bio bi_rw to
    # bi_opf") (in v4.8), bi_rw is called bi_opf; in v7.3, bi_bvec_done is bi_offset.
    columns = layout(
        prog,
        type_,
        {"bytes": ("bi_iter.bi_size", "bi_size"), "index": ("bi_iter.bi_idx", "bi_idx")}
        | {"end_io": "bi_end_io", "private": "bi_private", "flags": ("bi_opf", "bi_rw")}
        | {"vectors": "bi_io_vec", "count": "bi_vcnt"},
        {"done": ("bi_iter.bi_bvec_done", "bi_iter.bi_offset"), "group": "bi_blkg"},
    )
    read = gather(memory, nodes, columns, faults)
    known = read.readable
    lanes, nodes = lanes[known], nodes[known]
    column = {name: values[known] for name, values in read.columns.items()}
    zeros = np.zeros(len(nodes), np.uint64)
    operations = Operations(prog)
    has_pages = operations.has_pages(operations.operation(column["flags"]))
    owner, page, lost = _pages(
        memory,
        np.where(has_pages, column["vectors"], np.uint64(0)),
        column["index"].astype(np.int64),
        column["count"].astype(np.int64),
        column.get("done", zeros).astype(np.int64),
        column["bytes"].astype(np.int64),
    )
    folio, inode = _folios(memory, page, faults)
    functions = _functions(prog, column["end_io"])
    origin, end_io, private = _origins(
        kernel, nodes, column["end_io"], column["private"], functions, faults
    )
    # Only bi_private leads from a request to its owner.
    _, has_owner = gather_arrays(memory, private[private != 0], 1, word_dtype(prog), Faults())
    # All code outside of the direct map may lack symbols, but none inside of it.
    is_inside = column["end_io"] - np.uint64(direct_map_start(prog)) < np.uint64(memory.end)
    named = np.array([*functions], np.uint64)
    is_bent = is_inside & (column["end_io"] != 0) & ~np.isin(column["end_io"], named)
    return Bios(
        address=nodes,
        request=lanes,
        group=column.get("group", zeros),
        origin=origin,
        origin_end_io=end_io,
        origin_private=private,
        page=page,
        page_bio=owner,
        folio=folio,
        inode=inode,
        functions=functions,
        torn=len(cut) + int((~known).sum()) + lost + int((~has_owner).sum() + is_bent.sum()),
        faults=faults,
    )


def _functions(prog: drgn.Program, addresses: Words) -> dict[int, str]:
    names = {}
    for address in np.unique(addresses).tolist():
        try:
            names[address] = prog.symbol(address).name
        except LookupError:
            continue
    return names


def _origins(
    kernel: Kernel, address: Words, end_io: Words, private: Words, functions: dict[int, str],
    faults: Faults,
) -> tuple[Words, Words, Words]:  # fmt: skip
    """Return the originals of bios, with their ``bi_end_io`` and ``bi_private``.

    Add the names of their functions to ``functions``.
    """
    bio = layout(kernel.prog, "struct bio", {"end_io": "bi_end_io", "private": "bi_private"})
    address, end_io, private = address.copy(), end_io.copy(), private.copy()
    for _ in range(_MAX_LEVELS):
        upper = np.zeros(len(address), np.uint64)
        for name, parents in _PARENTS.items():
            own = [each for each, known in functions.items() if known == name]
            rows = np.flatnonzero(np.isin(end_io, np.array(own, np.uint64)))
            if len(rows):
                with contextlib.suppress(LookupError):
                    upper[rows] = parents(kernel, address[rows], private[rows], faults)
        rows = np.flatnonzero(upper)
        if not len(rows):
            break
        read = gather(kernel.memory, upper[rows], bio, faults)
        rows, known = rows[read.readable], read.readable
        address[rows] = upper[rows]
        end_io[rows], private[rows] = read["end_io"][known], read["private"][known]
        more = np.setdiff1d(end_io[rows], np.array([*functions], np.uint64))
        functions.update(_functions(kernel.prog, more))
        if not len(rows):
            break
    return address, end_io, private


def _cloned_by_dm(kernel: Kernel, address: Words, private: Words, faults: Faults) -> Words:
    """Return the bios sent to mapped devices, of the clones that these passed on."""
    clone = kernel.prog.type("struct dm_target_io")
    columns = layout(kernel.prog, clone, ["io"])
    whole = layout(kernel.prog, "struct dm_io", {"bio": ("orig_bio", "bio")})
    holder = address - np.uint64(drgn.offsetof(clone, "clone"))
    io = gather(kernel.memory, holder, columns, faults)["io"]
    return gather(kernel.memory, io, whole, faults)["bio"]


def _cloned_by_multipath(kernel: Kernel, address: Words, private: Words, faults: Faults) -> Words:
    """Return the bios of request-based mapped devices, of the clones of their requests."""
    clone = kernel.prog.type("struct dm_rq_clone_bio_info")
    holder = address - np.uint64(drgn.offsetof(clone, "clone"))
    columns = layout(kernel.prog, clone, {"bio": "orig"})
    return gather(kernel.memory, holder, columns, faults)["bio"]


def _cloned_by_md(
    type_: str, kernel: Kernel, address: Words, private: Words, faults: Faults
) -> Words:
    """Return the bios sent to arrays, of the clones for their accounting.

    In v7.3, ``bi_private`` of such a clone is 0: the clone is a member in every version.
    """
    columns = layout(kernel.prog, type_, {"bio": "orig_bio"})
    holder = address - np.uint64(drgn.offsetof(kernel.prog.type(type_), "bio_clone"))
    return gather(kernel.memory, holder, columns, faults)["bio"]


def _mirrored(type_: str, kernel: Kernel, address: Words, private: Words, faults: Faults) -> Words:
    """Return the bios sent to mirrors of md, of the clones for their disks."""
    columns = layout(kernel.prog, type_, {"bio": "master_bio"})
    return gather(kernel.memory, private, columns, faults)["bio"]


_PARENTS: dict[str, Callable[[Kernel, Words, Words, Faults], Words]] = {
    "clone_endio": _cloned_by_dm,
    "end_clone_bio": _cloned_by_multipath,
    # Since Linux kernel commit c687297b8845 ("md: also clone new io if io accounting is disabled")
    # (in v6.6), md_io_clone; before, of RAID 0 and 5.
    "md_end_clone_io": partial(_cloned_by_md, "struct md_io_clone"),
    "md_end_io_acct": partial(_cloned_by_md, "struct md_io_acct"),
    "raid1_end_read_request": partial(_mirrored, "struct r1bio"),
    "raid1_end_write_request": partial(_mirrored, "struct r1bio"),
    "raid10_end_read_request": partial(_mirrored, "struct r10bio"),
    "raid10_end_write_request": partial(_mirrored, "struct r10bio"),
    # Other bios were split from it, or end with it.
    "bio_chain_endio": lambda kernel, address, private, faults: private,
}
"""Readers of the original of a bio, by name of ``bi_end_io``."""


def _pages(
    memory: Memory, vectors: Words, index: Numbers, count: Numbers, done: Numbers, size: Numbers
) -> tuple[Lanes, Words, int]:
    """Return row of the bio and ``struct page`` of each page, and the number of damaged bios.

    Faults are not noted: vectors of a clone are read beyond their end.
    """
    prog, faults = memory.prog, Faults()
    # A clone shares the vectors of another bio, and does not know their number. Each has at least
    # one sector.
    most = size // _SECTOR + 1
    wanted = np.clip(np.where(count > index, count - index, most), 0, _MAX_SEGMENTS)
    needed = (size > 0) & (vectors != 0)
    wanted = np.where(needed, wanted, 0)
    wanted = np.where(within(wanted, _MAX_PAGES), wanted, 0)
    row, place = spread(wanted)
    columns = layout(prog, "struct bio_vec", ["bv_page", "bv_len", "bv_offset"])
    step = np.uint64(columns.size)
    at = vectors[row] + (index[row] + place).astype(np.uint64) * step
    read = gather(memory, at, columns, faults)
    length, offset = read["bv_len"].astype(np.int64), read["bv_offset"].astype(np.int64)
    first = place == 0
    length = length - np.where(first, done[row], 0)
    offset = offset + np.where(first, done[row], 0)
    # A segment past the end of the bio, or after an unreadable one, does not count.
    before = np.cumsum(length) - length
    before -= before[np.arange(len(row)) - place]
    real = read.readable & (length > 0) & (before >= 0) & (before < size[row])
    row, length, offset = row[real], length[real], offset[real]
    base, before = read["bv_page"][real], before[real]
    length = np.minimum(length, size[row] - before)
    shift, struct = memory.page_shift, drgn.sizeof(prog.type("struct page"))
    low = offset >> shift
    pages = ((offset + length - 1) >> shift) - low + 1
    is_taken = within(pages, _MAX_PAGES)
    pages, length = np.where(is_taken, pages, 0), np.where(is_taken, length, 0)
    segment, offset_in = spread(pages)
    page = base[segment] + ((low[segment] + offset_in) * struct).astype(np.uint64)
    covered = np.bincount(row, length, minlength=len(vectors))
    lost = int(((covered < size) & needed).sum())
    return row[segment], page, lost


def _folios(memory: Memory, page: Words, faults: Faults) -> tuple[Words, Words]:
    """Return the head and the inode of the folio of each page."""
    prog = memory.prog
    try:
        pages = PageMap(memory)
    except LookupError:
        return page, np.zeros(len(page), np.uint64)
    pfn = ((page - np.uint64(pages.base)) // np.uint64(pages.struct_size)).astype(np.int64)
    folio = pages.head(pfn, faults)
    mapping = gather(memory, folio, layout(prog, "struct page", ["mapping"]), faults)["mapping"]
    is_file = (mapping != 0) & ((mapping & _MAPPING_FLAGS) == 0)
    inode = np.zeros(len(page), np.uint64)
    host = layout(prog, "struct address_space", ["host"])
    # A page without a mapping of its own, such as a slab's, has another pointer there, which may
    # lead into the image of the kernel. Inodes are in slabs, and so in the direct map.
    found = gather(memory, mapping[is_file], host, Faults())["host"]
    inode[is_file] = np.where(pages.valid(pages.pfn(found)), found, np.uint64(0))
    return folio, inode


def group_paths(kernel: Kernel, groups: Words) -> dict[int, str]:
    """Return the path of the cgroup of each ``struct blkcg_gq``; not safe to print."""
    paths = {}
    for address in np.unique(groups[groups != 0]).tolist():
        group = Object(kernel.prog, "struct blkcg_gq *", value=address)
        try:
            path = cgroup_path(group.blkcg.css.cgroup)
        except (*ABSENT, NotRecorded):
            continue
        if path:
            paths[address] = path
    return paths
