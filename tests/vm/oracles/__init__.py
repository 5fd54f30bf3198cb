# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slow, obvious walks with drgn objects, to hold the analyses against.

Nothing here shares code with the package.
"""

from __future__ import annotations

from collections.abc import Iterator

import drgn
from drgn import Object, Program, cast
from drgn.helpers.linux.cgroup import css_for_each_descendant_pre
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.xarray import xa_for_each


def entries(head: Object, type_: str, link: str) -> Iterator[Object]:
    found: Iterator[Object] = list_for_each_entry(type_, head.address_of_(), link)
    return found


def all_memcgs(prog: Program) -> Iterator[Object]:
    """Yield the ``struct mem_cgroup *`` of all memory cgroups, dying ones included."""
    for css in css_for_each_descendant_pre(prog["root_mem_cgroup"].css.address_of_()):
        yield drgn.container_of(css, prog.type("struct mem_cgroup"), "css")


def hardware_queues(queue: Object) -> Iterator[Object]:
    if hasattr(queue, "hctx_table"):
        for _, entry in xa_for_each(queue.hctx_table.address_of_()):
            yield cast("struct blk_mq_hw_ctx *", entry)
    else:
        yield from queue.queue_hw_ctx[: int(queue.nr_hw_queues)]
