# SPDX-License-Identifier: LGPL-2.1-or-later
"""Any command as a script of drgn: ``drgn -c vmcore drgn_scripts/run.py COMMAND [OPTIONS]``."""

from kcensus.prompts.script import script

script()
