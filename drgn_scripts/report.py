# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus report` in drgn: ``drgn -c vmcore drgn_scripts/report.py [OPTIONS]``, or ``--help``."""

from kcensus.prompts.script import script

script("report")
