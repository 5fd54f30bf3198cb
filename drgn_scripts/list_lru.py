# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus list-lru` in drgn: ``drgn -c vmcore drgn_scripts/list_lru.py [OPTIONS]``, or ``--help``."""

from kcensus.prompts.script import script

script("list-lru")
