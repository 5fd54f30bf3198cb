# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules of RHEL 7.9, with the truth of their guests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sample.guest import Guest
from tests.sample.rhel7 import vmcores

DATA = Path(__file__).parent / "data"
PACK = DATA / "rhel7.kctypes"


@pytest.fixture(scope="session")
def mixed() -> Guest:
    return Guest(DATA, "mixed")


@pytest.fixture(scope="session")
def cfq() -> Guest:
    return Guest(DATA, "cfq")


@pytest.fixture(scope="session", params=["mixed", "cfq"])
def guest(request: pytest.FixtureRequest) -> Guest:
    found: Guest = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def vmcore(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vmcore of the guest with many memory cgroups."""
    path = tmp_path_factory.mktemp("rhel7") / "vmcore"
    return vmcores.write_elf(DATA / "mixed.capsule", path)


@pytest.fixture(scope="session")
def kdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same vmcore, compressed with zlib."""
    path = tmp_path_factory.mktemp("rhel7") / "vmcore.kdump"
    return vmcores.write_kdump(DATA / "mixed.capsule", path)
