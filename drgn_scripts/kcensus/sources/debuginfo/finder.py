# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds debug info: the kernel's when a target is opened, a module's when an analysis needs it.

drgn does nearly all of it: it looks for build IDs and in the places where distributions put debug
info, also below the directories that we add to its options. What is done here: a search for a
vmlinux that lies elsewhere below such a directory, and sentences for what is missing. drgn keeps
debuginfod off for kernels, since fetching one takes minutes without a sign of life; so do we.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import drgn

from kcensus.sources.debuginfo import packages
from kcensus.sources.formats import elf
from kcensus.sources.model import TargetError, kernel_release
from kcensus.sources.reader import FileReader, os_error
from kcensus.text import printable

# drgn unpacks these by itself.
_PACKED = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd")
# How deep below a directory of the user's a vmlinux may lie. In a whole unpacked package it is
# six down: usr/lib/debug/lib/modules/RELEASE/vmlinux.
_DEPTH = 8
_ENDLESS = ("/proc", "/sys", "/dev")


@dataclass(frozen=True)
class _Vmlinux:
    """A file that may be the kernel's."""

    path: Path
    build_id: str | None = None
    release: str | None = None

    def __str__(self) -> str:
        known = [self.release] if self.release else []
        known += [f"build ID {self.build_id}"] if self.build_id else []
        path = printable(os.fspath(self.path))
        return f"{path} ({', '.join(known)})" if known else path


@dataclass
class _Symbols:
    """What the user passed with ``-s``, sorted."""

    kernels: list[_Vmlinux] = field(default_factory=list)
    modules: list[Path] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)


def _sort(paths: tuple[Path, ...]) -> _Symbols:
    """Sort files and directories by what they are; raises TargetError for what is neither."""
    symbols = _Symbols()
    for path in paths:
        if os.path.isdir(path):  # unlike Path.is_dir(), never raises
            symbols.directories.append(path.absolute())
            continue
        with FileReader(path, "-s ") as reader:
            start = reader.read(0, 1024)
            if start.startswith(elf.MAGIC):
                header = elf.read_header(reader)
                if header.type == elf.ET_CORE:
                    raise TargetError(f"{reader.name}: is a dump, not a file with debug info")
                if header.type == elf.ET_REL:
                    symbols.modules.append(path)
                else:
                    symbols.kernels.append(_look_at(reader, header, path))
            elif start.startswith(_PACKED) and path.name.startswith("vmlinux"):
                symbols.kernels.append(_Vmlinux(path))
            elif start.startswith(_PACKED):
                symbols.modules.append(path)
            elif start[514:518] == b"HdrS":
                raise TargetError(
                    f"{reader.name}: is a bootable kernel image, which has no debug info; pass "
                    "the vmlinux of the same build"
                )
            else:
                raise TargetError(f"{reader.name}: is not an ELF file with debug info")
    return symbols


def _look_at(reader: FileReader, header: elf.Header, path: Path) -> _Vmlinux:
    if not header.supported:
        return _Vmlinux(path, None, header.machine)
    build_id = elf.build_id(reader, header)
    return _Vmlinux(path, build_id, elf.vmlinux_release(reader, header))


def _vmlinux_below(directory: Path) -> Iterator[_Vmlinux]:
    """Files below a directory that are called like a vmlinux and can be read."""
    base = len(directory.parts)
    for folder, folders, files in os.walk(directory):
        if len(Path(folder).parts) - base >= _DEPTH or folder in _ENDLESS:
            folders.clear()
        for name in sorted(files):
            if name == "vmlinux" or name.startswith(("vmlinux-", "vmlinux.")):
                path = Path(folder, name)
                try:
                    with FileReader(path) as reader:
                        if reader.read(0, 4) == elf.MAGIC:
                            yield _look_at(reader, elf.read_header(reader), path)
                except TargetError:
                    continue


class DebugInfo:
    """The debug info of one program. See :meth:`load_kernel` and :meth:`need_modules`.

    :param prog: a program that is set to a kernel and has no debug info yet
    :param symbols: files and directories of the user's, tried before any other place
    :raises TargetError: if one of them is no place for debug info
    """

    def __init__(self, prog: drgn.Program, symbols: tuple[Path, ...]) -> None:
        self._prog = prog
        self._symbols = _sort(symbols)
        self._release = kernel_release(prog)
        self._build_id = _vmcoreinfo_build_id(prog)
        own = tuple(os.fspath(path) for path in self._symbols.directories)
        options = prog.debug_info_options
        options.directories = own + options.directories
        options.kernel_directories = own + options.kernel_directories

    def load_kernel(self) -> None:
        """Load the debug info of the kernel itself, without its modules.

        :raises TargetError: if it is not found, or is of another build
        """
        found = list(self._symbols.kernels)
        self._try(found)
        for directory in self._symbols.directories:
            for candidate in _vmlinux_below(directory):
                if not self._missing():
                    break
                found.append(candidate)
                if self._build_id in (None, candidate.build_id):
                    self._try([candidate])
        if self._missing():
            raise TargetError(self._why_missing(found))
        self._check_symbols_fit()

    def _try(self, files: list[_Vmlinux]) -> None:
        try:
            self._prog.load_debug_info([file.path for file in files], main=True)
        except drgn.MissingDebugInfoError:
            pass
        except OSError as error:
            raise os_error(printable(error.filename or "debug info"), error) from error
        except Exception as error:
            # drgn's errors have no common base class.
            raise TargetError(
                f"debug info of kernel {printable(self._release)} cannot be loaded "
                f"(drgn: {printable(str(error))})"
            ) from error

    def _missing(self) -> bool:
        try:
            module = self._prog.main_module()
        except LookupError:
            return True
        return bool(module.wants_debug_file())

    def _why_missing(self, found: list[_Vmlinux]) -> str:
        release = printable(self._release)
        for file in found:
            if file.build_id is not None and file.build_id == self._build_id:
                return (
                    f"{file}: is of the right build but was stripped of its debug info; pass the "
                    "vmlinux from the package with debug info"
                )
        # One file must be what the user meant; many in a directory say nothing about it.
        if self._symbols.kernels or len(found) == 1:
            wanted = f"build ID {self._build_id}" if self._build_id else "no build ID recorded"
            return (
                f"{found[0]}: does not belong to this kernel, {release} ({wanted}); pass the "
                "vmlinux of exactly that build"
            )
        return packages.missing_kernel(self._release, self._build_id)

    def _check_symbols_fit(self) -> None:
        """Hold the symbols against memory, where there was no build ID to compare.

        Kernels before 5.9 do not note their build ID (commit 0935288c6e00 "kdump: append kernel
        build-id string to VMCOREINFO"), so drgn takes any vmlinux of the same release.
        """
        if self._build_id is not None:
            return
        try:
            name = self._prog["init_uts_ns"].name.release.string_()
        except (drgn.FaultError, LookupError):
            return  # Not in the dump; nothing to compare with.
        if name.decode("utf-8", "replace") != self._release:
            path = printable(self._prog.main_module().debug_file_path or "vmlinux")
            raise TargetError(
                f"{path}: is of release {printable(self._release)} but of another build than this "
                "kernel; pass the vmlinux of exactly that build"
            )

    def need_modules(self, *names: str) -> list[str]:
        """See :meth:`kcensus.sources.model.Target.need_modules`."""
        wanted = {name.replace("-", "_") for name in names}
        with _drgn_warnings() as warnings:
            try:
                self._prog.create_loaded_modules()
                loaded = [
                    module
                    for module in self._prog.modules()
                    if isinstance(module, drgn.RelocatableModule) and module.name in wanted
                ]
                for module in loaded:
                    for path in self._symbols.modules:
                        if module.wants_debug_file():
                            module.try_file(path)
                missing = [module for module in loaded if module.wants_debug_file()]
                self._prog.load_module_debug_info(*missing)
            except Exception as error:
                # drgn's errors have no common base class. An analysis can do without.
                return [_unreadable(wanted, str(error))]
        sentences = [
            packages.missing_module(
                module.name, self._release, module.build_id.hex() if module.build_id else None
            )
            for module in loaded
            if module.wants_debug_file()
        ]
        # What drgn could not read in the kernel's list of modules, it only logs.
        unseen = wanted - {module.name for module in loaded}
        if unseen and warnings:
            sentences.append(_unreadable(unseen, warnings[-1]))
        return sentences

    def places(self) -> list[tuple[str, str]]:
        """See :meth:`kcensus.sources.model.ModuleDebugInfo.places`."""
        found = [
            ("vmlinux" if isinstance(module, drgn.MainModule) else module.name, path)
            for module in self._prog.modules()
            if (path := module.debug_file_path)
        ]
        return [(printable(name), printable(path)) for name, path in found]


def _unreadable(names: set[str], reason: str) -> str:
    return (
        f"cannot tell whether the kernel has the modules {', '.join(sorted(names))} loaded "
        f"(drgn: {printable(reason)})"
    )


class _Collector(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@contextmanager
def _drgn_warnings() -> Iterator[list[str]]:
    """The warnings that drgn logs meanwhile."""
    lines: list[str] = []
    collector = _Collector(lines)
    logger = logging.getLogger("drgn")
    logger.addHandler(collector)
    try:
        yield lines
    finally:
        logger.removeHandler(collector)


def _vmcoreinfo_build_id(prog: drgn.Program) -> str | None:
    raw: bytes = prog["VMCOREINFO"].string_()
    for line in raw.split(b"\n"):
        key, _, value = line.partition(b"=")
        # It becomes part of a command to type in; so nothing but hexadecimal digits.
        if key == b"BUILD-ID" and re.fullmatch(rb"[0-9a-f]{2,128}", value.strip()):
            return value.strip().decode()
    return None
