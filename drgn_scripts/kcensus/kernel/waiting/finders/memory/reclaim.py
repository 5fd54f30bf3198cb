# SPDX-License-Identifier: LGPL-2.1-or-later
"""Free memory of the machine: tasks that reclaim it, kswapd, and victims of the OOM killer."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from kcensus.engine.memory import Mask, Words
from kcensus.engine.slub.percpu import node_ids
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import MISSING
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.victims import victims
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.finders.memory.cgroups import FREED, OF_MEMCG, RECLAIMS
from kcensus.kernel.waiting.graph import SERVED, TASK, NodeKind

FREE_MEMORY = NodeKind(
    "free memory",
    ("struct pglist_data",),
    is_any=True,
    advice="Free memory: `kcensus slab TARGET` shows its users by kind; end the largest process, "
    "or unmount or clear a tmpfs that is not needed",
)
OOM_VICTIMS = NodeKind("victims of the OOM killer", shows_sleepers=True)
"""The queue of a suspend of the machine, which waits until all victims have ended."""
_NODE = "struct pglist_data"
_ALLOCATES = frozenset({"try_to_free_pages", "do_try_to_free_pages", "__alloc_pages_slowpath"})
_OOM = frozenset({"out_of_memory", "oom_kill_process", "__alloc_pages_may_oom"})
"""Functions that sleep for a tick, again and again, while a victim of the OOM killer ends."""
_OOM_OF_MEMCG = frozenset({"mem_cgroup_out_of_memory"})
"""Until Linux kernel commit 9bfe5ded054b ("mm, oom: remove sleep from under oom_lock") (in v4.19),
the OOM killer of a memory cgroup slept in them, too."""
_SUSPENDS = frozenset({"oom_killer_disable"})
_IDLE = frozenset({"kswapd", "kswapd_try_to_sleep"})
"""Functions in which kswapd sleeps without work."""
_NODES = {"throttle_direct_reclaim": "pfmemalloc_wait", "reclaim_throttle": "reclaim_wait"}


class FreeMemory(Finder):
    """Finds the NUMA nodes whose free memory tasks wait for, and what kswapd waits for."""

    about = "free memory"
    kinds = (FREE_MEMORY, OOM_VICTIMS)
    sleeps = {WaitKind.MEMORY: " ".join(sorted(RECLAIMS | _SUSPENDS | {"throttle_direct_reclaim"}))}

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.noted: dict[int, bool] = {}
        """Nodes that tasks wait for, and whether any of these tasks waits for the OOM killer."""
        self.queue = 0
        """``oom_victims_wait``, if a task waits there until all victims have ended."""

    def note(self) -> None:
        """Note the node of each task that waits for reclaim by others.

        :raises LookupError: the debug info lacks a type
        """
        self._suspends()
        outside = ~self._mask(OF_MEMCG | _OOM_OF_MEMCG)
        functions = self.waits.function
        in_reclaim = np.array([name in RECLAIMS or name in _NODES for name in functions], np.bool_)
        in_oom = np.array([name in _OOM for name in functions], np.bool_)
        lanes = np.flatnonzero((in_reclaim | in_oom) & outside & self._mask(_ALLOCATES | _OOM))
        if not len(lanes):
            return
        nodes, numbers = self._nodes()
        size = np.uint64(self.kernel.prog.type(_NODE).size)
        row = np.full(len(lanes), -1)
        for index, node in enumerate(nodes.tolist()):
            row[(self.object[lanes] - np.uint64(node)) < size] = index
        queued = row >= 0
        # A timer ends the other waits; there may be memory of one node only.
        row = np.where(queued | (len(nodes) != 1), row, 0)
        for lane, index, is_queued in zip(
            lanes.tolist(), row.tolist(), queued.tolist(), strict=True
        ):
            if index < 0:
                continue
            name, node = functions[lane], int(nodes[index])
            queue = f"pglist_data.{_NODES.get(name, 'wait queue')}"
            self._note(lane, node, _NODE, queue if is_queued else f"frame {name}")
            self.noted[node] = self.noted.get(node, False) or bool(in_oom[lane])
            self.names[FREE_MEMORY, node] = (
                "of the machine" if len(nodes) == 1 else f"of NUMA node {numbers[index]}"
            )

    def _suspends(self) -> None:
        """Note the queue of a suspend that has disabled the OOM killer."""
        lanes = [lane for lane, name in enumerate(self.waits.function) if name in _SUSPENDS]
        if not lanes:
            return
        queue = self.kernel.prog["oom_victims_wait"]
        for lane in lanes:
            self.queue = int(queue.address_of_())
            self._note(lane, self.queue, queue.type_.type_name(), "frame oom_killer_disable")
            self.draft.kind[lane] = OOM_VICTIMS
            self.names[OOM_VICTIMS, self.queue] = "(oom_victims_wait)"

    def _mask(self, functions: frozenset[str]) -> Mask:
        mask = np.zeros(len(self.waits.function), np.bool_)
        mask[self._having(functions)] = True
        return mask

    def _nodes(self) -> tuple[Words, list[int]]:
        """Return ``struct pglist_data`` of the nodes with a matching number, and the numbers."""
        prog, found = self.kernel.prog, dict[int, int]()
        for number in range(node_ids(prog)):
            with suppress(*MISSING):
                # Without CONFIG_NUMA, there is only one.
                node = (
                    prog["node_data"][number] if "node_data" in prog else prog["contig_page_data"]
                )
                found[int(node) if "node_data" in prog else int(node.address_of_())] = number
        every = np.array([*found], np.uint64)
        read = self._read(_NODE, every, ["node_id"])
        sound = read.readable & (read["node_id"] == [*found.values()])
        return every[sound], read["node_id"][sound].tolist()

    def find(self) -> None:
        """Add edges to kswapd while it waits itself, and to victims in state D."""
        if self.queue:
            self._to_victims(OOM_VICTIMS, self.queue)
        if not self.noted:
            return
        nodes = np.array([*self.noted], np.uint64)
        thread = self._member(_NODE, "kswapd", nodes)
        busy = [node for node, each in enumerate(thread.tolist()) if self._is_at_work(each)]
        self.build.edges(
            SERVED,
            (FREE_MEMORY, nodes[busy]),
            (TASK, thread[busy]),
            "pglist_data.kswapd",
            strength=Strength.DERIVED,
            place=nodes[busy] + self._offset(_NODE, "kswapd"),
        )
        for node in (each for each, is_oom in self.noted.items() if is_oom):
            self._to_victims(FREE_MEMORY, node)

    def _to_victims(self, kind: NodeKind, address: int) -> None:
        dying = self.known.address[victims(self.kernel, self.faults)]
        source = kind, np.full(len(dying), address, np.uint64)
        proof, strength = "signal.oom_mm", Strength.DERIVED
        self.build.edges(FREED, source, (TASK, dying), proof, strength=strength)

    def _is_at_work(self, thread: int) -> bool:
        """Return whether kswapd sleeps, but not for want of work."""
        lane = {task: row for row, task in enumerate(self.waits.task.tolist())}.get(thread, -1)
        return lane >= 0 and self.waits.function[lane] not in _IDLE


FINDER = FreeMemory
