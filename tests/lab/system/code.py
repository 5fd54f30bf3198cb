# SPDX-License-Identifier: LGPL-2.1-or-later
"""The disk of a guest with kcensus as the checkout has it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from .. import host, image
from . import disk
from .base import FILES, VENV, Base

_CHECKOUT = Path(__file__).parents[3]
_PROGRAMS = ("churn",)
_MIB = 64


def code_disk(made: Base, directory: Path) -> Path:
    """Make the disk with kcensus as the checkout has it, and with the programs of the lab.

    Unlike the root file system, it is made for each guest: it takes a few seconds.
    """
    with tempfile.TemporaryDirectory(prefix="code-", dir=made.tree / "srv") as name:
        tree = Path(name)
        host.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tree)],
            cwd=_CHECKOUT,
        )
        (wheel,) = tree.glob("*.whl")
        inside = f"/{tree.relative_to(made.tree)}"
        pip = [f"/{VENV}/bin/pip", "install", "--quiet", "--no-index", "--no-deps"]
        made.run(*pip, "--target", f"{inside}/lib", f"{inside}/{wheel.name}")
        (tree / "bin").mkdir()
        for program in _PROGRAMS:
            image.compile_program(image.PROGRAMS / f"{program}.c", tree / "bin" / program)
        shutil.copy(FILES / "load.sh", tree / "bin" / "load")
        (tree / "bin" / "load").chmod(0o755)
        disk.make(directory / "code.ext4", tree, _MIB, "-O", "^has_journal")
    return directory / "code.ext4"
