# SPDX-License-Identifier: LGPL-2.1-or-later
"""The report that the README shows is the one that kcensus prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN = re.compile(r"```\n\$ kcensus report sample\n(.*?)```\n", re.DOTALL)


def test_the_readme_shows_todays_report() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kcensus", "report", "sample"],
        env=os.environ | {"COLUMNS": "100"},
        capture_output=True,
        check=True,
        text=True,
    )
    shown = SHOWN.search((ROOT / "README.md").read_text())
    assert shown, "README.md shows no report"
    assert shown[1] == done.stdout
