# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names found on recorded pages only: these are redacted as if all names were known."""

from __future__ import annotations

import drgn
import numpy as np
import pytest

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.engine.layout import layout
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.progress import SilentProgress
from kcensus.redaction import Redaction
from kcensus.sources import Target
from kcensus.sources.capsule.recorder import Recorder

pytestmark = pytest.mark.newest

_KEY = b"0123456789abcdef"
_SHIFT = 12


def test_only_links_of_dentries_differ(mixed_target: Target) -> None:
    """Without the hash table, they tell whether a dentry is in it, and nothing else."""
    recorder = Recorder(mixed_target, has_uses=True)
    context = Context.of(recorder.target)
    for name in ("waits", "list-lru"):
        context.run(analyses()[name])
    prog, kernel = mixed_target.prog, Kernel(mixed_target.prog)
    columns = layout(prog, "struct dentry", {"pprev": "d_hash.pprev"})
    caches, report = find_caches(kernel.slab_map, "struct dentry"), ScanReport()
    address, _ = allocated(kernel.slab_map, caches, columns, report, recorder.touched)
    everywhere, _ = allocated(kernel.slab_map, caches, columns, report)
    assert 0 < len(address) < len(everywhere)
    direct = np.uint64(kernel.slab_map.pages.direct_map)
    link = np.uint64(columns.fields["pprev"].offset - 8)
    links = ((address + link - direct)[:, None] + np.arange(16, dtype=np.uint64)).ravel()
    every, some = (
        Redaction(mixed_target, recorder, _KEY, SilentProgress(), frames=frames)
        for frames in (None, recorder.touched.copy())
    )
    written = 0
    for frame in np.flatnonzero(recorder.touched).tolist():
        try:
            page = prog.read(frame << _SHIFT, 1 << _SHIFT, True)
        except drgn.FaultError:
            continue
        scrubbed = bytearray(page), bytearray(page)
        every(frame, scrubbed[0])
        some(frame, scrubbed[1])
        first, second = (np.frombuffer(each, np.uint8) for each in scrubbed)
        places = np.flatnonzero(first != second).astype(np.uint64) + np.uint64(frame << _SHIFT)
        assert np.isin(places, links).all(), hex(frame)
        written += len(places)
    assert written
