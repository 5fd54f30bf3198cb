# SPDX-License-Identifier: LGPL-2.1-or-later
"""NUMA nodes, whose number sizes many arrays."""

from __future__ import annotations

import drgn
from drgn.helpers.linux.nodemask import nr_node_ids

_MAX_NODES = 1024
"""``MAX_NUMNODES`` of the largest configuration (``CONFIG_NODES_SHIFT`` 10)."""


def node_count(prog: drgn.Program) -> int:
    """Return ``nr_node_ids``: the length of arrays with an element per possible node.

    :raises LookupError: it does not fit the possible nodes, so that one of them is damaged
    """
    # drgn's for_each_node() itself goes no further than nr_node_ids.
    words = prog["node_states"][prog["N_POSSIBLE"]].bits
    possible = sum(int(word) << 64 * index for index, word in enumerate(words)).bit_length()
    count = int(nr_node_ids(prog))
    if count != possible or not 0 < count <= _MAX_NODES:
        raise LookupError(f"nr_node_ids is {count}, but the last possible node is {possible - 1}")
    return count
