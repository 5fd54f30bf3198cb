# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps that the crash of Debian 12 opens."""

from __future__ import annotations

import pytest

from tests.lab import Dump, build
from tests.vm.crash.formats import kdump
from tests.vm.crash.session import Session

RELEASES = ("5.10", "6.1")


@pytest.fixture(scope="module", params=RELEASES)
def dump(request: pytest.FixtureRequest) -> Dump:
    """A dump with something for every analysis."""
    return build(request.param, "mixed")


@pytest.fixture(scope="module", params=["elf", "kdump-lzo"])
def session(
    request: pytest.FixtureRequest, dump: Dump, tmp_path_factory: pytest.TempPathFactory
) -> Session:
    """The dump as QEMU wrote it, and as makedumpfile compresses and filters it."""
    path = dump.formats["elf"]
    if request.param != "elf":
        path = tmp_path_factory.mktemp("kdump") / "vmcore.kdump-lzo"
        kdump(dump.formats["elf"], path)
    return Session(dump.vmlinux, (path,))
