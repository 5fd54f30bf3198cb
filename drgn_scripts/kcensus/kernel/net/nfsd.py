# SPDX-License-Identifier: LGPL-2.1-or-later
"""Threads of the kernel's own NFS server, and the calls of its own clients that they serve."""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.engine.gather import gather, gather_arrays
from kcensus.engine.layout import layout, number_dtype
from kcensus.engine.memory import Faults, Guess, Mask, Numbers, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.net.rpc import Calls

_BYTES, _BYTES_OF_IPV4 = 24, 8
_IPV4 = 2
"""AF_INET."""


def serving(
    kernel: Kernel, threads: Words, known: Calls, faults: Faults
) -> tuple[Numbers, Numbers]:
    """Return threads of the NFS server, and the call of this kernel that each one serves, as rows.

    The number of the call is the same on both sides, and it was sent to the address at which the
    thread got it.

    :param threads: ``struct task_struct *`` of threads in ``nfsd()``
    :raises LookupError: the debug info of sunrpc is missing
    """
    memory, prog = kernel.memory, kernel.prog
    # Since Linux kernel commit e32cf5dfbe22 ("kthread: Generalize pf_io_worker so it can point to
    # struct kthread") (in v5.17), a member of its own.
    member = {"kthread": ("worker_private", "set_child_tid")}
    own = gather(memory, threads, layout(prog, "struct task_struct", member), faults)["kthread"]
    request = gather(memory, own, layout(prog, "struct kthread", ["data"]), Guess())["data"]
    members = layout(prog, "struct svc_rqst", {"task": "rq_task", "xid": "rq_xid"})
    read = gather(memory, request, members, Guess())
    is_own = read.readable & (read["task"] == threads)
    faults.add("threads of the NFS server without their request", (~is_own).sum())
    xid = np.where(is_own, read["xid"].astype(np.uint64), np.uint64(0))
    # Few calls have the number of any thread: compare these only.
    some = np.flatnonzero(np.isin(known.xid, xid[xid != 0]) & (known.transport != 0))
    row, call = np.nonzero(xid[:, None] == known.xid[some][None, :])
    call = some[call]
    here = request[row] + _offset(prog, "struct svc_rqst", "rq_daddr")
    there = known.transport[call] + _offset(prog, "struct rpc_xprt", "addr")
    same = _is_same(kernel, here, there)
    return row[same], call[same]


def _offset(prog: drgn.Program, type_: str, member: str) -> np.uint64:
    return np.uint64(drgn.offsetof(prog.type(type_), member))


def _is_same(kernel: Kernel, here: Words, there: Words) -> Mask:
    """Return which ``struct sockaddr_storage`` are equal; in redacted capsules, all are zero.

    They have family, port and address at the start: 8 bytes of IPv4, 24 of IPv6.
    """
    (one, is_there), (other, is_here) = (
        gather_arrays(kernel.memory, at, _BYTES, np.uint8, Guess(), None) for at in (here, there)
    )
    family = np.ascontiguousarray(one[:, :2]).view(number_dtype(kernel.prog, "u2")).reshape(-1)
    same = one == other
    same[family == _IPV4, _BYTES_OF_IPV4:] = True
    matches: Mask = is_there & is_here & same.all(axis=1)
    return matches
