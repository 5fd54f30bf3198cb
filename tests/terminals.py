# SPDX-License-Identifier: LGPL-2.1-or-later
"""What users do at a terminal."""

from __future__ import annotations

import pexpect

_PRESSES = 5
_PATIENCE = 12
"""Seconds until a user presses again."""


def interrupt(prompt: pexpect.spawn[str], until: str) -> None:
    """Press Ctrl-C until it takes effect.

    Python drops the exception of a signal that meets a callback which cannot raise, such as those
    of the garbage collector.
    """
    for _ in range(_PRESSES):
        prompt.sendintr()
        if prompt.expect_exact([until, pexpect.TIMEOUT], timeout=_PATIENCE) == 0:
            return
    raise AssertionError(prompt.before)
