# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that are truncated while they are read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.commands import Exit
from kcensus.samples import DIRECTORY
from kcensus.sources import open_target
from kcensus.sources.capsule import BadCapsule

_TOUCH = """
import mmap, os, sys
from kcensus.engine.workers import WorkersKilled, each
from kcensus.sources.shrunk import end_with_sentence
end_with_sentence("vmcore")
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
    os.truncate(file.fileno(), 0)
if sys.argv[2] == "worker":
    try:
        print([*each(lambda place: mapped[place], 2, 2)])
    except WorkersKilled as error:
        print(error, file=sys.stderr)
        sys.exit(3)
mapped[0]
"""


@pytest.mark.parametrize("where", ["process", "worker"])
def test_a_mapped_file_that_shrinks(where: str, tmp_path: Path) -> None:
    path = tmp_path / "vmcore"
    path.write_bytes(bytes(8192))
    command = [sys.executable, "-c", _TOUCH, str(path), where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (Exit.TARGET, "")
    # Emulation of a processor (qemu-user) says on its own that a process was killed.
    (line,) = re.sub(r"^qemu: .*\n", "", done.stderr, flags=re.MULTILINE).splitlines()
    assert "shrank while it was read" in line
    assert line.startswith("kcensus: vmcore: " if where == "process" else "SIGBUS ")


def test_a_capsule_that_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "case.capsule"
    shutil.copyfile(DIRECTORY / "sample-waits.capsule", path)
    target = open_target(str(path))
    os.truncate(path, path.stat().st_size // 4)
    with pytest.raises(BadCapsule, match="ends too early"):
        Context.of(target).run(analyses()["slab"])
