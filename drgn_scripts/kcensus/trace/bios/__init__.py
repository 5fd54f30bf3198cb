# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes bios and requests of events: which moments of a trace are about the same I/O.

Events have no identifier: what they have in common is device, direction and sector; these three are
called a place. An event belongs to the bio that was queued last at the place where it begins. Where
a request has several bios, events of the request belong also to bios that were merged (M, F) and
lie inside of it, and where a bio is split (X), its rest is a bio of its own. These are the rules of
btt, except that btt drops bios that are split and those queued where another one is in flight.

All events are sorted by place, then time, in one array of numbers that hold both; the bio that an
event belongs to then is the last one before it.
"""

from kcensus.trace.bios.model import NEVER, Bios
from kcensus.trace.bios.pairing import pair

__all__ = ["NEVER", "Bios", "pair"]
