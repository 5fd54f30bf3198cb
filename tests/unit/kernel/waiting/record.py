# SPDX-License-Identifier: LGPL-2.1-or-later
"""Record the capsules of old kernels again, where the code needs more of their dumps.

``python -m tests.unit.kernel.waiting.record cfq-waits 4.19.40-cfq.core 4.19.40.vmlinux``
``python -m tests.unit.kernel.waiting.record oops-waits rhel8.1-kcopyd.core rhel8.1-4.18.vmlinux``

The first dump is of a guest with Linux 4.19.40: XFS on an IDE disk that QEMU throttles to 80 I/Os a
second, with CFQ, direct and buffered readers and writers, metadata updates, and look-ups. The
second one is of a guest with Linux 4.18 of RHEL 8.1, which writes to the origin of four snapshots:
dd dies of an oops in ``close()``, with the mutex of its block device.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.waiting.reader import waiting
from kcensus.progress import SilentProgress
from kcensus.sources import open_target
from kcensus.sources.capsule.recorder import Recorder
from tests.vm.oracles import waits as oracle

DATA = Path(__file__).parents[2] / "data"


def record(name: str, core: str, vmlinux: str) -> None:
    """Record what ``waits`` reads of a dump, and its oracle."""
    target = open_target(core, [vmlinux])
    recorder = Recorder(target)
    Context.of(recorder.target).run(analyses()["waits"])
    kernel = Kernel(recorder.target.prog)
    found = waiting(kernel)
    sleepers = oracle.sleepers(kernel.prog)
    for row, pid in enumerate(found.waits.pid.tolist()):
        if pid in sleepers and found.waits.object[row]:
            type_, object_ = found.waits.type[row], int(found.waits.object[row])
            assert oracle.is_waiter(kernel.prog, type_, object_, sleepers[pid])
    facts = {"kernel": target.kernel, "format": target.format, "analyses": ["waits"]}
    manifest = {**facts, "failed": {}, "redacted": []}
    path = DATA / f"{name}.capsule"
    recorder.write(path, manifest, level=19, progress=SilentProgress())


if __name__ == "__main__":
    record(*sys.argv[1:])
