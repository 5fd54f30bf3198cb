# SPDX-License-Identifier: LGPL-2.1-or-later
"""Report on many targets, and cluster them by cause."""

from __future__ import annotations

from kcensus.commands.fleet.reports import REPORT, SHOW
from kcensus.commands.fleet.run import RUN
from kcensus.commands.shared import options

_HELP = """Report on many targets, and show what they suffer from.

`run` reports on each target, on this machine or a Dask cluster, and keeps the results in a store, a
directory of Delta Lake tables. `report` shows the causes in a store, each with the dumps that have
it, and `show` the dumps of one cause."""

COMMAND = options.group("fleet", _HELP, [RUN, REPORT, SHOW])
