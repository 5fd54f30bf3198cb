# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which symbols that tell of patches are only in DWARF."""

from __future__ import annotations

import drgn

from kcensus.catalogue.detect import modules
from kcensus.catalogue.files import load
from kcensus.sources import Target


def test_functions_that_compilers_inline_are_marked(mixed_target: Target) -> None:
    """Without DWARF, a patch would seem to be absent."""
    patches, prog = load(entry_points=False).patches, mixed_target.prog
    mixed_target.need_modules(*modules(patches))
    probes = {
        probe
        for patch in patches.values()
        for rule in patch.detection.rules
        for probe in (*rule.has, *rule.lacks)
        if probe.symbol and not probe.may_be_inlined
    }
    assert len(probes) > 10
    for probe in probes:
        try:
            prog.object(probe.symbol, drgn.FindObjectFlags.ANY)
        except LookupError:
            continue
        assert prog.symbol(probe.symbol).name == probe.symbol
