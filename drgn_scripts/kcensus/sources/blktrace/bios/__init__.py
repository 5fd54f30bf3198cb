# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make bios and requests of events: find the times of a trace that belong to the same I/O.

Events have no identifier: they have only device, direction and sector in common; these three are
called a place. An event belongs to the bio that was queued last at the place where it begins. If a
request has several bios, its events also belong to bios that were merged (M, F) and lie inside of
it, and if a bio is split (X), its rest is a bio of its own. These are the rules of btt, except that
btt drops split bios and bios that are queued while another one is in flight at the place.

All events are sorted by place, then time, in one array of numbers that combine both; the bio of an
event then is the last one before it.
"""

from kcensus.sources.blktrace.bios.model import NEVER, Bios, happened
from kcensus.sources.blktrace.bios.pairing import pair

__all__ = ["NEVER", "Bios", "happened", "pair"]
