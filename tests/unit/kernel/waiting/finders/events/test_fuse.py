# SPDX-License-Identifier: LGPL-2.1-or-later
"""FUSE requests in words of *synthetic* kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.kernel.vfs.files import OpenFiles, open_files
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finders.events.fuse import FUSE, FuseRequests
from kcensus.kernel.waiting.graph import SERVED, TASK, THREAD
from tests.unit.kernel.waiting.making import Sleepers, edges, words

_COMMON = """
struct file 32 : 8 void * f_op
struct fuse_conn 64 : 8 unsigned int dev
struct fuse_chan 64 : 8 struct fuse_conn * conn
struct fuse_dev 16 : 0 struct fuse_conn * fc
"""
_FUSES = {
    "5.9": "struct fuse_req 64",
    "5.10": """
struct fuse_req 64 : 8 struct fuse_mount * fm
struct fuse_mount 16 : 8 struct fuse_conn * fc
""",
    "7.3": """
struct fuse_dev 16 : 0 struct fuse_chan * chan
struct fuse_req 64 : 8 struct fuse_chan * chan
""",
}


@pytest.mark.parametrize("mount", ["/home", ""])
@pytest.mark.parametrize("connections", [1, 2])
@pytest.mark.parametrize("era", _FUSES)
def test_fuse_requests(era: str, connections: int, mount: str) -> None:
    scene = Sleepers(_COMMON + _FUSES[era], "request_wait_answer", "server", "server")
    k, tables = scene.k, [0xFFFF_8881_0000_0000, 0xFFFF_8881_0000_1000]
    operations = k.variable("fuse_dev_operations", "char [8]")
    request = k.alloc("struct fuse_req")
    connection = [int(k.alloc("struct fuse_conn").address_) for _ in range(connections)]
    device = "chan" if era == "7.3" else "fc"
    devices = [k.fill(k.alloc("struct fuse_dev"), **{device: each}) for each in connection]
    files = [k.alloc("struct file", f_op=operations) for _ in connection]
    if era == "5.10":
        k.set(request.fm, k.alloc("struct fuse_mount", fc=connection[0]))
    elif era == "7.3":
        k.set(request.chan, connection[0])
        k.write_words(connection[0] + 8, int(k.alloc("struct fuse_conn").address_))
    scene.wait(0, request.address_, "struct fuse_req")
    # The file of another file system has the same private data.
    other = k.alloc("struct file")
    private = [int(each.address_) for each in [*devices, devices[0]]]
    count = len(private)
    scene.remember(
        open_files,
        OpenFiles(
            files=words(*tables[:connections], 0xFFFF_8881_0000_2000),
            descriptor=3 + np.arange(count),
            address=words(*[int(each.address_) for each in [*files, other]]),
            private=words(*private),
            reads=np.ones(count, np.bool_),
            writes=np.ones(count, np.bool_),
            tables=words(0, *tables),
        ),
    )
    blocks = SimpleNamespace(
        type=["fuseblk", "fuse.sshfs", "ext4"],
        device=np.array([48, 0 if mount else 47, 0], np.uint32),
        mount=["/other", "/home", "/"],
    )
    scene.remember(super_blocks, blocks)
    graph, finder = scene.run(FuseRequests)
    if era == "5.9" and connections == 2:
        # The request does not say to which one it belongs.
        assert len(graph) == 0
        return
    assert set(edges(graph)) == {
        (request.address_, SERVED, tables[0]),
        (tables[0], THREAD, scene.task[1]),
    }
    (remedy,) = finder.remedies(FUSE, request.address_, "cp (PID 100)")
    place = f" on {mount}" if mount else ""
    about = f"the FUSE file system{place}, server task (PID 101)"
    assert remedy.effect == f"Abort FUSE connection 0 ({about}) that cp (PID 100) waits for"
    assert finder.served(FUSE, request.address_) == f"the FUSE file system{place}"
    assert finder.served(TASK, request.address_) == ""
