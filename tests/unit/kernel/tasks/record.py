# SPDX-License-Identifier: LGPL-2.1-or-later
"""Record the capsule of test_cfq_waits.py again, where the code needs more of the dump.

``python -m tests.unit.kernel.tasks.record 4.19.40-cfq.core 4.19.40.vmlinux``

The dump is of a guest with Linux 4.19.40: XFS on an IDE disk that QEMU throttles to 80 I/Os a
second, with CFQ, direct and buffered readers and writers, metadata updates, and look-ups.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.waits import waits
from kcensus.progress import SilentProgress
from kcensus.sources import open_target
from kcensus.sources.capsule.recorder import Recorder

CAPSULE = Path(__file__).parents[2] / "data" / "cfq-waits.capsule"


def record(core: str, vmlinux: str) -> None:
    """Record what ``waits`` reads of a dump."""
    target = open_target(core, [vmlinux])
    recorder = Recorder(target)
    waits(Kernel(recorder.target.prog))
    facts = {"kernel": target.kernel, "format": target.format, "analyses": ["waits"]}
    manifest = {**facts, "failed": {}, "redacted": []}
    recorder.write(CAPSULE, manifest, level=19, progress=SilentProgress())


if __name__ == "__main__":
    record(*sys.argv[1:])
