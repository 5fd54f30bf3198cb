# SPDX-License-Identifier: LGPL-2.1-or-later
"""Record the bundled samples again: ``python3 -m tests.lab samples``.

Two guests, one workload: a kernel before the patches and one after them. What the guests'
kernels counted lies beside the tests that hold the samples against it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from .dumps import Dump, build
from .host import say

KERNELS = {"sample": "5.10", "sample-after": "6.12"}
"""Which kernel each sample is of."""
TRUTH = Path(__file__).parents[1] / "sample" / "truth"

_KEPT = ("dentry-state", "cgroup.stat", "created.json", "dmsetup-status", "slabinfo.4", "meminfo")
_SMALLEST = 19


def make() -> None:
    """Record both guests, with all analyses there are."""
    # Here, so that the lab builds dumps without the package.
    from kcensus.analyses import analyses
    from kcensus.capsule import create
    from kcensus.sources import open_target
    from kcensus.sources.sample import SAMPLES

    shutil.rmtree(TRUTH, ignore_errors=True)
    TRUTH.mkdir(parents=True)
    SAMPLES.mkdir(exist_ok=True)
    for name, kernel in KERNELS.items():
        dump = build(kernel, "sample")
        path = SAMPLES / f"{name}.capsule"
        target = open_target(dump.formats["elf"], dump.debug)
        path.unlink(missing_ok=True)
        made = create(target, path, list(analyses().values()), level=_SMALLEST)
        path.chmod(0o644)  # others' capsules are private, this one is for everybody
        for analysis, error in made.failed.items():
            say(f"{name}: {analysis} is not in it: {error}")
        _write_truth(name, dump)
        say(f"{path}: {path.stat().st_size:,} bytes, {made.stored:,} pages")


def _write_truth(name: str, dump: Dump) -> None:
    kept = {"release": dump.release, **{key: dump.truth[key] for key in _KEPT}}
    text = json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False)
    (TRUTH / f"{name}.json").write_text(text + "\n")
