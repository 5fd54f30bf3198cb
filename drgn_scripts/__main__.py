# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m drgn_scripts`` is ``kcensus``."""

from __future__ import annotations

import sys

from drgn_scripts.cli import main

sys.exit(main())
