# SPDX-License-Identifier: LGPL-2.1-or-later
"""Disks of guests, above all the one with a kernel's modules and debug info."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from .. import host
from ..debian.store import Kernel
from ..host import say


def make(final: Path, tree: Path, mebibytes: int, *options: str) -> None:
    """Make an image of an ext4 file system, so large, with the files of a directory."""
    size = f"{mebibytes}M"
    host.run(["mke2fs", "-q", "-t", "ext4", "-d", str(tree), *options, str(final), size])


def kernel_disk(kernel: Kernel) -> Path:
    """The disk with a kernel's modules and debug info, from the cache or made now.

    Its folders are `modules`, for `/lib/modules`, and `debug`, for `/usr/lib/debug`.
    """
    key = hashlib.sha256(Path(__file__).read_bytes() + kernel.path.name.encode()).hexdigest()[:12]
    final = host.cache() / "systems" / f"kernel-{kernel.name}-{key}"
    if not final.is_dir():
        with host.locked(final.name):
            if not final.is_dir():
                with host.new_directory(final) as directory:
                    _make_kernel_disk(kernel, directory)
    return final / "kernel.ext4"


def _make_kernel_disk(kernel: Kernel, directory: Path) -> None:
    say(f"kernel {kernel.release}: making the disk with its debug info")
    with tempfile.TemporaryDirectory(dir=directory) as name:
        tree = Path(name)
        debug = tree / "debug"
        (debug / "boot").mkdir(parents=True)
        os.link(kernel.vmlinux, debug / "boot" / f"vmlinux-{kernel.release}")
        for source, target in (
            (kernel.path / "debug", debug / "lib/modules" / kernel.release / "kernel"),
            (kernel.path / "modules", tree / "modules" / kernel.release / "kernel"),
        ):
            target.mkdir(parents=True)
            for path in source.iterdir():
                os.link(path, target / path.name)
        # depmod expects the modules where a machine has them.
        (tree / "lib").mkdir()
        (tree / "lib/modules").symlink_to("../modules")
        host.run(["depmod", "-b", str(tree), kernel.release])
        used = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
        make(
            directory / "kernel.ext4", tree, used * 21 // 20 // (1 << 20) + 16, "-O", "^has_journal"
        )
