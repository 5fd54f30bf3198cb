# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hash tables where memory is short."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from kcensus.engine.rows import factorized

_LIMITED = """
import resource, sys
import numpy as np
from kcensus.engine.rows import factorized
values = np.arange(1 << 22)
used = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if "VmData" in line)
resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20),) * 2)
try:
    factorized(values)
except MemoryError:
    sys.exit(7)
"""


@pytest.mark.parametrize("distinct", [None, 3, 100])
def test_factorized(distinct: int | None) -> None:
    values = np.array([7, 5, 7, 9, 5], np.uint64)
    code, unique = factorized(values, distinct)
    assert unique[code].tolist() == values.tolist()
    assert unique.tolist() == [7, 5, 9]


@pytest.mark.slow
def test_too_little_memory_is_an_exception() -> None:
    """pandas would end the process with a signal."""
    assert subprocess.run([sys.executable, "-c", _LIMITED]).returncode == 7
