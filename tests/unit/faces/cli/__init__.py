# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line, with a made-up analysis and target."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

Run = Callable[..., tuple[int, str, str]]
Capture: TypeAlias = pytest.CaptureFixture[str]
