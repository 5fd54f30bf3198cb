# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus slab` in drgn: ``drgn -c vmcore drgn_scripts/slab.py [OPTIONS]``, or ``--help``."""

from kcensus.prompts.script import script

script("slab")
