# SPDX-License-Identifier: LGPL-2.1-or-later
"""The units for systemd: their options exist, and no sandbox hides what they read."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

import pytest

from kcensus.commands import commands

UNITS = Path(__file__).parents[3] / "docs" / "monitoring" / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))
HIDES_KCORE = {"ProtectKernelTunables", "ProcSubset", "PrivateUsers", "PrivateDevices"}


class _Options(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


def service(path: Path) -> dict[str, str]:
    """Return the section Service; of a setting that is repeated, the last one."""
    parser = _Options(strict=False, interpolation=None)
    parser.read(path)
    return dict(parser["Service"])


def test_there_are_services() -> None:
    assert SERVICES


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_service_can_read_the_kernel(path: Path) -> None:
    settings = service(path)
    assert not HIDES_KCORE & {*settings}
    assert settings["CapabilityBoundingSet"] == "CAP_SYS_RAWIO"


def test_the_options_of_the_recorder_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcensus.commands.shared.options.is_own_process", lambda: True)
    _, name, *args = shlex.split(service(UNITS / "kcensus-record.service")["ExecStart"])
    values = commands()[name].make_context(name, args).params
    assert values["store"] == Path("/var/lib/kcensus/series")
    assert values["max_memory"] == 512 << 20
