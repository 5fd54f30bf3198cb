# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a guest boots into: a root file system in memory, with one program of our own."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from . import host, scenario
from .architectures import AMD64, architecture
from .debian import programs
from .debian.store import Kernel
from .scenario import Scenario, Step, Trial

GUEST = Path(__file__).parent / "guest"

PROGRAMS = GUEST / "programs"
"""Programs for the commands of scenarios, one per file."""

COMMAND_LINE = "nowatchdog audit=0"
"""Boot parameters, after those that every kernel of an architecture has."""
DISK_COMMAND_LINE = "no_hash_pointers"
"""What a guest with a disk gets in addition, so that debugfs has the addresses of requests."""

_CRASH_COMMAND_LINE = "nr_cpus=1 reset_devices numa=off"

CRASH_MEMORY = 256
"""MiB set apart for the kernel that writes the dump."""

CRASH_DISKS = {"kdump-elf": "/dev/vda", "kdump-lzo": "/dev/vdb", "kdump-zlib": "/dev/vdc"}
"""The disks on which the crash kernel leaves its dumps."""

LAST = "last"
"""The report of a guest with a disk that follows the one before the dump."""

VMCOREINFO = "vmcoreinfo"
"""Where VMCOREINFO is, of a guest whose dump lacks it."""

_FOLD = Step("write", ("/proc/sys/vm/stat_refresh", "1"))

_LOAD_PROGRAMS = ("kexec", "grep", "sed", "mount", "umount")
"""What loads the crash kernel, where the guest's program cannot."""

_MAKEDUMPFILE = ("/bin/makedumpfile", "-f", "--message-level", "4", "-d", "31")

_NEW_XFS_FEATURES = {
    "metadata": ("bigtime", "inobtcount", "metadir"),
    "inode": ("nrext64", "exchange"),
    "naming": ("parent",),
}

# Read once, before anything happens.
_BOOT = ("meminfo", "vmstat", "slabinfo")

# Read when the workload has settled, in this order: the later, the more exact.
_RECORDS = {
    "mounts": "/proc/mounts",
    "modules": "/proc/modules",
    "cgroups": "/proc/cgroups",
    "cgroup.stat": "/sys/fs/cgroup/cgroup.stat",
    "memory.stat": "/sys/fs/cgroup/memory.stat",
    "buddyinfo": "/proc/buddyinfo",
    "pagetypeinfo": "/proc/pagetypeinfo",
    "zoneinfo": "/proc/zoneinfo",
    "vmstat": "/proc/vmstat",
    "meminfo": "/proc/meminfo",
}
_SLABINFO_READS, _SLABINFO_READS_AFTER = 5, 3
_LAST = {
    "file-nr": "/proc/sys/fs/file-nr",
    "inode-nr": "/proc/sys/fs/inode-nr",
    "dentry-state": "/proc/sys/fs/dentry-state",
}

# Read after each trial.
_TRIAL_RECORDS = {
    "slabinfo": "/proc/slabinfo",
    **{name: _RECORDS[name] for name in ("meminfo", "vmstat", "memory.stat", "cgroup.stat")},
    "dentry-state": _LAST["dentry-state"],
}


class Archive:
    """A cpio archive in the format that the kernel unpacks."""

    def __init__(self, machine: str = AMD64) -> None:
        self._machine = machine
        self._parts: list[bytes] = []
        self._names: set[str] = set()

    def add(self, name: str, content: bytes, mode: int = 0o100755) -> None:
        name = name.lstrip("/")
        parent = name.rpartition("/")[0]
        if parent and parent not in self._names:
            self.add(parent, b"", 0o040755)
        if name in self._names:
            return
        self._names.add(name)
        fields = [len(self._parts) + 1, mode, 0, 0, 1, 0, len(content)]
        fields += [0, 0, 0, 0, len(name) + 1, 0]
        header = b"070701" + b"".join(b"%08x" % value for value in fields)
        self._parts.append(_padded(header + name.encode() + b"\0") + _padded(content))

    def add_program(self, command: str) -> None:
        """A command of this machine with its libraries, or one of ``guest/programs``."""
        if source := source_of(command, self._machine):
            with tempfile.TemporaryDirectory(prefix="lab-") as directory:
                program = Path(directory) / command
                compile_program(program, source, machine=self._machine)
                self.add(f"bin/{command}", program.read_bytes())
            return
        if self._machine != AMD64:
            for name, file in programs.program(command, self._machine).items():
                self.add(name, file.read_bytes())
            return
        path = host.find(command)
        self.add(f"bin/{command}", Path(path).read_bytes())
        for library in re.findall(r"(/\S+) \(0x", host.run(["ldd", path])):
            self.add(library, Path(library).read_bytes())

    def content(self) -> bytes:
        self.add("TRAILER!!!", b"", 0)
        return b"".join(self._parts)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def source_of(name: str, machine: str = AMD64) -> Path | None:
    """The source of a program of ours; nothing for one of this machine."""
    for directory in (*architecture(machine).includes, PROGRAMS):
        if path := next(directory.rglob(f"{name}.c"), None):
            return path
    return None


def guest_sources() -> list[Path]:
    return sorted([*GUEST.glob("*.c"), *GUEST.glob("*.h")])


def compile_program(program: Path, *sources: Path, machine: str = AMD64) -> None:
    made_for = architecture(machine)
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-format-truncation", "-static"]
    flags += [f"-I{path}" for path in made_for.includes]
    host.run([f"{made_for.compiler}gcc", *flags, "-o", str(program), *map(str, sources)])


def program_sources(case: Scenario, machine: str = AMD64) -> list[Path]:
    """The sources of the programs of ours that a scenario's commands use, as `machine` has them.

    One for another machine includes the usual one.
    """
    found = {
        path: None
        for name in sorted(case.programs)
        for each in (AMD64, machine)
        if (path := source_of(name, each))
    }
    return list(found)


def _mounts() -> list[Step]:
    return [
        Step("mount", ("proc", "proc", "/proc", "")),
        Step("mount", ("sysfs", "sysfs", "/sys", "")),
        Step("mount", ("devtmpfs", "devtmpfs", "/dev", "")),
    ]


def _loads(kernel: Kernel, modules: Iterable[str], already: Iterable[str] = ()) -> list[Step]:
    return [
        Step("module", (f"/modules/{name}.ko", ""))
        for name in kernel.closure(modules)
        if name not in already
    ]


def modules(case: Scenario) -> list[str]:
    # Without it QEMU cannot tell what the dump says about the kernel.
    return ["qemu_fw_cfg", *case.modules]


def crashes(case: Scenario) -> bool:
    """Whether the guest dumps itself by way of a crash."""
    return any(name in CRASH_DISKS for name in case.formats)


def guest_steps(kernel: Kernel, case: Scenario) -> list[Step]:
    """All that a guest does, from boot to end."""
    boot = [Step("record-now", (f"{name}.boot", f"/proc/{name}")) for name in _BOOT]
    parameterized = {Path(s.arguments[0]).stem for s in case.steps if s.verb == "module"}
    nodes = "/sys/devices/system/node"
    node_records = {f"vmstat.node{n}": f"{nodes}/node{n}/vmstat" for n in range(kernel.nodes)}
    records = _RECORDS | node_records | dict(case.records)
    if not kernel.nodes:
        records = {name: path for name, path in records.items() if "numa" not in path}
    if not kernel.architecture.has_vmcoreinfo:
        records[VMCOREINFO] = "/sys/kernel/vmcoreinfo"
    steps = [
        *_mounts(),
        Step("mount", ("cgroup2", "cgroup2", "/sys/fs/cgroup", "")),
        Step("write", ("/sys/fs/cgroup/cgroup.subtree_control", "+memory")),
        *boot,
        *([Step("mount", ("debugfs", "debugfs", "/sys/kernel/debug", ""))] if case.disk else ()),
        *_loads(kernel, modules(case), parameterized),
    ]
    if crashes(case):
        steps += [_crash_load(kernel), Step("crash-prepare")]
    steps += [
        *case.steps,
        *([_FOLD] if case.folds_counters else ()),
        *(Step("record", (name, path, "1", "0")) for name, path in records.items()),
        Step(
            "record",
            ("slabinfo", "/proc/slabinfo", str(_SLABINFO_READS), str(_SLABINFO_READS_AFTER)),
        ),
        *(Step("record", (name, path, "1", "1")) for name, path in _LAST.items()),
        Step("truth", ("before", str(case.settle * 1000))),
        # Once more, as late as possible.
        *((*scenario.io_records("last"), Step("truth-again", (LAST,))) if case.disk else ()),
        Step("wait", ("idle" if case.live else "busy",)),
        Step("crash") if crashes(case) else Step("truth-again", ("after",)),
    ]
    for trial in case.trials:
        steps += _trial_steps(case, trial)
    return steps


def _crash_load(kernel: Kernel) -> Step:
    image, initrd = "/crash/vmlinuz", "/crash/initrd"
    command_line = f"{kernel.architecture.console} {_CRASH_COMMAND_LINE}"
    if kernel.machine == AMD64:
        return Step("crash-load", (image, initrd, command_line))
    # Debian's kernels of arm64 have no kexec_file_load() (CONFIG_KEXEC_FILE).
    load = f"kexec --load-panic {image} --initrd={initrd} --command-line='{command_line}'"
    load += " --no-checks"  # of the sums of both files, after the crash: they take minutes
    # kexec wants _text, 64 KiB before _stext; it is listed with CONFIG_KALLSYMS_ALL only.
    add = r"sed 's/^\(.*\)10000 T _stext$/\100000 T _text\n&/' /proc/kallsyms > /names"
    add += " && mount --bind /names /proc/kallsyms"
    with_names = f"{add} && {load} && umount /proc/kallsyms"
    script = f"if grep -q ' _text$' /proc/kallsyms; then {load}; else {with_names}; fi"
    return Step("run", ("/bin/sh", "-c", f"PATH=/bin; {script}"))


def _trial_steps(case: Scenario, trial: Trial) -> list[Step]:
    """Return the steps of a trial; those of its reads that matter have ``@`` in their names."""
    records = {**_TRIAL_RECORDS, **dict(trial.records)}
    return [
        *trial.steps,
        Step("sleep", (str(case.settle * 1000),)),
        *([_FOLD] if case.folds_counters else ()),
        *(Step("record-now", (f"{name}@{trial.name}", path)) for name, path in records.items()),
        Step("truth-again", (trial.name,)),
    ]


def _crash_steps(kernel: Kernel, case: Scenario) -> list[Step]:
    dumps = {
        "kdump-elf": Step("copy", ("/proc/vmcore", CRASH_DISKS["kdump-elf"])),
        "kdump-lzo": Step("run", (*_MAKEDUMPFILE, "-l", "/proc/vmcore", CRASH_DISKS["kdump-lzo"])),
        "kdump-zlib": Step(
            "run", (*_MAKEDUMPFILE, "-c", "/proc/vmcore", CRASH_DISKS["kdump-zlib"])
        ),
    }
    return [
        *_mounts(),
        *_loads(kernel, ["virtio_pci", "virtio_blk"]),
        Step("mkdir", ("/tmp",)),  # makedumpfile's scratch space
        *(dumps[name] for name in case.formats if name in dumps),
        Step("truth", ("dumped", "0")),
    ]


def _image(kernel: Kernel, program: Path, steps: list[Step]) -> Archive:
    image = Archive(kernel.machine)
    image.add("init", program.read_bytes())
    image.add("steps", "".join(step.line() for step in steps).encode(), 0o100644)
    for step in steps:
        if step.verb == "module":
            name = Path(step.arguments[0]).stem
            for module in kernel.closure([name]):
                path = kernel.module(module)
                if path:
                    image.add(f"modules/{module}.ko", path.read_bytes(), 0o100644)
        elif step.verb in ("run", "record-output"):
            command = step.arguments[0 if step.verb == "run" else 1]
            image.add_program(Path(command).name)
    return image


def _mkfs_options() -> bytes:
    """Without the features that this mkfs.xfs has and the oldest kernel has not."""
    usage = subprocess.run([host.find("mkfs.xfs")], capture_output=True, text=True, check=False)
    lines: list[str] = []
    for section, features in _NEW_XFS_FEATURES.items():
        lines.append(f"[{section}]")
        lines += [f"{name}=0" for name in features if f"{name}=" in usage.stdout + usage.stderr]
    return "\n".join([*lines, ""]).encode()


def build_image(kernel: Kernel, case: Scenario, directory: Path) -> Path:
    program = directory / "init"
    sources = [path for path in guest_sources() if path.suffix == ".c"]
    compile_program(program, *sources, machine=kernel.machine)
    image = _image(kernel, program, guest_steps(kernel, case))
    loads = _LOAD_PROGRAMS if crashes(case) and kernel.machine != AMD64 else ()
    for command in (*case.programs, *loads):
        image.add_program(command)
    image.add(scenario.MKFS_OPTIONS, _mkfs_options(), 0o100644)
    if crashes(case):
        crash = _image(kernel, program, _crash_steps(kernel, case))
        image.add("crash/vmlinuz", kernel.image.read_bytes(), 0o100644)
        image.add("crash/initrd", crash.content(), 0o100644)
    path = directory / "initrd"
    path.write_bytes(image.content())
    return path
