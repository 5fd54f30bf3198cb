# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus memcgs` in drgn: ``drgn -c vmcore drgn_scripts/memcgs.py [OPTIONS]``, or ``--help``."""

from kcensus.prompts.script import script

script("memcgs")
