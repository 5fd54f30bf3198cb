# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m kcensus`` is ``kcensus``."""

from __future__ import annotations

import sys

from kcensus.cli import main

sys.exit(main())
