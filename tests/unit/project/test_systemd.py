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
assert SERVICES
_STORE = "/var/lib/kcensus/series"
HIDES_KCORE = {"ProtectKernelTunables", "ProcSubset", "PrivateUsers", "PrivateDevices"}


class _Options(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


def drop_in(path: Path) -> Path:
    """Return what systemd reads of the directory for the prefix of a unit's name."""
    (found,) = (UNITS / f"{path.stem.partition('-')[0]}-.service.d").iterdir()
    return found


def service(path: Path) -> dict[str, str]:
    """Return the section Service; of a setting that is repeated, the last one."""
    return dict(_parsed(path)["Service"])


def _parsed(path: Path) -> _Options:
    parser = _Options(strict=False, interpolation=None)
    parser.read([path, drop_in(path)])
    return parser


every_service = pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)


@every_service
def test_a_service_can_read_the_kernel(path: Path) -> None:
    settings = service(path)
    assert not HIDES_KCORE & {*settings}
    assert settings["CapabilityBoundingSet"] == "CAP_SYS_RAWIO"


@every_service
def test_a_service_needs_its_limits_and_settings_of_users_win(path: Path) -> None:
    needed = Path(_parsed(path)["Unit"]["AssertPathExists"])
    assert UNITS / needed.relative_to("/etc/systemd/system") == drop_in(path)
    assert drop_in(path).name < "override.conf"
    assert "UMask" not in drop_in(path).read_text(), "each service has its own"


@every_service
def test_the_options_of_a_service_exist(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcensus.commands.shared.options.is_own_process", lambda: True)
    settings = service(path)
    _, name, *args = shlex.split(settings["ExecStart"])
    assert path.stem == f"kcensus-{name}"
    values = commands()[name].load().make_context(name, args).params
    if name == "trend":  # it reads a store, and writes nothing
        assert (values["fail_on"], Path(values["store"])) == ("warning", Path(_STORE))
        assert _parsed(path)["Unit"]["ConditionPathExists"].startswith(_STORE)
        return
    assert values["max_memory"] == 512 << 20
    written = values["store"] if name == "record" else values["metrics"]
    writable = [settings.get("ReadWritePaths", "").removeprefix("-")]
    writable += [f"/var/lib/{each}" for each in settings.get("StateDirectory", "").split()]
    assert str(written.parent) in writable
