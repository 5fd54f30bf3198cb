# SPDX-License-Identifier: LGPL-2.1-or-later
"""The machine the lab runs on: its cache, its packages, its commands."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

# What has to be there, and the package that brings it.
_COMMANDS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-system-aarch64": "qemu-system-arm",
    "qemu-system-ppc64": "qemu-system-ppc",
    "qemu-system-s390x": "qemu-system-misc",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "powerpc64le-linux-gnu-gcc": "gcc-powerpc64le-linux-gnu",
    "s390x-linux-gnu-gcc": "gcc-s390x-linux-gnu",
    "makedumpfile": "makedumpfile",
    "blktrace": "blktrace",
    "dmsetup": "dmsetup",
    "mkfs.xfs": "xfsprogs",
    "gcc": "gcc",
    "make": "make",
    "xz": "xz-utils",
    "crash": "crash",  # the tests hold our figures against it, and run kcensus inside
    "debuginfod": "debuginfod",  # the tests download debug info from it
    "less": "less",  # the pager of crash
    # The guests with Python:
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    # Remedies are tried with what administrators have:
    "iscsistart": "open-iscsi",  # logs in to an iSCSI target
    "lvm": "lvm2",
    "mdadm": "mdadm",
    "nbd-client": "nbd-client",
    "busybox": "busybox-static",
    "depmod": "kmod",
    "ssh": "openssh-client",
}
_FILES = {
    "/usr/lib/x86_64-linux-gnu/libc.a": "libc6-dev",
    "/usr/aarch64-linux-gnu/lib/libc.a": "libc6-dev-arm64-cross",
    "/usr/powerpc64le-linux-gnu/lib/libc.a": "libc6-dev-ppc64el-cross",
    "/usr/s390x-linux-gnu/lib/libc.a": "libc6-dev-s390x-cross",
}

_START = time.monotonic()


class LabError(Exception):
    """Why the lab cannot go on, in one sentence."""


def say(text: str) -> None:
    """Tell a person what is going on."""
    # One write: several threads talk at once.
    sys.stderr.write(f"[{time.monotonic() - _START:5.0f} s] {text}\n")


def cache() -> Path:
    """Where everything that is fetched or built is kept."""
    if chosen := os.environ.get("KCENSUS_LAB_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "kcensus-lab"


def which(command: str) -> str | None:
    """The path of ``command``; the sbin directories are often not in PATH."""
    return shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def find(command: str) -> str:
    if path := which(command):
        return path
    raise LabError(f"The lab needs the command {command}, which is not installed here.")


def run(
    command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Run a command to its end and return what it wrote to stdout."""
    done = subprocess.run(
        [find(command[0]), *command[1:]],
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C", **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        # What apt and compilers say first; what follows are consequences.
        reasons = [line for line in lines if line.startswith("E:") or " error: " in line]
        reason = [*reasons, *lines[-1:], ""][0]
        raise LabError(f"{command[0]} failed with status {done.returncode}: {reason}")
    return done.stdout


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock ``name``: two builds at once do each piece of work only once."""
    path = cache() / "locks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """A directory to fill, which becomes ``final`` only if nothing goes wrong.

    The caller holds a lock that covers ``final``.
    """
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _missing_packages() -> list[str]:
    missing = [package for command, package in _COMMANDS.items() if not which(command)]
    return missing + [package for path, package in _FILES.items() if not Path(path).exists()]


def install_packages() -> None:
    """Install what the lab needs and the machine does not have."""
    missing = _missing_packages()
    if not missing:
        return
    if platform.machine() != "x86_64" or not which("apt-get"):
        raise LabError("The lab runs on Debian for x86-64; this machine is something else.")
    if os.geteuid() != 0:
        raise LabError(
            f"The lab needs these packages; run it as root, or install them: {' '.join(missing)}."
        )
    with locked("packages"):
        # Another build may just have done it.
        if missing := _missing_packages():
            say(f"installing {' '.join(missing)}")
            quiet = {"DEBIAN_FRONTEND": "noninteractive"}
            run(["apt-get", "update"], env=quiet)
            run(["apt-get", "install", "-y", "--no-install-recommends", *missing], env=quiet)
