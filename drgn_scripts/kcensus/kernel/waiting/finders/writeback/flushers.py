# SPDX-License-Identifier: LGPL-2.1-or-later
"""Flushers that tasks wait for, and the limit of dirty pages that keeps tasks from writing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Guess, Mask, Numbers, Words
from kcensus.human import human_bytes
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.limits.throttles import throttles
from kcensus.kernel.block.limits.writeback import Flushers, dirty_pages, flushers
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.mm.vmstat import node_page_state
from kcensus.kernel.vfs.files import file_paths
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.finders.io.devices import nodes_of
from kcensus.kernel.waiting.finders.limits.io_max import LIMIT
from kcensus.kernel.waiting.findings.dirty_limits import dirty_limit
from kcensus.kernel.waiting.graph import HELD, SERVED, TASK, EdgeKind, Graph, NodeKind
from kcensus.kernel.workqueues import workqueues
from kcensus.results import Finding, Gap
from kcensus.sources.capsule import NotRecorded

_BDI, _FLUSHER = "struct backing_dev_info", "struct bdi_writeback"
_WORK = "struct wb_writeback_work"
_CONTROL, _DOMAIN = "struct dirty_throttle_control", "struct wb_domain"
_QUEUES = ("struct wait_queue_head", "struct __wait_queue_head")
WRITEBACK = NodeKind("writeback", (_BDI,), is_io=True, tells_device=True)
FLUSHER = NodeKind(
    "flusher",
    (_FLUSHER,),
    tells_device=True,
    advice="No worker runs its work item: see what occupies the workers of the workqueue "
    "`writeback`, such as with `kcensus kcopyd TARGET`",
)
DIRTY = NodeKind("limit of dirty pages", (_DOMAIN,), is_any=True, is_io=True)
WRITTEN = EdgeKind("written back by", "must write back pages of")
FLUSHED = EdgeKind("run by", "runs", is_passage=True)
_SYNCS = frozenset({"sync_inodes_sb", "writeback_inodes_sb_nr", "__writeback_inodes_sb_nr"})
"""Functions that wait for the completion of their work item, up to v4.1."""
_LARGE = 8
"""A flusher with at least this part (1/8) of all dirty pages is one to wait for."""
_SYNC_BIT, _OLD_SYNC_BIT = 1, 7
"""__I_SYNC, which is not in debug info. Since the series that ends with Linux kernel commit
2b111edbe0a9 ("inode: make i_state a u32") (in v6.12), it is another bit of a shorter state."""
_MAX_MOUNTS = 3
"""Most file systems in the name of a flusher."""


class Writeback(Finder):
    """Finds the flushers that tasks wait for, and the workers that run them."""

    about = "writeback"
    kinds = (WRITEBACK, FLUSHER, DIRTY)

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.torn = 0
        self.limit = 0
        """Most dirty pages of the system, if it is close to that."""
        self.of_memcg: dict[int, set[int]] = {}
        """Flushers of the writers at a memory cgroup's own limit of dirty pages, by its domain."""
        self.memcgs: dict[int, str] = {}
        """Path of each memory cgroup, by its domain; not safe to print."""

    def note(self) -> None:
        """Note the devices and limits that tasks wait for.

        :raises LookupError: the debug info lacks flushers
        """
        syncs = np.concatenate(
            [self._lanes(frozenset({"wb_wait_for_completion"}), type_) for type_ in _QUEUES]
        )
        writers = self._lanes(frozenset({"balance_dirty_pages"}), None)
        old = self._lanes(_SYNCS, "struct completion")
        if not len(syncs) and not len(writers) and not len(old):
            return
        try:
            known = flushers(self.kernel)
        except NotRecorded:
            return  # a capsule of a version that did not read them
        self.faults.update(known.faults)
        self.torn += known.torn
        bdi = self.object[syncs] - (self._offset(_BDI, "wb_waitq") if len(syncs) else np.uint64(0))
        for index in np.flatnonzero(np.isin(bdi, known.bdi)).tolist():
            self._note(int(syncs[index]), int(bdi[index]), _BDI, "backing_dev_info.wb_waitq")
        if len(old):
            self._old_syncs(old, known)
        if len(writers):
            self._writers(writers, known)

    def _old_syncs(self, lanes: Numbers, known: Flushers) -> None:
        """Note the devices of tasks that wait for their own work item to be written.

        Until v4.1 (commit not verified), a ``struct wb_writeback_work`` on their stack names a
        completion, next to it, and the file system.
        """
        blocks, done = super_blocks(self.kernel), self._offset(_WORK, "done")
        for lane, word, place in self._picked(lanes):
            own = word == self.object[lane]
            block = self._member(_WORK, "sb", place[own] - done, is_guess=True)
            row = blocks.rows(block)
            bdi = np.append(self._of_block, np.uint64(0))[row]
            sound = (row >= 0) & np.isin(bdi, known.bdi)
            for each, device in zip(lane[own][sound].tolist(), bdi[sound].tolist(), strict=True):
                self._note(each, device, _BDI, "wb_writeback_work.sb")

    def _writers(self, lanes: Numbers, known: Flushers) -> None:
        """Note the limits of dirty pages that tasks exceed, or their flushers.

        balance_dirty_pages() has a ``struct dirty_throttle_control`` on its stack, which points to
        the flusher and to a member of it.
        """
        domain = int(self.kernel.prog["global_wb_domain"].address_of_())
        limited: dict[int, int] = {}
        with contextlib.suppress(NotRecorded):  # a capsule of a version that did not read them
            limited = self._limited_by_memcg(lanes, known)
        share = self._offset(_FLUSHER, "completions")
        inside = self._offset(_CONTROL, "wb")
        own = dict[int, int]()
        for lane, word, place in self._picked(
            lanes, lambda words, _: np.isin(words, np.sort(known.address))
        ):
            names = {"share": "wb_completions"}
            read = self._read(_CONTROL, place - inside, names, is_guess=True)
            sound = read.readable & (read["share"] == word + share)
            own |= dict(zip(lane[sound].tolist(), word[sound].tolist(), strict=True))
        is_over = self._is_over(domain)
        large = set(known.address[self._large(known)].tolist())
        for writer, flusher in own.items():
            if writer in limited:
                self._note(writer, limited[writer], _DOMAIN, "dirty_throttle_control.dom")
                self.of_memcg.setdefault(limited[writer], set()).add(flusher)
            elif is_over and flusher not in large:
                # The pages of other devices keep the task from writing to its own.
                self._note(writer, domain, _DOMAIN, "dirty_throttle_control")
            else:
                self._note(writer, flusher, _FLUSHER, "dirty_throttle_control.wb")

    def _limited_by_memcg(self, lanes: Numbers, known: Flushers) -> dict[int, int]:
        """Return the ``struct wb_domain`` of each writer that its memory cgroup's limit throttles.

        Since Linux kernel commit c2aa723a6093 ("writeback: implement memcg writeback domain based
        throttling") (in v4.2), the stack has another ``struct dirty_throttle_control`` for it.
        """
        prog = self.kernel.prog
        if not prog.type(_CONTROL).has_member("gdtc") or "memory_cgrp_subsys" not in prog:
            return {}
        inside, limited = self._offset(_CONTROL, "wb"), dict[int, int]()
        share = self._offset(_FLUSHER, "memcg_completions")
        names = {"share": "wb_completions", "domain": "dom", "other": "gdtc", "ratio": "pos_ratio"}
        names |= {each: each for each in ("dirty", "thresh", "bg_thresh")}
        for lane, word, place in self._picked(
            lanes, lambda words, _: np.isin(words, np.sort(known.address))
        ):
            read = self._read(_CONTROL, place - inside, names, is_guess=True)
            of_all = self._read(
                _CONTROL, read["other"], {"wb": "wb", "ratio": "pos_ratio"}, is_guess=True
            )
            groups = memcgs(self.kernel)
            memcg = read["domain"] - self._offset("struct mem_cgroup", "cgwb_domain")
            row = groups.rows(memcg)
            # Both limits throttle above their middle; the smaller ratio counts, and that of the
            # system if they are equal.
            sound = read.readable & (read["share"] == word + share) & (row >= 0)
            sound &= of_all.readable & (of_all["wb"] == word) & (read["ratio"] < of_all["ratio"])
            sound &= 2 * read["dirty"] > read["thresh"] + read["bg_thresh"]
            for index in np.flatnonzero(sound).tolist():
                domain = int(read["domain"][index])
                limited[int(lane[index])] = domain
                dirty, limit = (
                    human_bytes(int(read[each][index]) * self.kernel.memory.page_size)
                    for each in ("dirty", "thresh")
                )
                self.memcgs[domain] = path = groups.path[int(row[index])]
                self.names[DIRTY, domain] = (
                    f"of memory cgroup {path} ({dirty} dirty or in "
                    f"writeback, limit {limit}: vm.dirty_ratio of what memory.max leaves to its "
                    "page cache)"
                )
        return limited

    def _is_over(self, domain: int) -> bool:
        """Return whether the dirty pages of the system keep tasks from writing; name the limit."""
        prog = self.kernel.prog
        limit = int(self._member(_DOMAIN, "dirty_limit", np.array([domain], np.uint64))[0])
        pages = node_page_state(prog, "NR_FILE_DIRTY"), node_page_state(prog, "NR_WRITEBACK")
        if None in pages:
            return False
        dirty, written = (int(each or 0) for each in pages)
        size = self.kernel.memory.page_size
        amounts = f"{human_bytes(dirty * size)} dirty, {human_bytes(written * size)} in writeback"
        self.names[DIRTY, domain] = f"({amounts}, limit {human_bytes(limit * size)})"
        # Tasks may write freely below the middle of the limit and the one for the background.
        is_over = 2 * (dirty + written) > limit > 0
        self.limit = limit if is_over else 0
        return is_over

    def find(self) -> None:
        """Add edges to flushers, from these to their workers, and to disks without a worker.

        :raises LookupError: the debug info lacks workqueues
        """
        bdis = np.unique(self.object[self._of_type(_BDI)])
        domains = np.unique(self.object[self._of_type(_DOMAIN)])
        single = np.unique(self.object[self._of_type(_FLUSHER)])
        if not len(bdis) and not len(domains) and not len(single):
            return
        known = flushers(self.kernel)
        items = workqueues(self.kernel).items
        queued = np.isin(known.work, items["work"].to_numpy(np.uint64))
        rows = np.flatnonzero(np.isin(known.bdi, bdis) & queued)
        source = WRITEBACK, known.bdi[rows]
        proof = "bdi_writeback.dwork"
        self.build.edges(SERVED, source, (FLUSHER, known.address[rows]), proof,
                         strength=Strength.DERIVED)  # fmt: skip
        idle = np.setdiff1d(bdis, known.bdi[rows])
        places = np.flatnonzero(np.isin(known.bdi, idle))
        places = places[np.unique(known.bdi[places], return_index=True)[1]]
        self._to_disks(WRITEBACK, known.bdi[places], known.disk[places])
        for bdi in bdis.tolist():
            row = int(np.flatnonzero(known.bdi == np.uint64(bdi))[0])
            self.names[WRITEBACK, bdi] = f"of {self._device(known, row)}"
        rows = np.union1d(rows, np.flatnonzero(np.isin(known.address, single)))
        for domain, own in self.of_memcg.items():
            mine = np.array(sorted(own), np.uint64)
            source = DIRTY, np.full(len(mine), domain, np.uint64)
            evidence, strength = "dirty_throttle_control.wb", Strength.DERIVED
            self.build.edges(WRITTEN, source, (FLUSHER, mine), evidence, strength=strength)
            rows = np.union1d(rows, np.flatnonzero(np.isin(known.address, mine)))
        domains = np.setdiff1d(domains, np.array([*self.of_memcg], np.uint64))
        if len(domains):
            large = self._large(known)
            source = DIRTY, np.repeat(domains, len(large))
            target = FLUSHER, np.tile(known.address[large], len(domains))
            evidence = "bdi_writeback.stat"
            self.build.edges(WRITTEN, source, target, evidence, strength=Strength.DERIVED)
            rows = np.union1d(rows, large)
        self._add(known, rows.astype(np.int64), queued)

    def _large(self, known: Flushers) -> Numbers:
        """Return the flushers with a large part of all dirty pages."""
        dirty, written = dirty_pages(self.kernel, known.address, self.faults)
        pages = dirty + written
        return np.flatnonzero((pages > 0) & (_LARGE * pages >= pages.sum()))

    def _add(self, known: Flushers, rows: Numbers, queued: Mask) -> None:
        """Add edges from flushers to the workers that run their work items, or to their disks."""
        items = workqueues(self.kernel).items
        running = items[items["state"] == "in-flight"]
        pids = dict(zip(running["work"].tolist(), running["pid"].tolist(), strict=True))
        tasks = dict(zip(self.known.pid.tolist(), self.known.address.tolist(), strict=True))
        worker = np.array(
            [tasks.get(pids.get(work, 0), 0) for work in known.work[rows].tolist()], np.uint64
        )
        has_one = worker != 0
        source, target = known.address[rows[has_one]], worker[has_one]
        evidence = "worker.current_work"
        self.build.edges(FLUSHED, (FLUSHER, source), (TASK, target), evidence)
        # Without a work item, pages are on their way; a queued one waits for a worker.
        rest = rows[~has_one & ~queued[rows]]
        rest = np.setdiff1d(rest, self._limited(known, rest))
        self._to_disks(FLUSHER, known.address[rest], known.disk[rest])
        files = self._written(known.bdi[rows[has_one]], target)
        dirty, written = dirty_pages(self.kernel, known.address[rows], self.faults)
        size = self.kernel.memory.page_size
        for index, row in enumerate(rows.tolist()):
            amount = human_bytes(int(dirty[index] + written[index]) * size)
            name = f"of {self._device(known, row)}: {amount} dirty or in writeback"
            if self.limit:
                name += f" (all devices: at most {human_bytes(self.limit * size)})"
            if file := files.get(int(worker[index])):
                name += f", now {file}"
            self.names[FLUSHER, int(known.address[row])] = name
            self.types[FLUSHER, int(known.address[row])] = _FLUSHER

    def _limited(self, known: Flushers, rows: Numbers) -> Numbers:
        """Add edges from flushers to the limits that hold their bios; return these flushers."""
        prog = self.kernel.prog
        if (
            not len(rows)
            or not prog.type("struct request_queue").has_member("td")
            or not prog.type(_FLUSHER).has_member("blkcg_css")
        ):
            return rows[:0]
        limits = throttles(self.kernel)
        bios = limits.bios
        limit = limits.chain[bios.request]
        # A flusher and its bios are of one cgroup.
        own = self._member(_FLUSHER, "blkcg_css", known.address[rows])
        group = self._member("struct blkcg_gq", "blkcg", bios.group)
        group = group + self._offset("struct blkcg", "css")
        found = []
        for index, row in enumerate(rows.tolist()):
            is_one = (group == own[index]) & (limits.disk[limit] == known.disk[row])
            targets = limits.address[np.unique(limit[is_one & (own[index] != 0)])]
            if len(targets):
                found.append(row)
                source = FLUSHER, np.full(len(targets), known.address[row])
                proof, strength = "bio.bi_blkg", Strength.DERIVED
                self.build.edges(HELD, source, (LIMIT, targets), proof, strength=strength)
        return np.array(found, np.int64)

    def _to_disks(self, kind: NodeKind, nodes: Words, disks: Numbers) -> None:
        nodes, disks = nodes[disks >= 0], disks[disks >= 0]
        if len(nodes):
            target = nodes_of(self, disks)
            proof, strength = "backing_dev_info of the disk", Strength.DERIVED
            self.build.edges(SERVED, (kind, nodes), target, proof, strength=strength)

    def _device(self, known: Flushers, row: int) -> str:
        """Return the name of a flusher's device, and the file systems on it; not safe to print."""
        disk = int(known.disk[row])
        name = block_devices(self.kernel).disks[disk].name if disk >= 0 else known.device[row]
        blocks = super_blocks(self.kernel)
        mounts = [
            f"{blocks.type[each]} on {blocks.mount[each]}"
            for each in np.flatnonzero(self._of_block == known.bdi[row]).tolist()
            if blocks.mount[each]
        ]
        return f"{name} ({', '.join(mounts[:_MAX_MOUNTS])})" if mounts else name

    @cached_property
    def _of_block(self) -> Words:
        """``struct backing_dev_info *`` of each super block."""
        return self._member("struct super_block", "s_bdi", super_blocks(self.kernel).address)

    def _written(self, bdis: Words, workers: Words) -> dict[int, str]:
        """Return the file that each worker writes, by task; not safe to print.

        A flusher marks the inode with I_SYNC, and has its address on the stack.
        """
        blocks = super_blocks(self.kernel)
        lane_of = {task: lane for lane, task in enumerate(self.waits.task.tolist())}
        bdi_of = {
            lane_of[task]: bdi
            for task, bdi in zip(workers.tolist(), bdis.tolist(), strict=True)
            if task in lane_of
        }
        # Since v6.19 or later (commit not verified), the state is a structure.
        inode = layout(
            self.kernel.prog,
            "struct inode",
            {"block": "i_sb", "host": "i_data.host", "state": ("i_state.__state", "i_state")},
        )
        found: dict[int, set[int]] = {}
        lanes = np.array(sorted(bdi_of), np.int64)
        for lane, word, _ in self._picked(lanes):
            read = gather(self.kernel.memory, word, inode, Guess())
            row = blocks.rows(read["block"])
            bdi = np.array([bdi_of[each] for each in lane.tolist()], np.uint64)
            bit = _SYNC_BIT if inode.fields["state"].dtype.itemsize == 4 else _OLD_SYNC_BIT
            sound = read.readable & (read["host"] == word) & (row >= 0)
            sound &= np.append(self._of_block, np.uint64(0))[row] == bdi
            sound &= (read["state"].astype(np.int64) >> bit) & 1 == 1
            for each, address in zip(lane[sound].tolist(), word[sound].tolist(), strict=True):
                found.setdefault(each, set()).add(address)
        single = {lane: inodes.pop() for lane, inodes in found.items() if len(inodes) == 1}
        texts = file_paths(self.kernel, np.array([*single.values()], np.uint64), Faults())
        return {
            int(self.waits.task[lane]): texts[inode]
            for lane, inode in single.items()
            if inode in texts
        }

    def hint(self, kind: NodeKind, address: int) -> str:
        """Return a sentence about a flusher, or a limit of dirty pages."""
        name = self.names.get((kind, address), "")
        if kind is DIRTY:
            return f"tasks may not write more at the {kind.value} {name}" if name else ""
        return f"{kind.value} {name}" if kind is FLUSHER and name else ""

    def passage(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a memory cgroup's own limit of dirty pages."""
        if kind is not DIRTY or address not in self.memcgs:
            return None
        return dirty_limit(self.memcgs[address], self.names[kind, address], stall)

    def gaps(self, graph: Graph) -> Iterator[Gap]:
        """Yield the damaged lists of flushers."""
        yield Gap(
            "writeback",
            "torn lists of flushers, or flushers that contradict them",
            self.torn,
            "tasks that wait for writeback may have no device",
        )


FINDER = Writeback
