# SPDX-License-Identifier: LGPL-2.1-or-later
"""What kcensus says where the running kernel cannot be read: one sentence, and exit status 3."""

from __future__ import annotations

import pytest

from tests.lab.system import Done, Running, running

pytestmark = pytest.mark.usually  # each command takes a minute under emulation

_UNUSABLE = 3


def assert_refused(done: Done) -> None:
    assert (done.status, done.stdout) == (_UNUSABLE, ""), done
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("kcensus: ")


def test_without_privileges(guest: Running) -> None:
    assert_refused(guest.run("kcensus slab", user="load"))


def test_without_capabilities(guest: Running) -> None:
    """Root in a container is root without them."""
    assert_refused(guest.run("setpriv --bounding-set=-all --inh-caps=-all kcensus slab"))


def test_masked(guest: Running) -> None:
    """Containers have /dev/null in place of /proc/kcore."""
    mask = "mount --bind /dev/null /proc/kcore"
    assert_refused(guest.run(f"unshare --mount sh -c '{mask} && exec kcensus slab'"))


@pytest.mark.parametrize(("mode", "refused"), [("integrity", False), ("confidentiality", True)])
@pytest.mark.usually  # it boots guests of its own
def test_lockdown(kernel: str, mode: str, refused: bool) -> None:
    with running(kernel, boot=f"lockdown={mode}") as locked:
        done = locked.run("kcensus slab --json")
        if refused:
            assert_refused(done)
        else:
            done.check()
