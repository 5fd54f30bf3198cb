# SPDX-License-Identifier: LGPL-2.1-or-later
"""Size and uptime of a machine, by which two dumps are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import drgn
from drgn.helpers.linux.cpumask import num_online_cpus
from drgn.helpers.linux.mm import totalram_pages
from drgn.helpers.linux.timekeeping import uptime

from kcensus.sources.capsule import NotRecorded

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Machine:
    """RAM, CPUs and uptime; None where unknown."""

    ram_bytes: int | None
    cpus: int | None
    uptime_seconds: float | None


def machine(prog: drgn.Program) -> Machine:
    """Return RAM, online CPUs and uptime of the machine; raises nothing."""
    return Machine(
        ram_bytes=_or_none(lambda: int(totalram_pages(prog)) * int(prog["PAGE_SIZE"])),
        cpus=_or_none(lambda: int(num_online_cpus(prog))),
        uptime_seconds=_or_none(lambda: float(uptime(prog))),
    )


def _or_none(ask: Callable[[], _Number]) -> _Number | None:
    try:
        return ask()
    except (LookupError, ValueError, drgn.FaultError, NotRecorded):
        return None
