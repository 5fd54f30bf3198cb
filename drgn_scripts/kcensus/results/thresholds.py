# SPDX-License-Identifier: LGPL-2.1-or-later
"""From when on something is a finding, and how severe: every threshold that all analyses share.

A finding about memory is judged by the bytes that it holds: below 1 MiB or 0.1 % of RAM there is
none. A finding about a danger that has come true (a stall, a deadlock) is critical whatever it
holds. Thresholds that concern one subject only, such as the children of one directory, are in
``findings.py`` of its analysis.
"""

from __future__ import annotations

from kcensus.results.severity import Severity

MIN_BYTES = 1 << 20
"""Less is never a finding: no remedy is worth its trouble."""
SHARES = {
    Severity.CRITICAL: 0.25,
    Severity.WARNING: 0.05,
    Severity.NOTICE: 0.005,
    Severity.INFO: 0.001,
}
"""Share of RAM from which on a finding is this severe.

At a quarter of RAM, other users of memory get into trouble (reclaim, the OOM killer); from 5 % on,
it is worth a change window; from 0.5 % on, worth knowing when there is one.
"""


def severity_of(holds: int, ram_bytes: int | None) -> Severity | None:
    """Return how severe it is that something holds memory; None where it is no finding.

    :param holds: bytes
    :param ram_bytes: RAM of the machine; None or 0 where unknown: then NOTICE, from 1 MiB on
    """
    if holds < MIN_BYTES:
        return None
    if not ram_bytes:
        return Severity.NOTICE
    return next((each for each, share in SHARES.items() if holds >= share * ram_bytes), None)
