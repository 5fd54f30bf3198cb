# SPDX-License-Identifier: LGPL-2.1-or-later
"""A guest that boots Debian from a disk, and takes commands through ssh."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from .. import host, image, qemu
from ..debian import programs
from ..debian.machines import AMD64
from ..debian.store import Kernel
from ..dumps import shared_kernel
from ..host import LabError, say
from ..qemu import Machine, TooSlow
from . import disk, wheels
from .base import FILES, Base, base

# NumPy insists on cmpxchg16b (X86_FEATURE_CX16), without using it; a kernel that uses it dies.
_CX16 = 4 * 32 + 13
# QEMU 7.2 emulates AVX2 wrongly: where NumPy uses it, sums and orders of columns are wrong.
_CPU = "max,la57=off,cx16=on,avx=off,avx2=off"
_INIT = image.GUEST / "system" / "init.sh"
_MODULES = (
    *("virtio_pci", "virtio_blk", "virtio_net", "virtio_rng"),
    *("ext4", "crc32c_generic", "qemu_fw_cfg"),
)
_COMMAND_LINE = "audit=0 systemd.show_status=false"
_MEMORY = 1024
_CPUS = 2
_LOAD_MIB, _CODE_MIB = 512, 64
_CHECKOUT = Path(__file__).parents[3]
_DAY = 24 * 60 * 60.0
_READY = 600.0
"""Seconds until a guest takes commands; one takes 30 on two idle CPUs."""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    status: int
    """Its exit status; 255 also if ssh failed."""
    stdout: str
    stderr: str

    def check(self) -> str:
        """Return what it printed, or raise `LabError` if it failed."""
        if self.status:
            raise LabError(f"exit status {self.status}: {self.stderr.strip()[-2000:]}")
        return self.stdout


class Running:
    """A guest with Debian, kcensus and the debug info of its kernel."""

    def __init__(self, kernel: Kernel, made: Base, machine: Machine, directory: Path) -> None:
        self.release = kernel.release
        self.qmp = directory / "qmp"
        """QEMU's socket, to read the guest's memory from outside too."""
        self._directory = directory
        self._key = made.key
        usernet = str(machine.command("human-monitor-command", **{"command-line": "info usernet"}))
        if not (forwarded := re.search(r"HOST_FORWARD\]\s+\d+\s+\S+\s+(\d+)", usernet)):
            raise LabError(f"has no port for ssh: {usernet!r}")
        self._port = forwarded[1]

    def ssh(self, user: str = "root", *options: str) -> list[str]:
        """Return the command of this machine that a command of the guest is appended to.

        With the option `-t`, the command has a terminal.
        """
        return [host.find("ssh"), *self._options(), "-p", self._port, *options, f"{user}@127.0.0.1"]

    def run(self, command: str, *, timeout: float = 600, user: str = "root") -> Done:
        """Run a command line of the guest's shell to its end.

        :param timeout: seconds, after which `subprocess.TimeoutExpired` is raised; the command
            goes on
        """
        done = subprocess.run(
            [*self.ssh(user), command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def put(self, source: Path, target: str) -> None:
        place = f"root@127.0.0.1:{target}"
        host.run(["scp", *self._options(), "-P", self._port, "-r", "-q", str(source), place])

    def close(self) -> None:
        for user in ("root", "load"):
            if (self._directory / f"ssh-{user}").exists():
                command = self.ssh(user, "-O", "exit")
                subprocess.run(command, capture_output=True, check=False)

    def _options(self) -> list[str]:
        settings = {
            "BatchMode": "yes",
            "ConnectTimeout": "60",
            # A connection takes seconds under emulation, a command on an open one does not.
            "ControlMaster": "auto",
            "ControlPath": f"{self._directory}/ssh-%r",
            "ControlPersist": "yes",
            "IdentitiesOnly": "yes",
            "IdentityFile": str(self._key),
            "LogLevel": "ERROR",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
        }
        return ["-F", "none", *(f"-o{name}={value}" for name, value in settings.items())]


def _busybox(kernel: Kernel) -> Path:
    if kernel.machine == AMD64:
        return Path(host.find("busybox"))
    (found,) = programs.program("busybox", kernel.machine).values()
    return found


def _initrd(kernel: Kernel, directory: Path) -> Path:
    archive = image.Archive()
    archive.add("init", _INIT.read_bytes())
    archive.add("bin/busybox", _busybox(kernel).read_bytes())
    order = kernel.closure(_MODULES)
    archive.add("modules/order", "".join(f"{name}\n" for name in order).encode(), 0o100644)
    for name in order:
        if path := kernel.module(name):
            archive.add(f"modules/{name}.ko", path.read_bytes(), 0o100644)
    path = directory / "system-initrd"
    path.write_bytes(archive.content())
    return path


def _code_disk(made: Base, directory: Path) -> Path:
    """Make the disk with kcensus as the checkout has it, and with the programs of the lab.

    Unlike the root file system, it is made for each guest: it takes a few seconds.
    """
    with tempfile.TemporaryDirectory(prefix="code-") as name:
        tree = Path(name)
        host.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tree)],
            cwd=_CHECKOUT,
        )
        (wheel,) = tree.glob("*.whl")
        wheels.install(made.machine, tree / "lib", wheel)
        (tree / "bin").mkdir()
        image.compile_program(
            tree / "bin" / "churn", image.PROGRAMS / "churn.c", machine=made.machine
        )
        shutil.copy(FILES / "load.sh", tree / "bin" / "load")
        (tree / "bin" / "load").chmod(0o755)
        disk.make(directory / "code.ext4", tree, _CODE_MIB, "-O", "^has_journal")
    return directory / "code.ext4"


def _drives(*paths: tuple[str, str]) -> list[str]:
    arguments: list[str] = []
    for number, (path, options) in enumerate(paths):
        arguments += [
            *("-drive", f"file={path},format=raw,if=none,id=drive{number},{options}"),
            *("-device", f"virtio-blk-pci,drive=drive{number},serial=drive{number}"),
        ]
    return arguments


def _arguments(kernel: Kernel, made: Base, directory: Path, boot: str) -> list[str]:
    load = directory / "load"
    cpu, boot = kernel.cpu, f"{kernel.architecture.console} {_COMMAND_LINE} {boot}".rstrip()
    if kernel.machine == AMD64:
        cpu, boot = _CPU, f"{boot} clearcpuid={_CX16}"
    with load.open("wb") as file:
        file.truncate(_LOAD_MIB << 20)
    return [
        *qemu.emulated(kernel.architecture, cpu),
        *("-smp", str(_CPUS), "-m", f"{_MEMORY}M", "-device", "virtio-rng-pci"),
        # With the module, it lets those who read the memory from outside find the kernel in it.
        *("-device", "vmcoreinfo"),
        *("-kernel", str(kernel.image), "-initrd", str(_initrd(kernel, directory))),
        *("-qmp", f"unix:{directory / 'qmp'},server=on,wait=off"),
        *("-append", boot),
        *("-netdev", "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22"),
        *("-device", "virtio-net-pci,netdev=net,romfile="),
        *_drives(
            (str(made.disk), "snapshot=on,cache=unsafe"),
            (str(disk.kernel_disk(kernel)), "readonly=on"),
            (str(_code_disk(made, directory)), "readonly=on"),
            (str(load), "cache=unsafe"),
        ),
    ]


@contextmanager
def running(kernel: str, *, boot: str = "") -> Iterator[Running]:
    """Boot a guest with Debian, kcensus and debug info, which ends with the context.

    :param kernel: a name from `kernels.toml`
    :param boot: more parameters for the kernel's command line
    """
    host.install_packages()
    found = shared_kernel(kernel)
    made = base(found.machine)
    # Not in the cache: the path of a socket may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="lab-") as name:
        directory = Path(name)
        arguments = _arguments(found, made, directory, boot)
        try:
            # One boot in some fifty hangs in emulation before the kernel says a word.
            machine = _booted(arguments, directory, found, _READY / 2)
        except TooSlow as error:
            say(f"WARNING: {error} It is booted once more.")
            machine = _booted(arguments, directory, found, _READY)
        with ExitStack() as ends:
            ends.push(machine)
            guest = Running(found, made, machine, directory)
            ends.callback(guest.close)
            yield guest


def _booted(arguments: list[str], directory: Path, kernel: Kernel, seconds: float) -> Machine:
    """Return a guest that takes commands, or keep its console and say where."""
    console = directory / "console.log"
    with (
        qemu.keeping(console, f"running-{kernel.name}", f"Debian on {kernel.release}"),
        ExitStack() as ends,
    ):
        machine = ends.enter_context(Machine(kernel.architecture, arguments, console, seconds))
        machine.phase("ready")
        machine.extend(_DAY)
        ends.pop_all()
    return machine
