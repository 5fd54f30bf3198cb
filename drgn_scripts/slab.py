# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus slab` as a script of drgn: ``drgn -c vmcore drgn_scripts/slab.py [OPTIONS]``."""

from kcensus.prompts.script import script

script("slab")
