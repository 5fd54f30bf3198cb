# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps, from the cache or freshly made, and guests that keep running."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from . import host, image, qemu, truth
from .debian import headers, store
from .debian.store import Kernel
from .host import LabError, say
from .qemu import THROTTLED, Lost, Machine
from .scenario import Disk, Scenario, load, scenarios
from .truth.vmcoreinfo import add_vmcoreinfo

# To be raised when the lab itself changes what ends up in a dump.
_EDITION = 3

_MIB = 1 << 20


def symbols(debug: Iterable[Path]) -> list[str]:
    """Return the options of a command that name debug information."""
    return [word for path in debug for word in ("-s", str(path))]


@dataclass(frozen=True)
class Dump:
    """One kernel's memory after one scenario, with what the kernel counted then."""

    kernel: str
    scenario: str
    release: str
    path: Path
    vmlinux: Path
    debug: list[Path]
    """The kernel's and its modules' debug information, for ``load_debug_info()``."""
    formats: dict[str, Path]
    """The same memory in every format asked for: ``elf``, ``kdump-elf``, ``kdump-lzo``, …"""
    seconds: float
    """How long it took to make."""

    @property
    def like(self) -> str:
        """The kernel of amd64 that has the same scenarios: this one, or one of its series."""
        return store.like(self.kernel)

    @property
    def core(self) -> Path:
        """The dump in its first format."""
        return next(iter(self.formats.values()))

    @property
    def arguments(self) -> list[str]:
        """The arguments of a command that reads it: its name, and ``-s`` with the debug info."""
        return [str(self.core), *symbols(self.debug)]

    @functools.cached_property
    def truth(self) -> dict[str, str]:
        """What the guest reported, by name; bytes that are not UTF-8 are surrogates."""
        return truth.read(self.path / "truth.json")


@dataclass(frozen=True)
class Live:
    """A guest that is running, and changes while one looks at it."""

    release: str
    qmp: Path
    """QEMU's socket, for ``drgn.Program.set_qemu_qmp()``."""
    vmlinux: Path
    debug: list[Path]
    machine: Machine
    console: Path
    """What the guest writes to its console, while it runs."""

    def stop(self) -> None:
        """Halt the guest: until :meth:`resume`, nothing in its memory changes."""
        self.machine.command("stop")

    def resume(self) -> None:
        self.machine.command("cont")


def shared_kernel(name: str, *, refresh: bool = False) -> Kernel:
    return store.kernel(name, {*_modules(name)}, refresh=refresh)


@functools.cache
def _modules(kernel: str) -> frozenset[str]:
    """The modules of all scenarios, which take 0.15 s to read: tests ask hundreds of times."""
    return frozenset(module for each in scenarios() for module in load(each, kernel).modules)


def _arguments(kernel: Kernel, case: Scenario) -> list[str]:
    """QEMU's arguments, but for those that name files."""
    command_line = f"{kernel.architecture.console} {image.COMMAND_LINE}"
    if case.disk:
        command_line += f" {image.DISK_COMMAND_LINE}"
    if case.boot:
        command_line += f" {case.boot}"
    if image.crashes(case):
        command_line += f" crashkernel={image.CRASH_MEMORY}M"
    arguments = [
        *qemu.emulated(kernel.architecture, kernel.cpu),
        *("-smp", str(case.cpus), "-m", f"{case.memory}M"),
        # Through it the kernel says where its VMCOREINFO is, which the dump needs.
        *(("-device", "vmcoreinfo") if kernel.architecture.has_vmcoreinfo else ()),
        *("-append", command_line),
    ]
    for node in range(kernel.nodes) if kernel.nodes > 1 else ():
        first, last = (each * case.cpus // kernel.nodes for each in (node, node + 1))
        size = case.memory // kernel.nodes
        arguments += [
            *("-object", f"memory-backend-ram,id=memory{node},size={size}M"),
            *("-numa", f"node,nodeid={node},cpus={first}-{last - 1},memdev=memory{node}"),
        ]
    return arguments


def _key(kernel: Kernel, case: Scenario) -> str:
    digest = hashlib.sha256()
    for part in (_EDITION, kernel.release, kernel.version, case.formats, _arguments(kernel, case)):
        digest.update(repr(part).encode())
    for step in image.guest_steps(kernel, case):
        digest.update(step.line().encode())
    if case.disk:
        digest.update(repr(_disks(case.disk, Path())).encode())
    ours = kernel.architecture.headers
    for path in [*image.guest_sources(), *ours, *image.program_sources(case, kernel.machine)]:
        digest.update(path.name.encode() + path.read_bytes())
    for name in sorted(headers.names() & set(case.modules)):
        digest.update(headers.source(name).read_bytes())
    return digest.hexdigest()[:12]


def _path(kernel: Kernel, case: Scenario) -> Path:
    return host.cache() / "dumps" / f"{case.name}-{kernel.name}-{_key(kernel, case)}"


def _debug(kernel: Kernel, case: Scenario) -> list[Path]:
    modules = kernel.closure(image.modules(case))
    return [kernel.vmlinux, *(path for name in modules if (path := kernel.debug(name)).exists())]


def _open(kernel: Kernel, case: Scenario, path: Path) -> Dump:
    return Dump(
        kernel=kernel.name,
        scenario=case.name,
        release=kernel.release,
        path=path,
        vmlinux=kernel.vmlinux,
        debug=_debug(kernel, case),
        formats={name: path / f"vmcore.{name}" for name in case.formats},
        seconds=float((path / "seconds").read_text()),
    )


def cached(kernel_name: str, scenario_name: str) -> bool:
    if not store.stored(kernel_name):
        return False
    return _path(shared_kernel(kernel_name), load(scenario_name, kernel_name)).is_dir()


def build(kernel: str, scenario: str) -> Dump:
    """The dump of ``kernel`` after ``scenario``; made now unless the cache has it."""
    found, case = shared_kernel(kernel), load(scenario, kernel)
    path = _path(found, case)
    if not path.is_dir():
        host.install_packages()
        with host.locked(path.name):
            # Another build may just have made it.
            if not path.is_dir():
                try:
                    # One boot in some fifty hangs in emulation before the kernel says a word, and
                    # one in some hundred stops at a breakpoint that the kernel sets in itself
                    # where it patches its code: the emulator misses that it is gone again.
                    _attempt(found, case, path, case.time_limit / 2)
                except Lost as error:
                    say(f"WARNING: {error} It is booted once more.")
                    _attempt(found, case, path, case.time_limit)
    return _open(found, case, path)


def _attempt(found: Kernel, case: Scenario, path: Path, seconds: float) -> None:
    """Make a dump in ``path``, or raise what the guest did instead."""
    with host.new_directory(path) as directory:
        start = time.monotonic()
        say(f"{case.name} on {found.release}: booting")
        _make(found, case, directory, seconds)
        (directory / "seconds").write_text(f"{time.monotonic() - start:.1f}\n")
        say(f"{case.name} on {found.release}: done")


@contextmanager
def _boot(
    kernel: Kernel,
    case: Scenario,
    directory: Path,
    more: list[str],
    seconds: float,
    begin: datetime | None = None,
) -> Iterator[Machine]:
    """Boot a guest; if it fails, keep its console and say where."""
    initrd = image.build_image(kernel, case, directory)
    console = directory / "console.log"
    files = ["-kernel", str(kernel.image), "-initrd", str(initrd)]
    arguments = [*_arguments(kernel, case), *files, *more]
    if begin is not None:
        arguments = qemu.simulated(arguments, begin)
    what = f"{case.name} on {kernel.release}"
    with (
        qemu.keeping(console, f"{case.name}-{kernel.name}", what),
        Machine(kernel.architecture, arguments, console, seconds) as machine,
    ):
        yield machine


def _make(kernel: Kernel, case: Scenario, directory: Path, seconds: float) -> None:
    disks = _disks(case.disk, directory) if case.disk else []
    if case.disk:
        _make_disk(directory / _DISK, case.disk.size)
        _make_disk(directory / _TRACE_DISK, _TRACE_MIB)
    if image.crashes(case):
        for number, name in enumerate(image.CRASH_DISKS):
            disk = directory / f"vmcore.{name}"
            _make_disk(disk, case.memory + 64)
            disks += [
                *("-drive", f"file={disk},format=raw,if=none,id=disk{number},cache=unsafe"),
                *("-device", f"virtio-blk-pci,drive=disk{number}"),
            ]
    with _boot(kernel, case, directory, disks, seconds) as machine:
        reports = machine.phase("before")
        if case.disk:
            reports |= _without_repeats(machine.phase(image.LAST))
        machine.command("stop")
        if "elf" in case.formats:
            machine.dump(directory / "vmcore.elf")
        machine.command("cont")
        machine.resume()
        if image.crashes(case):
            dumped = machine.phase("dumped")["notes"]
        else:
            reports |= machine.phase("after")
            for trial in case.trials:
                reports |= _without_repeats(machine.phase(trial.name))
    if place := reports.get(image.VMCOREINFO):
        add_vmcoreinfo(directory / "vmcore.elf", place)
    if image.crashes(case):
        _trim(case, directory, dumped)
    if case.disk:
        _keep_traces(directory)
    (directory / "initrd").unlink()
    (directory / "init").unlink()
    truth.write(directory / "truth.json", reports)


def _without_repeats(reports: dict[str, str]) -> dict[str, str]:
    """Leave out what the guest's program reads again after every dump: that keeps its value."""
    return {name: text for name, text in reports.items() if ".after" not in name}


_DISK, _TRACE_DISK, _TRACE_MIB = "disk", "traces.tar", 256


def _disks(disk: Disk, directory: Path) -> list[str]:
    """QEMU's arguments for a guest's disk, and for the one on which it leaves traces."""
    queues = f"num-queues={disk.queues},queue-size={disk.depth}"
    return [
        *("-drive", f"file={directory / _DISK},format=raw,if=none,id={THROTTLED},cache=unsafe"),
        *("-device", f"virtio-blk-pci,drive={THROTTLED},{queues}"),
        *("-drive", f"file={directory / _TRACE_DISK},format=raw,if=none,id=traces,cache=unsafe"),
        *("-device", "virtio-blk-pci,drive=traces"),
    ]


def _make_disk(path: Path, mebibytes: int) -> None:
    path.touch()
    os.truncate(path, mebibytes * _MIB)


def _keep_traces(directory: Path) -> None:
    """Unpack what the guest left as ``traces/``, and remove its disks."""
    (directory / _DISK).unlink()
    (directory / "traces").mkdir()
    host.run(["tar", "-xf", _TRACE_DISK, "-C", "traces"], cwd=directory)
    (directory / _TRACE_DISK).unlink()


def _trim(case: Scenario, directory: Path, notes: str) -> None:
    """Cut the crash kernel's disks down to the dumps on them."""
    copied = {note["device"]: note["bytes"] for note in json.loads(f"[{notes}]") if "bytes" in note}
    for name, device in image.CRASH_DISKS.items():
        disk = directory / f"vmcore.{name}"
        if name not in case.formats:
            disk.unlink()
            continue
        # A compressed page may itself end in zeros: an lzo stream always does.
        os.truncate(disk, copied.get(device) or _last_byte(disk) + _ZEROS)


_ZEROS = 4096


def _last_byte(path: Path) -> int:
    with path.open("rb") as file:
        end = path.stat().st_size
        while end > 0:
            start = max(end - _MIB, 0)
            file.seek(start)
            if data := file.read(end - start).rstrip(b"\0"):
                return start + len(data)
            end = start
    raise LabError(f"{path.name} is empty.")


@contextmanager
def live(kernel: str, scenario: str, begin: datetime | None = None) -> Iterator[Live]:
    """A guest in which ``scenario`` runs on, until the context ends.

    :param begin: the start of a simulated clock, in UTC, that skips idle time; the guest is then
        in the midst of its steps
    """
    found, case = shared_kernel(kernel), load(scenario, kernel)
    host.install_packages()
    # Not in the cache: the path of a socket may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="lab-") as name:
        directory = Path(name)
        qmp = directory / "qmp"
        more = ["-qmp", f"unix:{qmp},server=on,wait=off"]
        with _boot(found, case, directory, more, case.time_limit, begin) as machine:
            if begin is None:
                machine.phase("before")
            yield Live(
                release=found.release,
                qmp=qmp,
                vmlinux=found.vmlinux,
                debug=_debug(found, case),
                machine=machine,
                console=directory / "console.log",
            )
            machine.check()


def in_use() -> set[Path]:
    """The directories of the cache that the kernels and scenarios of today refer to."""
    used: set[Path] = set()
    for name in store.kernels(every=True):
        if store.stored(name):
            kernel = shared_kernel(name)
            used.add(kernel.path)
            used |= {_path(kernel, load(each, name)) for each in scenarios()}
    return used
