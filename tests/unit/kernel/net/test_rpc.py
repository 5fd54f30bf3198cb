# SPDX-License-Identifier: LGPL-2.1-or-later
"""Remote procedure calls of *synthetic* kernels, and the threads that serve them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.engine.memory import Faults
from kcensus.kernel.clock import clock
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.net.nfsd import serving
from kcensus.kernel.net.rpc import Calls, calls
from tests.unit.fakekernel import FakeKernel
from tests.unit.kernel.waiting.making import words
from tests.unit.readers import set_read

_COMMON = """
struct list_head 16 : 0 struct list_head * next; 8 struct list_head * prev
struct task_struct 64 : 8 void * set_child_tid
struct net 64 : 0 struct list_head list; 16 struct net_generic * gen
struct sunrpc_net 64 : 8 struct list_head all_clients
struct rpc_clnt 128 : 0 struct list_head cl_clients; 16 struct list_head cl_tasks; \
32 struct rpc_xprt * cl_xprt
struct rpc_procinfo 32 : 8 char * p_name
struct rpc_message 32 : 0 struct rpc_procinfo * rpc_proc
struct rpc_rqst 64 : 0 struct rpc_task * rq_task; 8 int rq_ntrans; 12 unsigned int rq_xid
struct rpc_xprt 256 : 0 unsigned long state; 16 char * servername; 24 struct net * xprt_net; \
32 char * [6] address_strings; 128 char [128] addr
struct kthread 64 : 16 void * data
struct svc_rqst 256 : 0 struct task_struct * rq_task; 8 unsigned int rq_xid; 64 char [128] rq_daddr
"""
_CALL = """16 struct rpc_rqst * tk_rqstp; 24 struct rpc_message tk_msg; \
64 struct rpc_clnt * tk_client; 72 struct list_head tk_task; 88 void * tk_calldata"""
_ERAS = {
    "4.9": (
        f"""
struct net_generic 64 : 24 void * ptr
union ktime 8 : 0 long long tv64
struct rpc_task 128 : {_CALL}; 96 union ktime tk_start
""",
        24,
    ),
    "5.10": (
        f"""
struct net_generic 64 : 0 void * ptr
struct rpc_task 128 : {_CALL}; 96 long long tk_start; 104 struct rpc_xprt * tk_xprt
""",
        8,
    ),
}
"""Types, and the offset of pointer number 1."""


class Scene:
    """A client with two calls: one was sent twice, one names another client."""

    def __init__(self, era: str) -> None:
        types, inside = _ERAS[era]
        self.k = k = FakeKernel("6.10", _COMMON + types)
        self.kernel = Kernel(k.prog)
        ages = SimpleNamespace(since=lambda stamps: 90 - stamps.astype(np.int64))
        set_read(self.kernel, clock, ages)
        own, generic = k.alloc("struct sunrpc_net"), k.alloc("struct net_generic")
        net = k.alloc("struct net", gen=generic)
        k.write_words(int(generic.address_) + inside, int(own.address_))
        k.constant("sunrpc_net_id", 1)
        self.ring(k.variable("net_namespace_list", "struct list_head"), net.list)
        self.transports = [
            k.alloc("struct rpc_xprt", xprt_net=net, state=2, servername=k.string(b"filer"))
            for _ in range(2)
        ]
        for transport, host in zip(self.transports, (b"192.0.2.7", b"192.0.2.8"), strict=True):
            k.set(transport.address_strings[0], k.string(host))
            k.set(transport.address_strings[1], k.string(b"2049"))
        self.client = k.alloc("struct rpc_clnt", cl_xprt=self.transports[0])
        self.ring(own.all_clients, self.client.cl_clients)
        procedure = k.alloc("struct rpc_procinfo", p_name=k.string(b"READ"))
        self.tasks = [k.alloc("struct rpc_task", tk_client=self.client) for _ in range(2)]
        self.ring(self.client.cl_tasks, *(task.tk_task for task in self.tasks))
        first = self.tasks[0]
        self.request = k.alloc("struct rpc_rqst", rq_task=first, rq_ntrans=2, rq_xid=77)
        k.set(first.tk_rqstp, self.request)
        k.set(first.tk_msg.rpc_proc, procedure)
        k.write_words(int(first.address_) + 96, 30)
        if era == "5.10":
            k.set(first.tk_xprt, self.transports[1])
        k.set(self.tasks[1].tk_client, 0xFFFF_8881_0000_0000)

    def ring(self, *links: object) -> None:
        places = [int(link.address_) for link in links]  # type: ignore[attr-defined]  # of drgn
        for at, place in enumerate(places):
            self.k.write_words(place, places[(at + 1) % len(places)], places[at - 1])


@pytest.mark.parametrize("era", _ERAS)
def test_calls(era: str) -> None:
    scene = Scene(era)
    found = calls(scene.kernel)
    own = scene.transports[era == "5.10"]
    assert found.address.tolist() == [int(scene.tasks[0].address_)]
    assert found.transport.tolist() == [int(own.address_)]
    assert (found.operation, found.age_ns.tolist(), found.sent.tolist()) == (["READ"], [60], [2])
    assert found.clients == {int(scene.client.address_): int(scene.transports[0].address_)}
    transport = found.transports[int(own.address_)]
    assert transport.server == ("192.0.2.8:2049" if era == "5.10" else "192.0.2.7:2049")
    assert (transport.name, transport.connection) == ("filer", "connected")
    # A call that names another client is damaged.
    assert found.torn == 1


def test_a_transport_of_no_namespace_is_none() -> None:
    scene = Scene("5.10")
    scene.k.set(scene.transports[1].xprt_net, 0xFFFF_8881_0000_0000)
    found = calls(scene.kernel)
    assert found.transport.tolist() == [0]
    assert found.servers == {"192.0.2.7:2049": [int(scene.transports[0].address_)]}


def _thread(scene: Scene, xid: int, host: int, *, is_own: bool = True) -> int:
    """Return a thread of the server that serves a call, sent to an address of IPv4."""
    k = scene.k
    task = k.alloc("struct task_struct")
    request = k.alloc("struct svc_rqst", rq_task=task if is_own else 0, rq_xid=xid)
    k.write_words(int(request.rq_daddr.address_), 2 | host << 32)
    k.set(task.set_child_tid, k.alloc("struct kthread", data=request))
    return int(task.address_)


def test_threads_that_serve_calls_of_the_same_kernel() -> None:
    scene = Scene("5.10")
    known: Calls = calls(scene.kernel)
    scene.k.write_words(int(scene.transports[1].addr.address_), 2 | 7 << 32, 0x5A5A)
    threads = [
        _thread(scene, 77, 7),
        _thread(scene, 77, 8),
        _thread(scene, 78, 7),
        _thread(scene, 77, 7, is_own=False),
    ]
    faults = Faults()
    row, call = serving(scene.kernel, words(*threads), known, faults)
    assert (row.tolist(), call.tolist()) == ([0], [0])
    assert faults.total() == 1
