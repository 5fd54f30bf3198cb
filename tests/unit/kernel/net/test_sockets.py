# SPDX-License-Identifier: LGPL-2.1-or-later
"""Addresses of servers in *synthetic* kernels."""

from __future__ import annotations

import ipaddress

import pytest

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.net.sockets import address_at, check, joined
from tests.unit.fakekernel import FakeKernel


@pytest.mark.parametrize(
    ("family", "host", "expected"),
    [
        (2, "192.0.2.7", ("192.0.2.7", 445)),
        (10, "2001:db8::7", ("2001:db8::7", 445)),
        (2, "0.0.0.0", ("", 0)),
        (1, "192.0.2.7", ("", 0)),
    ],
)
def test_addresses(family: int, host: str, expected: tuple[str, int]) -> None:
    k = FakeKernel("6.10", "struct task_struct 64")
    packed = ipaddress.ip_address(host).packed
    start = family.to_bytes(2, "little") + (445).to_bytes(2, "big") + bytes(4 * (family == 10))
    place = int(k.alloc("char [64]").address_)
    raw = (start + packed).ljust(32, b"\0")
    k.write_words(place, *(int.from_bytes(raw[at : at + 8], "little") for at in range(0, 32, 8)))
    assert address_at(Kernel(k.prog), place) == expected


def test_a_lost_page_has_no_address() -> None:
    k = FakeKernel("6.10", "struct task_struct 64")
    assert address_at(Kernel(k.prog), 0xFFFF_C1F0_DEAD_B000) == ("", 0)


@pytest.mark.parametrize(
    ("host", "port", "is_one"),
    [
        ("192.0.2.7", "2049", True),
        ("2001:db8::7", 445, True),
        ("a;reboot", "1", False),
        ("fe80::1%';reboot;'", 1, False),
    ],
)
def test_only_addresses_are_put_into_commands(host: str, port: int | str, is_one: bool) -> None:
    command = check(host, port, "NFS", is_connected=False)[1]
    assert bool(command) is is_one
    assert not check(host, port, "NFS", is_connected=True)[1]


def test_joined() -> None:
    assert joined("192.0.2.7", 1) == "192.0.2.7:1"
    assert joined("2001:db8::7", 1) == "[2001:db8::7]:1"
