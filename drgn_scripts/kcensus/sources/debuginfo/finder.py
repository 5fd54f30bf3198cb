# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find debug info: the kernel's when a target is opened, a module's when an analysis needs it.

drgn searches by build ID and in the standard paths of distributions. This module also searches the
user's directories for a vmlinux at any path. Both ask debuginfod servers only if the user wants
that: the download takes minutes; see debuginfod/.

Dumps of kernels before 5.9 lack the build ID, and drgn then takes any vmlinux that it finds. For
these, this module compares each vmlinux with the dump.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import drgn

from kcensus.human import listed
from kcensus.limits.memory import mapping_files
from kcensus.sources.debuginfo import debuginfod, packages
from kcensus.sources.debuginfo.loading import (
    holds,
    is_out_of_tree,
    loaded_modules,
    modules_from_memory,
    unreadable_modules,
)
from kcensus.sources.debuginfo.packs.modules import module_name
from kcensus.sources.formats import elf
from kcensus.sources.model import SYMBOLS, MissingDebugInfo, TargetError, kernel_release
from kcensus.sources.reader import FileReader, os_error
from kcensus.sources.vmcoreinfo.text import version_in_memory, vmcoreinfo_of
from kcensus.text import printable

# drgn decompresses gzip, xz, bzip2 and zstd.
_COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd")
# Levels of folders to search below a directory that the user passed. An unpacked package needs six:
# usr/lib/debug/lib/modules/RELEASE/vmlinux.
_MAX_DEPTH = 8
_NOT_SEARCHED = ("/proc", "/sys", "/dev")
# Where distributions install a vmlinux; drgn's defaults.
_STANDARD_PATHS = (
    "/usr/lib/debug/boot/vmlinux-{0}",
    "/usr/lib/debug/lib/modules/{0}/vmlinux",
    "/usr/lib/debug/lib/modules/{0}/vmlinux.debug",
    "/boot/vmlinux-{0}",
    "/lib/modules/{0}/build/vmlinux",
    "/lib/modules/{0}/vmlinux",
)
_MODULES = ("lib/modules", "usr/lib/modules")
_MAX_NAMED = 3


@dataclass(frozen=True)
class Vmlinux:
    """A vmlinux, and what distinguishes it from those of other builds."""

    path: Path
    identity: elf.Identity = field(default_factory=elf.Identity)

    def __str__(self) -> str:
        return self.described(by_banner=False)

    def described(self, *, by_banner: bool) -> str:
        """Return the path with the facts that tell builds apart."""
        facts = self.identity.banner if by_banner else str(self.identity)
        return printable(os.fspath(self.path) + (f" ({facts})" if facts else ""))


def vmlinux_at(path: Path) -> Iterator[Vmlinux]:
    """Yield the file at a path if it is a readable ELF file."""
    with contextlib.suppress(TargetError), FileReader(path) as reader:
        if reader.read(0, 4) == elf.MAGIC:
            yield Vmlinux(path, elf.identity(reader, elf.read_header(reader)))


def debug_file(path: Path, origin: str) -> Vmlinux | None:
    """Return the vmlinux at a path, None for a module; :class:`TargetError` if it is neither."""
    with FileReader(path, f"{origin} ") as reader:
        start, why = reader.read(0, 1024), "is not an ELF file with debug info"
        if start.startswith(elf.MAGIC):
            header = elf.read_header(reader)
            if header.type != elf.ET_CORE:
                is_module = header.type == elf.ET_REL
                return None if is_module else Vmlinux(path, elf.identity(reader, header))
            why = "is a dump, not a file with debug info; pass the vmlinux"
        elif start.startswith(_COMPRESSED):
            return Vmlinux(path) if path.name.startswith("vmlinux") else None
        elif start[514:518] == b"HdrS":
            why = (
                "is a bootable kernel image without debug info; pass the vmlinux of the same build"
            )
        raise TargetError(f"{reader.name}: {why}")


def below(directory: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folders of debug info in a directory, itself included, and the names of files."""
    base = len(directory.parts)
    for folder, folders, files in os.walk(directory):
        if len(Path(folder).parts) - base >= _MAX_DEPTH or folder in _NOT_SEARCHED:
            folders.clear()
        yield Path(folder), files


def vmlinux_below(directory: Path) -> Iterator[Vmlinux]:
    """Yield the readable vmlinux in a directory."""
    for folder, files in below(directory):
        for name in sorted(files):
            if "vmlinux" in name:
                yield from vmlinux_at(folder / name)


@dataclass(frozen=True)
class Beside:
    """Places of the modules' debug info, by the place of the vmlinux of the same build."""

    roots: tuple[Path, ...] = ()
    """Debug trees, such as ``usr/lib/debug``."""
    folders: tuple[Path, ...] = ()
    """Directories of the modules of one kernel: ``lib/modules/RELEASE``."""
    files: tuple[Path, ...] = ()
    """Modules in the directory of the vmlinux, debug info (``.ko.debug``) first."""


def beside(paths: Iterable[Path], release: str) -> Beside:
    """Find the modules in the debug tree, or else in the directory, of a vmlinux.

    :param paths: of the vmlinux, which can be links to it
    :param release: kernel release from the dump, untrusted
    """
    roots: dict[Path, None] = {}
    folders: dict[Path, None] = {}
    files: dict[Path, None] = {}
    for path in dict.fromkeys(path.absolute() for path in paths):
        folder = path.parent
        if folder.name == "boot":
            roots[folder.parent] = None
        elif folder.parts[-3:-1] == ("lib", "modules"):
            roots[folder.parents[2]] = None
            folders[folder] = None
        with contextlib.suppress(OSError):
            files |= dict.fromkeys(folder / name for name in os.listdir(folder) if ".ko" in name)
    if "/" not in release and release not in ("", ".", ".."):
        folders |= {root / place / release: None for root in roots for place in _MODULES}
    by_kind = sorted(files, key=lambda file: (not file.name.endswith(".debug"), file))
    return Beside(tuple(roots), tuple(filter(os.path.isdir, folders)), tuple(by_kind))


class DebugInfo:
    """The debug info of one program of a kernel; loaded debug info is kept.

    :param symbols: files and directories that the user passed, tried first
    :param shared: others, for many kernels
    :raises TargetError: one of ``symbols`` cannot contain debug info
    """

    def __init__(
        self, prog: drgn.Program, symbols: tuple[Path, ...], shared: tuple[Path, ...] = ()
    ) -> None:
        self.prog = prog
        self._servers = debuginfod.current()
        self._kernels: list[Vmlinux] = []
        self.module_files: list[Path] = []
        """Passed files of modules."""
        self._shared = frozenset(shared) - frozenset(symbols)
        every = (*symbols, *shared)
        # Unlike Path.is_dir(), os.path.isdir() never raises.
        self._directories = [path.absolute() for path in every if os.path.isdir(path)]
        self.unusable: dict[Path, str] = {}
        """Files in ``shared`` that cannot contain debug info, with a sentence each."""
        for path in every:
            if os.path.isdir(path):
                continue
            try:
                kernel = debug_file(path, SYMBOLS if path in self._shared else "-s")
            except TargetError as error:
                if path not in self._shared:
                    raise
                self.unusable[path] = str(error)
                continue
            if kernel:
                self._kernels.append(kernel)
            else:
                self.module_files.append(path)
        self.release = kernel_release(prog)
        """Printable."""
        info = vmcoreinfo_of(prog)
        self._build_id, self._offset = info.build_id, info.kernel_offset
        version = "" if info.build_id else version_in_memory(prog)
        self._missing_kernel = packages.missing_kernel(self.release, info.build_id, version)
        self.build = f"build ID {info.build_id}" if info.build_id else version
        """Build ID, else the version in memory, of the kernel; printable, and empty if unknown."""
        self._search(self._directories, self._directories)

    def _search(self, directories: Iterable[Path], kernel_directories: Iterable[Path]) -> None:
        """Let drgn search in these directories, before others."""
        options = self.prog.debug_info_options
        own, before = tuple(map(os.fspath, directories)), options.directories
        options.directories = (*own, *(each for each in before if each not in own))
        own, before = tuple(map(os.fspath, kernel_directories)), options.kernel_directories
        options.kernel_directories = (*own, *(each for each in before if each not in own))

    @functools.cached_property
    def _beside(self) -> Beside:
        """The modules in the debug tree of the loaded vmlinux; drgn searches there from now on."""
        with contextlib.suppress(LookupError):
            # drgn resolves links.
            if loaded := self.prog.main_module().debug_file_path:
                given = [each.path for each in self._kernels]
                links = [path for path in given if os.path.realpath(path) == loaded]
                found = beside([*links, Path(loaded)], self.release)
                self._search(found.roots, found.folders)
                return found
        return Beside()

    @property
    def names_no_kernel(self) -> bool:
        """Whether the user passed no vmlinux of another kernel for this one."""
        return all(
            each.path in self._shared or self._is_of_this_build(each) for each in self._kernels
        )

    @property
    def troubles(self) -> list[str]:
        """Sentences about servers that failed to send debug info of modules."""
        return self._servers.sentences("module") if self._servers else []

    @property
    def kernel_troubles(self) -> list[str]:
        """Sentences that say why no server sent the debug info of the kernel, if the user asked for
        it."""
        if self._servers is None or not self._missing():
            return []
        if self._build_id is None:
            return [
                "the servers in DEBUGINFOD_URLS were not asked for the vmlinux: VMCOREINFO has no "
                "build ID (kernels before 5.9)"
            ]
        absent = f"debug info of kernel {self.release} is not on the servers in DEBUGINFOD_URLS"
        return self._servers.sentences("kernel", self.release) or [absent]

    def load_kernel(self) -> None:
        """Load the debug info of the kernel; raise :class:`TargetError` if that fails."""
        if not self._missing():
            return
        tried: list[Vmlinux] = []
        if self._build_id is not None:
            tried += self._kernels
            self._try(tried)
        for candidate in self._candidates():
            if not self._missing():
                break
            tried.append(candidate)
            if self._is_of_this_build(candidate):
                self._try([candidate])
        if self._missing() and self._servers and self._build_id:
            what = f"kernel {self.release}"
            if path := self._servers.debug_file(self._build_id, what):
                self._try([Vmlinux(path)])
        if self._missing():
            why = "; ".join([self._why_missing(tried), *self.kernel_troubles])
            raise MissingDebugInfo(why, self._build_id)

    def _candidates(self) -> Iterator[Vmlinux]:
        """Yield the files that drgn has not tried by itself."""
        if self._build_id is None:
            yield from self._kernels
        for directory in self._directories:
            yield from vmlinux_below(directory)
        if self._build_id is None and "/" not in self.release:
            for path in _STANDARD_PATHS:
                yield from vmlinux_at(Path(path.format(self.release)))

    def _is_of_this_build(self, vmlinux: Vmlinux) -> bool:
        # Since Linux kernel commit 0935288c6e00 ("kdump: append kernel build-id string to
        # VMCOREINFO") (in v5.9), the build IDs tell. Before, the banner and the build ID of the
        # file must be in memory at their places in the file.
        if self._build_id is not None:
            return vmlinux.identity.build_id == self._build_id
        return holds(self.prog, vmlinux.identity.contents, self._offset)

    def _try(self, files: list[Vmlinux]) -> None:
        try:
            if self._build_id is not None:
                with modules_from_memory():
                    self.prog.load_debug_info([file.path for file in files], main=True)
                return
            main, _ = next(iter(self.prog.loaded_modules()))
            for file in files:
                main.try_file(file.path)
        except drgn.MissingDebugInfoError:
            pass
        except MemoryError:
            raise
        except OSError as error:
            raise os_error(printable(error.filename or "debug info"), error) from error
        except Exception as error:
            # drgn's errors have no common base class.
            raise TargetError(
                f"debug info of kernel {self.release} cannot be loaded "
                f"(drgn: {printable(str(error))})"
            ) from error

    def _missing(self) -> bool:
        with contextlib.suppress(LookupError):
            return bool(self.prog.main_module().wants_debug_file())
        return True

    def _why_missing(self, tried: list[Vmlinux]) -> str:
        for file in tried:
            if self._is_of_this_build(file):
                return (
                    f"{file}: belongs to this build, but its debug info was stripped; pass the "
                    "vmlinux from the debug info package"
                )
        for file in self._kernels:
            if self._build_id is None and not file.identity.contents:
                return (
                    f"{file}: cannot be compared with this dump, which has no build ID; pass a "
                    "vmlinux that is not compressed and has a linux_banner"
                )
        for file in self._kernels:
            if file.identity == elf.Identity():
                return f"{file}: is compressed, or has no identity; decompress it first"
        missing = self._missing_kernel
        if not tried:
            return missing
        by_banner = self._build_id is None
        names = listed([each.described(by_banner=by_banner) for each in tried], _MAX_NAMED)
        # The user meant a single file, but not each of many files in a directory.
        if self._kernels or len(tried) == 1:
            does = "does" if len(tried) == 1 else "do"
            wanted = f"{self.release} ({self.build})" if self.build else self.release
            differs = ", whose linux_banner or build ID in memory differs" if by_banner else ""
            how = packages.remedy(self.release, self._build_id, it="its debug info")
            return f"{names}: {does} not belong to this kernel, {wanted}{differs}; {how}"
        return f"{missing}; found only {names}"

    def need_modules(self, *names: str) -> list[str]:
        wanted = {name.replace("-", "_") for name in names}
        loaded, sentences = loaded_modules(self.prog, wanted)
        try:
            with mapping_files():
                for module in loaded:
                    named = [
                        each for each in self._beside.files if module_name(each) == module.name
                    ]
                    for path in (*self.module_files, *named):
                        if module.wants_debug_file():
                            module.try_file(path)
                missing = [module for module in loaded if module.wants_debug_file()]
                self.prog.load_module_debug_info(*missing)
                for module in missing:
                    self._download(module)
        except MemoryError:
            raise
        except Exception as error:
            # drgn's errors have no common base class. Analyses work without modules.
            return [unreadable_modules(wanted, str(error))]
        return sentences + [
            packages.missing_module(
                each.name,
                self.release,
                each.build_id and each.build_id.hex(),
                is_out_of_tree=is_out_of_tree(each.object),
            )
            for each in loaded
            if each.wants_debug_file()
        ]

    def _download(self, module: drgn.Module) -> None:
        if self._servers and module.wants_debug_file() and module.build_id:
            what = f"module {printable(module.name)}"
            if path := self._servers.debug_file(module.build_id.hex(), what):
                module.try_file(path)

    def _module(self, name: str) -> drgn.Module | None:
        return next((each for each in self.prog.modules() if each.name == name), None)

    def has(self, name: str) -> bool:
        """Return whether the debug info of a loaded module is loaded."""
        module = self._module(name)
        return module is not None and not module.wants_debug_file()

    def lacks(self, name: str) -> bool:
        """Return whether a module is loaded without debug info."""
        module = self._module(name)
        return module is not None and bool(module.wants_debug_file())

    def places(self) -> list[tuple[str, str]]:
        return [
            ("vmlinux" if isinstance(module, drgn.MainModule) else printable(module.name), path)
            for module in self.prog.modules()
            if (path := printable(module.debug_file_path or ""))
        ]
