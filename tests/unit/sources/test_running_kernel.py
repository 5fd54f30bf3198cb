# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why the running kernel cannot be read, told apart by *faked* files of /proc and /sys."""

from __future__ import annotations

import errno
import gzip
import os
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest

from kcensus.progress import SilentProgress
from kcensus.sources import TargetError, is_running_kernel, live, open_target
from kcensus.sources.debuginfo import debuginfod
from kcensus.sources.debuginfo.loading import modules_from_memory
from kcensus.sources.live import hardening, missing_debug_info, refusal
from kcensus.sources.model import MissingDebugInfo
from tests.unit.sources.test_sniff import one_line

DENIED = PermissionError(errno.EPERM, "Operation not permitted", "/proc/kcore")
ABSENT = FileNotFoundError(errno.ENOENT, "No such file or directory", "/proc/kcore")
OTHER = ValueError("not an\nELF core file")
ALL_CAPABILITIES = 0x1FFFFFFFFFF
RELEASE = "6.1.0-56-amd64"


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/version", "Linux version")
        self.write("proc/kcore", "\x7fELF")
        self.write("proc/sys/kernel/osrelease", f"{RELEASE}\n")
        self.user()
        self.link("proc/self/ns/user", "user:[4026531837]")
        self.link("proc/self/ns/pid", "pid:[4026531836]")

    def path(self, name: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, name: str, text: str | bytes) -> None:
        self.path(name).write_bytes(text if isinstance(text, bytes) else text.encode())

    def link(self, name: str, text: str) -> None:
        self.path(name).unlink(missing_ok=True)
        self.path(name).symlink_to(text)

    def user(self, uid: int = 0, capabilities: int = ALL_CAPABILITIES) -> None:
        self.write(
            "proc/self/status",
            f"Name:\tkcensus\nUid:\t1000\t{uid}\t{uid}\t{uid}\nCapEff:\t{capabilities:016x}\n",
        )

    def no_kcore(self) -> None:
        (self.root / "proc/kcore").unlink()

    def refusal(self, error: Exception) -> str:
        return one_line(refusal(error, self.root))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("place", ["proc/config.gz", f"boot/config-{RELEASE}"])
def test_a_kernel_without_kcore(machine: Machine, place: str) -> None:
    machine.no_kcore()
    config = b"CONFIG_PROC_FS=y\n# CONFIG_PROC_KCORE is not set\n"
    machine.write(place, gzip.compress(config) if place.endswith("gz") else config)
    sentence = machine.refusal(ABSENT)
    assert "without CONFIG_PROC_KCORE" in sentence
    assert "probably" not in sentence
    assert "crash" in sentence


def test_a_kernel_whose_configuration_is_not_known(machine: Machine, tmp_path: Path) -> None:
    assert "not mounted" in refusal(ABSENT, tmp_path / "no proc")
    machine.no_kcore()
    machine.write("proc/config.gz", b"\x1f\x8b damaged")
    assert "probably" in machine.refusal(ABSENT)
    # What container runtimes and systemd put over it; there are none of these here.
    machine.link("proc/kcore", "/dev/null")
    assert "ProtectKernelTunables" in machine.refusal(OTHER)


@pytest.mark.parametrize(
    ("place", "text", "kind"),
    [
        ("run/systemd/container", "systemd-nspawn\n", "(systemd-nspawn)"),
        (".dockerenv", "", "(docker)"),
        ("run/.containerenv", "", "(podman)"),
        ("proc/self/ns/pid", "pid:[4026532281]", "this container"),
    ],
)
@pytest.mark.parametrize("problem", ["absent", "masked", "capability", "namespace"])
def test_a_container(machine: Machine, place: str, text: str, kind: str, problem: str) -> None:
    if text.startswith("pid:"):
        machine.link(place, text)
    else:
        machine.write(place, text)
    error: Exception = DENIED
    if problem == "absent":
        machine.no_kcore()
        error = ABSENT
    elif problem == "masked":
        machine.write("proc/kcore", "")
        error = OTHER
    elif problem == "capability":
        machine.user(capabilities=0xA80425FB)  # Docker's
    else:
        machine.link("proc/self/ns/user", "user:[4026532280]")
    sentence = machine.refusal(error)
    assert kind in sentence
    assert "on the host" in sentence


def test_root_of_a_user_namespace_or_without_the_capability(machine: Machine) -> None:
    machine.user(capabilities=ALL_CAPABILITIES & ~(1 << 17))
    assert "CAP_SYS_RAWIO" in machine.refusal(DENIED)
    machine.user()
    machine.link("proc/self/ns/user", "user:[4026532280]")
    assert "user namespace" in machine.refusal(DENIED)


_PYTHON = shlex.quote(sys.executable)


@pytest.mark.parametrize(
    ("argv", "symbols", "command"),
    [
        (["/opt/k/bin/kcensus", "slab", "-s", "a b"], "", "sudo /opt/k/bin/kcensus slab -s 'a b'"),
        (["/opt/k/kcensus/__main__.py", "slab"], "", f"sudo {_PYTHON} -m kcensus slab"),
        (["/bin/kcensus"], "/srv/debug", "sudo env KCENSUS_SYMBOLS=/srv/debug /bin/kcensus"),
        (["/o p/kcensus"], "/a b", "sudo env 'KCENSUS_SYMBOLS=/a b' '/o p/kcensus'"),
        (["/opt/x\x1b/kcensus"], "", r"'/opt/x\x1b/kcensus'"),
        (["mine.py", "x"], "", "run as root"),
    ],
)
def test_a_user_gets_the_command_to_paste(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, argv: list[str], symbols: str, command: str
) -> None:
    machine.user(uid=1000, capabilities=0)
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setenv("KCENSUS_SYMBOLS", symbols)
    assert command in machine.refusal(PermissionError(errno.EACCES, "Permission denied"))


def test_lockdown(machine: Machine) -> None:
    machine.write("sys/kernel/security/lockdown", "none integrity [confidentiality]\n")
    assert "lockdown=integrity" in machine.refusal(DENIED)
    option = "CONFIG_LOCK_DOWN_KERNEL_FORCE_CONFIDENTIALITY"
    machine.write("proc/sys/kernel/osrelease", f"{RELEASE}\n")
    machine.write(f"boot/config-{RELEASE}", f"{option}=y\n")
    assert option in machine.refusal(DENIED)
    assert "lockdown=integrity" not in machine.refusal(DENIED)
    machine.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    assert "SELinux" in machine.refusal(DENIED)


def test_another_error_is_quoted(machine: Machine) -> None:
    assert r"(drgn: not an\x0aELF core file)" in machine.refusal(OTHER)
    assert "kptr_restrict" not in machine.refusal(OTHER)
    machine.write("proc/sys/kernel/kptr_restrict", "2\n")
    assert "kptr_restrict" in machine.refusal(OTHER)


def test_hardening(machine: Machine) -> None:
    assert hardening(machine.root) == ""
    machine.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    machine.write("proc/sys/kernel/kptr_restrict", "2\n")
    machine.write("proc/sys/kernel/perf_event_paranoid", "3\n")
    assert hardening(machine.root) == "lockdown integrity, kptr_restrict 2, perf_event_paranoid 3"


def test_debug_info_of_a_kernel_that_was_replaced(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    assert missing_debug_info(RELEASE, "0123ab", machine.root) == ""
    machine.write(f"usr/lib/debug/lib/modules/{RELEASE}/xfs.ko.debug", "")
    assert missing_debug_info(RELEASE, "0123ab", machine.root) == ""
    for release in ("6.1.0-57-amd64", "6.1.0-58-amd64"):
        machine.write(f"usr/lib/debug/boot/vmlinux-{release}", "")
        machine.write(f"usr/lib/debug/lib/modules/{release}/vmlinux", "")
    sentence = missing_debug_info(RELEASE, "0123ab", machine.root)
    assert "6.1.0-57-amd64, 6.1.0-58-amd64" in sentence
    assert RELEASE in sentence
    assert "debuginfod" not in sentence
    assert "reboot" not in sentence
    for number, release in enumerate(("6.1.0-57-amd64", RELEASE, "6.1.0-58-amd64")):
        machine.write(f"boot/vmlinuz-{release}", "")
        os.utime(machine.root / f"boot/vmlinuz-{release}", (number, number))
        has_newer = "reboot" in missing_debug_info(RELEASE, "0123ab", machine.root)
        assert has_newer == (number == 2)
    machine.write("etc/debuginfod/elfutils.urls", "https://debuginfod.invalid/\n")
    sentence = missing_debug_info(RELEASE, "0123ab", machine.root)
    assert "set DEBUGINFOD_URLS" in sentence
    assert sentence.endswith("with --debuginfod")
    monkeypatch.setenv("DEBUGINFOD_URLS", "https://debuginfod.invalid/")
    sentence = missing_debug_info(RELEASE, "0123ab", machine.root)
    assert sentence.endswith("; or download it with --debuginfod")
    with debuginfod.allowed(SilentProgress()):
        assert "debuginfod" not in missing_debug_info(RELEASE, "0123ab", machine.root)


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "DRGN_USE_SYS_MODULE"
    monkeypatch.delenv(name, raising=False)
    with modules_from_memory():
        assert os.environ[name] == "0"
    assert name not in os.environ
    monkeypatch.setenv(name, "1")
    with modules_from_memory():
        assert os.environ[name] == "1"
    assert os.environ[name] == "1"


def test_missing_debug_info_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(*_: object) -> None:
        raise MissingDebugInfo("debug info is missing", "0123ab")

    program = mock.MagicMock()
    program["UTS_RELEASE"].string_.return_value = RELEASE.encode()
    monkeypatch.setattr(live, "drgn", mock.Mock(Program=lambda: program))
    monkeypatch.setattr(live, "load_debug_info", load)
    monkeypatch.setenv("DEBUGINFOD_URLS", "https://debuginfod.invalid/")
    with pytest.raises(TargetError, match=r"is missing.*with --debuginfod"):
        open_target(None)
    with pytest.raises(MissingDebugInfo, match=r"is missing$"):
        open_target(None, [tmp_path])


def test_which_targets_are_the_running_kernel() -> None:
    assert [*map(is_running_kernel, (None, "/proc/kcore", Path("/proc/kcore")))] == [True] * 3
    assert not is_running_kernel("sample")
