# SPDX-License-Identifier: LGPL-2.1-or-later
"""Scenarios: small TOML files, compiled to the list of steps that a guest executes.

A scenario says what to create; README.md has the vocabulary. Every ``do`` of a scenario is
one entry of ``_verbs``, or one function marked with ``@_verb``, that turns its table into steps.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .debian.headers import names as our_modules
from .debian.store import alike, is_compiled, kernels, like, usual_scenarios
from .host import LabError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_DIRECTORY = Path(__file__).parent / "scenarios"

FORMATS = ("elf", "kdump-elf", "kdump-lzo", "kdump-zlib")

MKFS_OPTIONS = "/mkfs.conf"
"""Where a guest finds the XFS features that its kernel knows."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Step:
    """One line of the guest's list."""

    verb: str
    arguments: tuple[str, ...] = ()
    cpu: int = -1

    def line(self) -> str:
        quoted = (re.sub(r"[\t\n]", lambda c: f"%{ord(c[0]):02x}", a) for a in self.arguments)
        return "\t".join([self.verb, str(self.cpu), *quoted]) + "\n"


@dataclass(frozen=True)
class Trial:
    """What a guest tries once it is dumped, and reads afterwards."""

    name: str
    steps: tuple[Step, ...]
    records: tuple[tuple[str, str], ...]
    """Files to read afterwards, besides those of every trial: names and paths."""


@dataclass(frozen=True)
class Disk:
    """A disk for the guest, /dev/vda, whose speed QEMU limits when a step asks for it."""

    size: int
    """MiB."""
    queues: int
    """Hardware queues."""
    depth: int
    """Requests that each of them takes, a power of two."""


@dataclass(frozen=True)
class Scenario:
    """A scenario as one kernel runs it."""

    name: str
    memory: int
    """MiB."""
    cpus: int
    formats: tuple[str, ...]
    time_limit: int
    """Seconds that a guest may take, until it is dumped."""
    settle: int
    """Seconds without work before the counters are read."""
    live: bool
    """Meant for :func:`live`, not for a dump."""
    on_request: bool
    """Dumped only when it is named."""
    modules: tuple[str, ...]
    steps: tuple[Step, ...]
    records: tuple[tuple[str, str], ...] = field(default=())
    """More files for the ground truth: names and paths."""
    trials: tuple[Trial, ...] = field(default=())
    """In order; each starts where the one before it ended."""
    programs: tuple[str, ...] = field(default=())
    """Programs of this machine, and of ``guest/programs``, that the scenario's commands use."""
    disk: Disk | None = None
    boot: str = ""
    """More parameters for the kernel's command line."""
    folds_counters: bool = True
    """Whether every CPU adds the counters that it keeps for itself to those of /proc/vmstat."""


class _Table:
    """The entries of one TOML table, each read once; unread ones are mistakes."""

    def __init__(self, entries: dict[str, Any], where: str) -> None:
        self._entries = dict(entries)
        self.where = where

    def get(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        value = self._entries.pop(key, default)
        if value is None:
            raise LabError(f"{self.where}: {key} is missing.")
        if not isinstance(value, kind):
            raise LabError(f"{self.where}: {key} is no {kind.__name__}.")
        return value

    def tables(self, key: str) -> list[_Table]:
        entries = self.get(key, list, [])
        return [_Table(each, f"{self.where}, {key} {i}") for i, each in enumerate(entries, 1)]

    def end(self) -> None:
        if self._entries:
            raise LabError(f"{self.where}: unknown {', '.join(sorted(self._entries))}.")


@dataclass
class _Context:
    """What the verbs of a scenario have in common while it is compiled."""

    cpus: int
    modules: dict[str, None] = field(default_factory=dict)
    records: dict[str, str] = field(default_factory=dict)
    programs: dict[str, None] = field(default_factory=dict)
    index: int = 0
    """What ``{i}`` becomes: the number of the enclosing repetition."""
    on_cpu: int = -1

    def text(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            return str(self.index % int(match[1]) if match[1] else self.index)

        return re.sub(r"\{i(?:%(\d+))?\}", value, text)


_Verb = Callable[[_Table, _Context], Iterable[Step]]
_verbs: dict[str, _Verb] = {}


def _verb(function: _Verb) -> _Verb:
    name = getattr(function, "__name__", "").strip("_").replace("_", "-")
    _verbs[name] = function
    return function


@_verb
def _ramdisks(table: _Table, context: _Context) -> Iterator[Step]:
    count, size = table.get("count", int), table.get("size", int)
    context.modules["brd"] = None
    yield Step("module", ("/modules/brd.ko", f"rd_nr={count} rd_size={size << 10}"))


@_verb
def _module(table: _Table, context: _Context) -> Iterator[Step]:
    name = table.get("name", str)
    context.modules[name] = None
    yield Step("module", (f"/modules/{name}.ko", table.get("parameters", str, "")))


@_verb
def _xfs(table: _Table, context: _Context) -> Iterator[Step]:
    device, path = table.get("device", str), context.text(table.get("path", str))
    context.modules["xfs"] = None
    # The smallest log, because a RAM disk keeps every block that mkfs writes.
    yield Step(
        "run",
        ("/bin/mkfs.xfs", "-q", "-f", "-l", "size=10m", "-c", f"options={MKFS_OPTIONS}", device),
    )
    # Its background work, such as forgetting deleted inodes, is done within a second.
    yield Step("write", ("/proc/sys/fs/xfs/xfssyncd_centisecs", "100"))
    yield Step("mount", ("xfs", device, path, ""))


@_verb
def _ext4(table: _Table, context: _Context) -> Iterator[Step]:
    context.modules["ext4"] = None
    device, path = table.get("device", str), context.text(table.get("path", str))
    # All is on the disk: nothing is initialized later, or known to be empty without a look at it.
    features = "^metadata_csum,^uninit_bg,^resize_inode"
    options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
    yield Step("run", ("/bin/mkfs.ext4", "-q", "-F", "-O", features, "-E", options, device))
    yield Step("mount", ("ext4", device, path, "commit=100000"))


@_verb
def _tmpfs(table: _Table, context: _Context) -> Iterator[Step]:
    path, count = table.get("path", str), table.get("count", int, 1)
    for context.index in range(count):
        yield Step("mount", ("tmpfs", "tmpfs", context.text(path), ""))


_Key = tuple[str, type[Any]] | tuple[str, type[Any], Any]
"""A key of a table, its type and, unless it must be there, its default."""

_NAMES: tuple[_Key, ...] = (("in", str), ("name", str), ("first", int, 0), ("count", int, 1))


def _arguments(table: _Table, context: _Context, *keys: _Key) -> tuple[str, ...]:
    return tuple(context.text(str(table.get(*key))) for key in keys)


def _simple(verb: str, *keys: _Key, on_any_cpu: bool = False) -> _Verb:
    """Return what makes one step of a table, with the values of some keys."""

    def compiled(table: _Table, context: _Context) -> Iterator[Step]:
        arguments = _arguments(table, context, *keys)
        yield Step(verb, arguments, -1 if on_any_cpu else context.on_cpu)

    return compiled


_verbs |= {
    "churn": _simple("churn", ("in", str), on_any_cpu=True),
    "device-write": _simple(
        "device-write", ("device", str), ("count", int), ("stride", int), on_any_cpu=True
    ),
    "directory": _simple("mkdir", ("path", str)),
    "missing": _simple("missing", *_NAMES),
    "pipes": _simple("pipes", ("count", int), ("size", int, 1)),
    "remove": _simple("remove", *_NAMES, ("keep-one-in", int, 0)),
    "sleep": _simple("sleep", ("ms", int), on_any_cpu=True),
    "sockets": _simple("sockets", ("pairs", int)),
    "sync": _simple("syncfs", ("path", str), on_any_cpu=True),
    "watch": _simple("watch", ("path", str), on_any_cpu=True),
    "write": _simple("write", ("path", str), ("text", str), on_any_cpu=True),
}


@_verb
def _files(table: _Table, context: _Context) -> Iterator[Step]:
    names = _arguments(table, context, *_NAMES)
    yield Step("files", (*names, str(table.get("size", int, 8))), context.on_cpu)
    if table.get("open", bool, False):
        yield Step("hold", names, context.on_cpu)


@_verb
def _anonymous(table: _Table, context: _Context) -> Iterator[Step]:
    yield Step("anon", (str(table.get("size", int) << 20),), context.on_cpu)


@_verb
def _memcgs(table: _Table, context: _Context) -> Iterator[Step]:
    names = table.get("names", list, [])
    if not names:
        names = [table.get("name", str)] * table.get("count", int)
    dying = table.get("dying", bool, False)
    idle = table.get("idle", bool, False)
    recorded = table.get("record", int, 0)
    inside = table.get("inside", list)
    for context.index, name in enumerate(names):
        context.on_cpu = context.index % context.cpus
        path = context.text(name)
        yield Step("enter", (path,), context.on_cpu)
        yield from _compile(
            [_Table(each, f"{table.where}, inside {i}") for i, each in enumerate(inside, 1)],
            context,
        )
        yield Step("leave", ("exit" if dying or idle else "stay",))
        if dying:
            yield Step("rmcgroup", (path,))
        if context.index < recorded:
            for file in ("memory.stat", "memory.numa_stat", "cgroup.stat"):
                context.records[f"{file}:/{path}"] = f"/sys/fs/cgroup/{path}/{file}"
    context.on_cpu = -1


_QUEUE = "/sys/block/vda/queue"
_MODULES_OF_SCHEDULERS = {"kyber": "kyber_iosched"}

_TRACES, _PID = "/traces", "/blktrace.pid"
TRACE_DISK = "/dev/vdb"
"""Where a guest with a disk leaves its traces, as a tar archive."""

THROTTLE = "throttle "
"""What the name of a report starts with that asks the host for a limit, in requests a second."""

_MODULES_OF_TARGETS = {"thin": "thin_pool"}


@_verb
def _remove_memcgs(table: _Table, context: _Context) -> Iterator[Step]:
    name, first = table.get("name", str), table.get("first", int, 0)
    for context.index in range(first, first + table.get("count", int)):
        yield Step("rmcgroup", (context.text(name),))


@_verb
def _dm(table: _Table, context: _Context) -> Iterator[Step]:
    lines = table.get("table", str)
    context.modules["dm_mod"] = None
    for target in re.findall(r"^\s*\d+\s+\d+\s+(\w+)", lines, re.MULTILINE):
        # The first word of its name names the module, but for the thin pool.
        context.modules[f"dm_{_MODULES_OF_TARGETS.get(target, target)}"] = None
    yield Step(
        "run", ("/bin/dmsetup", "create", table.get("name", str), "--noudevsync", "--table", lines)
    )


@_verb
def _record_output(table: _Table, _context: _Context) -> Iterator[Step]:
    command = table.get("command", str).split()
    yield Step("record-output", (table.get("name", str), f"/bin/{command[0]}", *command[1:]))


@_verb
def _run(table: _Table, context: _Context) -> Iterator[Step]:
    context.programs |= dict.fromkeys(table.get("programs", list, []))
    yield Step("run", ("/bin/sh", "-c", table.get("command", str)), context.on_cpu)


@_verb
def _scheduler(table: _Table, context: _Context) -> Iterator[Step]:
    name = table.get("name", str)
    if name != "none":
        context.modules[_MODULES_OF_SCHEDULERS.get(name, name)] = None
    yield Step("write", (f"{_QUEUE}/scheduler", name))
    for path, value in table.get("settings", dict, {}).items():
        yield Step("write", (f"{_QUEUE}/{path}", str(value)))


@_verb
def _io_load(table: _Table, context: _Context) -> Iterator[Step]:
    context.programs["io-load"] = None
    role, path, count = table.get("role", str), table.get("path", str), table.get("count", int, 1)
    priority = table.get("priority", str, "").split()
    yield Step("run", ("/bin/io-load", role, context.text(path), str(count), *priority))


@_verb
def _await_sleepers(table: _Table, context: _Context) -> Iterator[Step]:
    context.programs["io-await"] = None
    count, seconds, limit = (
        table.get("count", int, 1),
        table.get("for", int),
        table.get("limit", int),
    )
    arguments = (table.get("in", str), *map(str, (count, seconds, limit)))
    yield Step("run", ("/bin/io-await", *arguments))


@_verb
def _throttle(table: _Table, _context: _Context) -> Iterator[Step]:
    yield Step("truth-again", (f"{THROTTLE}{table.get('iops', int)}",))
    yield Step("wait", ("idle",))


@_verb
def _trace_blocks(_table: _Table, context: _Context) -> Iterator[Step]:
    context.programs |= dict.fromkeys(("sh", "mv", "sleep", "tar", "blktrace"))
    yield Step("mkdir", (_TRACES,))
    command = f"blktrace -d /dev/vda -D {_TRACES} -o trace -b 512 -n 16 > {_TRACES}/log 2>&1"
    yield Step(
        "run",
        ("/bin/sh", "-c", f"PATH=/bin; ({command} & echo $! > {_PID}; wait; mv {_PID} /ended) &"),
    )


@_verb
def _keep_traces(_table: _Table, _context: _Context) -> Iterator[Step]:
    stop = f"read pid < {_PID}; kill -TERM $pid; until [ -e /ended ]; do sleep 0.2; done"
    yield Step("run", ("/bin/sh", "-c", f"PATH=/bin; {stop}"))
    yield Step("run", ("/bin/tar", "-cf", TRACE_DISK, "-C", _TRACES, "."))


@_verb
def _record_io(table: _Table, _context: _Context) -> Iterator[Step]:
    yield from io_records(table.get("name", str))


def io_records(name: str) -> Iterator[Step]:
    """Steps that add ``disks.NAME`` and ``tasks.NAME`` to the truth."""
    yield Step("record-output", (f"disks.{name}", "/bin/io-truth", "disks"))
    yield Step("record-output", (f"tasks.{name}", "/bin/io-truth", "tasks"))


@_verb
def _hung_tasks(table: _Table, _context: _Context) -> Iterator[Step]:
    knobs = {"timeout_secs": table.get("seconds", int), "warnings": table.get("warnings", int, 30)}
    for name, value in knobs.items():
        yield Step("write", (f"/proc/sys/kernel/hung_task_{name}", str(value)))


@_verb
def _record_waits(table: _Table, context: _Context) -> Iterator[Step]:
    context.programs["wait-truth"] = None
    name = table.get("name", str)
    for kind in ("log", "tasks"):
        # As a file, because outputs may have 256 KiB only.
        path = f"/{kind}.{name}"
        yield Step("run", ("/bin/sh", "-c", f"/bin/wait-truth {kind} > {path}"))
        yield Step("record-now", (f"waits.{kind}.{name}", path))


def _compile(tables: list[_Table], context: _Context) -> Iterator[Step]:
    for table in tables:
        do = table.get("do", str)
        if do not in _verbs:
            raise LabError(f"{table.where}: no such step as {do}.")
        yield from _verbs[do](table, context)
        table.end()


def _trials(table: _Table, context: _Context) -> Iterator[Trial]:
    for trial in table.tables("trial"):
        yield Trial(
            name=trial.get("name", str),
            steps=tuple(_compile(trial.tables("step"), context)),
            records=tuple((Path(path).name, path) for path in trial.get("record", list, [])),
        )
        trial.end()


def _disk(table: _Table, context: _Context) -> Disk | None:
    entries = table.get("disk", dict, {})
    if not entries:
        return None
    context.modules |= dict.fromkeys(("virtio_pci", "virtio_blk"))
    context.programs["io-truth"] = None
    inner = _Table(entries, f"{table.where}, disk")
    disk = Disk(inner.get("size", int), inner.get("queues", int, 1), inner.get("depth", int))
    inner.end()
    return disk


def _paths() -> dict[str, Path]:
    return {path.stem: path for path in _DIRECTORY.rglob("*.toml")}


def scenarios() -> list[str]:
    return sorted(_paths())


def _read(name: str) -> dict[str, Any]:
    if (path := _paths().get(name)) is None:
        raise LabError(f"unknown scenario {name!r} (choose from {', '.join(scenarios())})")
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"{path}: {error}.") from None


def kernels_of(name: str) -> list[str]:
    data = _read(name)
    wanted: list[str] = [*data.get("kernels", kernels()), *data.get("more-kernels", [])]
    without = data.get("without", [])
    if unknown := {*wanted, *without} - set(kernels(every=True)):
        raise LabError(f"{name}: unknown kernel {', '.join(sorted(unknown))}")
    wanted += [other for kernel in list(wanted) for other in alike(kernel)]
    if any(step.get("name") in our_modules() for step in data.get("step", [])):
        without = [*without, *filter(is_compiled, wanted)]
    return [kernel for kernel in wanted if kernel not in without]


def load(name: str, kernel: str) -> Scenario:
    """The scenario ``name`` as ``kernel`` runs it."""
    data = _read(name)
    for key in ("kernels", "more-kernels", "without"):
        data.pop(key, None)
    # What a table [kernel."X"] says holds for that kernel, and those of other machines like it.
    which = like(kernel)
    tables = data.pop("kernel", {})
    data |= tables.get(which, {}) | tables.get(kernel, {})
    if (usual := usual_scenarios(kernel)) is not None:
        data["on-request"] = name not in usual
    # And so does a step that names its kernels.
    steps = data.get("step", [])
    data["step"] = [step for step in steps if which in step.pop("kernels", [which])]
    trials = data.get("trial", [])
    data["trial"] = [trial for trial in trials if which in trial.pop("kernels", [which])]
    table = _Table(data, name)
    formats = tuple(table.get("formats", list, ["elf"]))
    if unknown := set(formats) - set(FORMATS):
        raise LabError(f"{name}: unknown format {', '.join(sorted(unknown))}")
    context = _Context(cpus=table.get("cpus", int, 2))
    for module in table.get("modules", list, []):
        context.modules[module] = None
    for path in table.get("record", list, []):
        context.records[Path(path).name] = path
    disk = _disk(table, context)
    steps = tuple(_compile(table.tables("step"), context))
    trials = tuple(_trials(table, context))
    scenario = Scenario(
        name=name,
        memory=table.get("memory", int),
        cpus=context.cpus,
        formats=formats,
        time_limit=table.get("time-limit", int, 240),
        settle=table.get("settle", int, 2),
        live=table.get("live", bool, False),
        on_request=table.get("on-request", bool, False),
        steps=steps,
        modules=tuple(context.modules),
        records=tuple(context.records.items()),
        trials=trials,
        programs=tuple(context.programs),
        disk=disk,
        boot=table.get("boot", str, ""),
        folds_counters=table.get("fold-counters", bool, True),
    )
    table.end()
    if disk and (scenario.live or set(formats) != {"elf"}):
        raise LabError(f"{name}: a guest with a disk has to be dumped from outside.")
    if trials and (scenario.live or set(formats) != {"elf"}):
        raise LabError(f"{name}: only a guest that is dumped from outside can go on with trials.")
    return scenario
