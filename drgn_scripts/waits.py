# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus waits` as a script of drgn: ``drgn -c vmcore drgn_scripts/waits.py [OPTIONS]``."""

from kcensus.prompts.script import script

script("waits")
