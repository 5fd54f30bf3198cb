# SPDX-License-Identifier: LGPL-2.1-or-later
"""Any command in drgn: ``drgn -c vmcore drgn_scripts/run.py COMMAND [OPTIONS]``, or ``--help``."""

from kcensus.prompts.script import script

script()
