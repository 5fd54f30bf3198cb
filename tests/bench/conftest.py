# SPDX-License-Identifier: LGPL-2.1-or-later
"""Prints all measurements at the end."""

from __future__ import annotations

import pytest

from tests.bench import timing


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if timing.lines:
        terminalreporter.section("measurements")
        for line in timing.lines:
            terminalreporter.line(line)
