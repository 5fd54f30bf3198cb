# SPDX-License-Identifier: LGPL-2.1-or-later
"""Adds man pages and scripts for completion to the wheel, below share/.

``python contrib/hatch_build.py DIRECTORY [VERSION]`` writes them to a directory: `./run man`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_ROOT = Path(__file__).parents[1]
_SHARE = _ROOT / "build" / "share"


def write(directory: Path, version: str) -> list[Path]:
    """Write what packages install below /usr/share; needs the package click only."""
    sys.path.insert(0, str(_ROOT / "drgn_scripts"))
    from kcensus.cli import kcensus
    from kcensus.commands.shared import manual

    return manual.write(directory, kcensus, version)


class ShareHook(BuildHookInterface[Any]):
    """Writes the files before a wheel is made of them."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files, unless the wheel leads to the checkout."""
        if version == "editable":
            return
        files = write(_SHARE, self.metadata.version)
        build_data["shared_data"] = {
            str(path): f"share/{path.relative_to(_SHARE).as_posix()}" for path in files
        }


if __name__ == "__main__":
    write(Path(sys.argv[1]), (sys.argv[2:] or [""])[0])
