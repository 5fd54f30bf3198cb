# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus report` as a script of drgn: ``drgn -c vmcore drgn_scripts/report.py [OPTIONS]``."""

from kcensus.prompts.script import script

script("report")
