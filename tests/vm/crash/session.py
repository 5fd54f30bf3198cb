# SPDX-License-Identifier: LGPL-2.1-or-later
"""Builds the extension, and runs scripts in crash."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import host

SOURCE = Path(__file__).parents[3] / "crash_ext"
_SECONDS = 1200


def build_extension(directory: Path, *, cflags: str = "") -> Path:
    """Build a copy of the sources in ``directory``, and return the extension.

    :param cflags: options of the compiler besides those of the Makefile; a warning is an error
    """
    host.install_packages()
    copy = directory / "crash_ext"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("*.o", "*.so"))
    host.run(
        ["make", f"CFLAGS=-O2 -g -Werror {cflags}", f"KCENSUS_PYTHON={sys.executable}"], cwd=copy
    )
    return copy / "kcensus.so"


@functools.cache
def extension() -> Path:
    """Return the extension as users build it, for the whole test session."""
    return build_extension(Path(_directory().name))


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    # Deleted when the interpreter ends.
    return tempfile.TemporaryDirectory(prefix="kcensus-crash-")


@dataclass(frozen=True)
class Session:
    """What crash opens: its arguments but for a script."""

    vmlinux: Path
    dump: tuple[str | Path, ...]
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the dump, as crash has it."""
        return str(self.dump[0])

    def arguments(self) -> list[str]:
        """Return the command that starts crash, silent as ``-s`` makes it."""
        return [*(host.find("crash"), "-s", *self.options), *map(str, (self.vmlinux, *self.dump))]

    def script(
        self,
        commands: Sequence[str],
        directory: Path,
        *,
        extend: bool = True,
        environment: dict[str, str] | None = None,
    ) -> str:
        """Run commands as ``crash -i`` does, and return what crash printed.

        :param directory: where the script is written and crash runs
        :param extend: whether the extension is loaded first
        """
        script = directory / "script"
        first = ["set scroll off", *([f"extend {extension()}"] if extend else [])]
        script.write_text("".join(f"{line}\n" for line in [*first, *commands, "quit"]))
        done = subprocess.run(
            [*self.arguments(), "-i", str(script)],
            cwd=directory,
            env={**os.environ, "KCENSUS_SYMBOLS": "", **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr
