# SPDX-License-Identifier: LGPL-2.1-or-later
"""A guest per kernel that all tests of this folder share, with its load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.system import Running, running


@pytest.fixture(scope="package")
def guest(kernel: str) -> Iterator[Running]:
    """A guest under load."""
    with running(kernel) as booted:
        booted.run("load start").check()
        yield booted
        # What a test has broken shows here, rather than in the next one.
        assert booted.run("load alive").status == 0, booted.run("cat /srv/load/log").stdout
