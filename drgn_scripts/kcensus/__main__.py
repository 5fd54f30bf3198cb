# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command ``kcensus``, and ``python -m kcensus``."""

from __future__ import annotations

import os
import sys

_INTERRUPTED = 128 + 2


def main() -> int:
    """Run the command, and return its exit status."""
    try:
        # Takes a tenth of a second, in which Ctrl-C must not show a traceback.
        from kcensus.cli import main as run

        return run()
    except KeyboardInterrupt:
        os.write(2, b"kcensus: interrupted\n")
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
