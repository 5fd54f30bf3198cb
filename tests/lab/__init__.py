# SPDX-License-Identifier: LGPL-2.1-or-later
"""Real kernels under QEMU, dumped together with what the kernel itself counted."""

from .debian.store import alike, kernels, usual_scenarios
from .dumps import Dump, Live, build, live, symbols
from .host import LabError
from .scenario import kernels_of, scenarios

__all__ = [
    "Dump",
    "LabError",
    "Live",
    "alike",
    "build",
    "kernels",
    "kernels_of",
    "live",
    "scenarios",
    "symbols",
    "usual_scenarios",
]
