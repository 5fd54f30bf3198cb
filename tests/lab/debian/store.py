# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernels: which there are, and how to get one with its debug information."""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO

from .. import host
from ..host import LabError, say
from . import compiled, headers, mirror
from .machines import AMD64, Architecture, architecture

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HERE = Path(__file__).parent

# Fetched for every kernel, so that most new scenarios need no new download.
_MODULES = {
    *("qemu_fw_cfg", "virtio_pci", "virtio_blk", "virtio_scsi", "sd_mod", "scsi_debug"),
    *("brd", "loop", "null_blk", "dm_mod", "dm_delay", "dm_flakey", "dm_snapshot"),
    *("dm_mirror", "dm_cache", "dm_writecache"),
    *("dm_multipath", "dm_round_robin", "dm_queue_length", "dm_zero", "md_mod", "raid1", "raid10"),
    *("dm_thin_pool", "bfq", "kyber_iosched", "mq_deadline", "xfs", "overlay", "fuse", "nbd"),
    *("nfs", "nfsv3", "nfsv4", "nfsd", "rpcsec_gss_krb5", "cifs", "iscsi_tcp", "iscsi_target_mod"),
    *("target_core_mod", "target_core_file", "target_core_iblock", "tcm_loop", "btrfs", "zram"),
    # Of the guests that boot from a disk, and what such a kernel loads by itself.
    *("ext4", "crc32c_generic", "virtio_net", "virtio_rng", "libcrc32c"),
}

_SOFT_DEPENDENCIES = {"libcrc32c": ["crc32c_generic"]}
"""What a module needs, without the symbols of it, where that is not built in."""

_PAGES = ("16k", "64k")
"""Flavours that stand behind the architecture in a release: they differ in the page size."""

_USUAL = "cloud"
"""Debian's flavour of kernels that every scenario has."""


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel."""

    name: str
    release: str
    version: str
    """The version of the Debian package."""
    suite: str
    nodes: int
    path: Path
    machine: str = AMD64
    """Debian's name of its architecture."""
    cpu: str = ""
    """QEMU's name of the CPU; by default that of the architecture."""

    @property
    def architecture(self) -> Architecture:
        return architecture(self.machine)

    @property
    def vmlinux(self) -> Path:
        """The kernel with its debug information."""
        return self.path / "vmlinux"

    @property
    def image(self) -> Path:
        return self.path / "vmlinuz"

    def module(self, name: str) -> Path | None:
        """The file of a loadable module; nothing if it is built in or does not exist."""
        if name in headers.names():
            return headers.module(name, self.suite, self.release, self.version)
        path = self.path / "modules" / f"{name}.ko"
        return path if path.exists() else None

    def debug(self, name: str) -> Path:
        """A module's debug information."""
        built = self.module(name) if name in headers.names() else None
        return built or self.path / "debug" / f"{name}.ko"

    def closure(self, names: Iterable[str]) -> list[str]:
        """The loadable modules among ``names`` with all they depend on, in loading order."""
        order: dict[str, None] = {}

        def add(name: str) -> None:
            if name not in order and (path := self.module(name)):
                for other in [*_dependencies(path.read_bytes()), *_SOFT_DEPENDENCIES.get(name, ())]:
                    add(other)
                order[name] = None

        for name in names:
            add(name.replace("-", "_"))
        return list(order)


@dataclass(frozen=True)
class _Wanted:
    name: str
    suite: str
    series: str
    nodes: int = 1
    flavor: str = _USUAL
    machine: str = AMD64
    cpu: str = ""
    like: str = ""
    scenarios: list[str] = field(default_factory=list)

    @property
    def is_usual(self) -> bool:
        return (self.flavor, self.machine) == (_USUAL, AMD64)

    @property
    def ending(self) -> str:
        """How the name of its release ends."""
        machine = architecture(self.machine).flavor or self.machine
        parts = [machine, self.flavor] if self.flavor in _PAGES else [self.flavor, machine]
        return "-".join(filter(None, parts))


@cache
def _declared() -> dict[str, _Wanted]:
    data = tomllib.loads((_HERE / "kernels.toml").read_text())
    return {name: _Wanted(name, **entry) for name, entry in data.items()}


def kernels(*, every: bool = False) -> list[str]:
    """The names of the kernels, oldest first.

    :param every: include those of other flavours, which few scenarios have, and other machines
    """
    return [name for name, each in _declared().items() if every or each.is_usual]


def is_compiled(name: str) -> bool:
    """Return whether the lab compiles a kernel itself: modules of ours have no headers of it."""
    return compiled.recipe(_declared()[name].machine, _declared()[name].flavor).exists()


def like(name: str) -> str:
    """The kernel whose scenarios this one has: itself, or the one of this machine's like it."""
    return _declared()[name].like or name


def alike(name: str) -> list[str]:
    """The kernels of other architectures that have the scenarios of this one."""
    return [other.name for other in _declared().values() if other.like == name]


def usual_scenarios(name: str) -> list[str] | None:
    """What is dumped of a kernel without being named; nothing if the scenarios say that."""
    wanted = _declared()[name]
    return wanted.scenarios if wanted.like else None


def stored(name: str) -> bool:
    """Whether the cache has some version of this kernel."""
    return (host.cache() / "kernels" / f"{name}.json").exists()


def _dependencies(module: bytes) -> list[str]:
    match = re.search(rb"\0depends=([^\0]*)\0", module)
    names = match[1].decode() if match else ""
    return [name.replace("-", "_") for name in names.split(",") if name]


def _stored(wanted: _Wanted, pointer: Path, modules: list[str]) -> Kernel | None:
    try:
        data = json.loads(pointer.read_text())
    except (OSError, ValueError):
        return None
    path = pointer.parent / data["directory"]
    if data["modules"] != modules or data["suite"] != wanted.suite or not path.is_dir():
        return None
    return _kernel(wanted, data["release"], data["version"], path)


def _kernel(wanted: _Wanted, release: str, version: str, path: Path) -> Kernel:
    suite, nodes, machine, cpu = wanted.suite, wanted.nodes, wanted.machine, wanted.cpu
    return Kernel(wanted.name, release, version, suite, nodes, path, machine, cpu)


def kernel(name: str, modules: Iterable[str] = (), *, refresh: bool = False) -> Kernel:
    """The kernel ``name`` with (at least) these modules, fetched unless it is in the cache.

    ``refresh`` looks whether the suite has a newer one by now.
    """
    wanted = _declared().get(name)
    if not wanted:
        raise LabError(f"unknown kernel {name!r} (choose from {', '.join(_declared())})")
    all_modules = sorted(
        {*_MODULES, *(module.replace("-", "_") for module in modules)} - headers.names()
    )
    pointer = host.cache() / "kernels" / f"{name}.json"
    if not refresh and (stored := _stored(wanted, pointer, all_modules)):
        return stored
    with host.locked(f"kernel-{name}"):
        # Another build may just have fetched it.
        if not refresh and (stored := _stored(wanted, pointer, all_modules)):
            return stored
        host.install_packages()
        release, version, directory = _fetch(wanted, all_modules)
        found = {"release": release, "version": version, "directory": directory.name}
        kept = {**found, "suite": wanted.suite, "modules": all_modules}
        pointer.with_suffix(".new").write_text(json.dumps(kept))
        pointer.with_suffix(".new").replace(pointer)
    return _kernel(wanted, release, version, directory)


def _fetch(wanted: _Wanted, modules: list[str]) -> tuple[str, str, Path]:
    say(f"kernel {wanted.name}: looking into {wanted.suite}")
    suite = mirror.Suite(wanted.suite, wanted.machine)
    script = compiled.recipe(wanted.machine, wanted.flavor)
    if script.exists():
        return compiled.compiled(wanted.name, suite, wanted.series, script)
    suite.update()
    versions = suite.packages("linux-")
    pattern = re.compile(rf"linux-image-(\d+\.\d+\.\d+\S*-{wanted.ending})-dbg")
    releases = [match[1] for name in versions if (match := pattern.fullmatch(name))]
    if not releases:
        raise LabError(f"{wanted.suite} has no {wanted.flavor} kernel with debug information.")
    series = [r for r in releases if r.startswith(f"{wanted.series}.")]
    if not series:
        say(f"WARNING: {wanted.suite} has no {wanted.series} kernel any more, taking its newest")
    candidates = sorted(
        series or releases,
        key=lambda release: mirror.by_version(versions[f"linux-image-{release}-dbg"]),
        reverse=True,
    )
    reason: LabError | None = None
    for release in candidates:
        version = versions[f"linux-image-{release}-dbg"]
        key = hashlib.sha256("\n".join([release, version, *modules]).encode()).hexdigest()[:12]
        final = host.cache() / "kernels" / f"{wanted.name}-{key}"
        if final.is_dir():
            return release, version, final
        try:
            with host.new_directory(final) as directory:
                _unpack(suite, versions, release, modules, directory)
        except LabError as error:
            # Package lists outlive the packages in the pool.
            say(f"WARNING: cannot get {release}: {error}")
            reason = error
        else:
            return release, version, final
    raise LabError(f"Cannot get any kernel {wanted.name} from {wanted.suite}: {reason}")


def _unpack(
    suite: mirror.Suite, versions: dict[str, str], release: str, modules: list[str], directory: Path
) -> None:
    """Keep what the lab needs of a kernel's packages."""
    kinds = ("image-{}-dbg", "image-{}", "binary-unsigned-{}", "modules-{}")
    names = (f"linux-{kind.format(release)}" for kind in kinds)
    packages = [name for name in names if name in versions]
    say(f"kernel {release}: downloading")
    debug, *rest = suite.download(packages, directory)
    say(f"kernel {release}: unpacking")
    loadable: dict[str, bytes] = {}
    for package in rest:
        with mirror.contents(package) as files:
            for name, stream in files:
                base = name.rpartition("/")[2]
                if base.startswith(("vmlinuz", "vmlinux")):
                    (directory / "vmlinuz").write_bytes(stream.read())
                elif match := re.fullmatch(r"(.+)\.ko(\.xz)?", base):
                    loadable[match[1].replace("-", "_")] = stream.read()
        package.unlink()
    kept = _keep_modules(loadable, modules, directory / "modules")
    (directory / "debug").mkdir()
    with mirror.contents(debug) as files:
        for name, stream in files:
            base = name.rpartition("/")[2]
            if base in ("vmlinux", f"vmlinux-{release}"):
                _save(stream, directory / "vmlinux")
            elif match := re.fullmatch(r"(.+)\.ko(?:\.debug)?", base):
                module = match[1].replace("-", "_")
                if module in kept:
                    _save(stream, directory / "debug" / f"{module}.ko")
    debug.unlink()
    for file in ("vmlinux", "vmlinuz"):
        if not (directory / file).exists():
            raise LabError(f"the packages of {release} hold no {file}")


def _keep_modules(loadable: dict[str, bytes], wanted: list[str], directory: Path) -> set[str]:
    directory.mkdir()
    kept: set[str] = set()
    todo = [name for name in wanted if name in loadable]
    while todo:
        name = todo.pop()
        if name in kept:
            continue
        kept.add(name)
        module = loadable[name]
        if not module.startswith(b"\x7fELF"):
            module = lzma.decompress(module)
        (directory / f"{name}.ko").write_bytes(module)
        todo += [other for other in _dependencies(module) if other in loadable]
    return kept


def _save(stream: IO[bytes], path: Path) -> None:
    with path.open("wb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
