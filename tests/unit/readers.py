# SPDX-License-Identifier: LGPL-2.1-or-later
"""Results in place of those of readers that remember them, :func:`kcensus.kernel.kernel.once`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def set_read(kernel: Any, reader: Callable[..., Any], value: Any) -> None:
    """Have a reader return a value for a kernel, or for what stands for one."""
    kernel._read[inspect.unwrap(reader)] = value
