# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus list-lru` as a script of drgn: ``drgn -c vmcore drgn_scripts/list_lru.py [OPTIONS]``."""

from kcensus.prompts.script import script

script("list-lru")
