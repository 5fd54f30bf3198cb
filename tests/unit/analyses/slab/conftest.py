# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernels of :mod:`making`, a new one for each test."""

from __future__ import annotations

import pytest

from tests.unit.analyses.slab.making import World, charged_world, world


@pytest.fixture
def made() -> World:
    return world()


@pytest.fixture
def charged() -> World:
    return charged_world("6.10")
