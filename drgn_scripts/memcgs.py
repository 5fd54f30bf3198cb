# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus memcgs` as a script of drgn: ``drgn -c vmcore drgn_scripts/memcgs.py [OPTIONS]``."""

from kcensus.prompts.script import script

script("memcgs")
