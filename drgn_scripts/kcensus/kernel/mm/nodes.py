# SPDX-License-Identifier: LGPL-2.1-or-later
"""NUMA nodes, whose number sizes many arrays."""

from __future__ import annotations

import drgn
from drgn.helpers.linux.nodemask import for_each_node, nr_node_ids

_MAX_NODES = 1024
"""``MAX_NUMNODES`` of the largest configuration (``CONFIG_NODES_SHIFT`` 10)."""


def node_count(prog: drgn.Program) -> int:
    """Return ``nr_node_ids``: the length of arrays with an element per possible node.

    :raises LookupError: it does not fit the possible nodes, so that one of them is damaged
    """
    count, possible = int(nr_node_ids(prog)), max(for_each_node(prog), default=-1) + 1
    if count != possible or not 0 < count <= _MAX_NODES:
        raise LookupError(f"nr_node_ids is {count}, but the last possible node is {possible - 1}")
    return count
