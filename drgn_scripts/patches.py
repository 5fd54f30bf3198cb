# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus patches` in drgn: ``drgn -c vmcore drgn_scripts/patches.py [OPTIONS]``, or ``--help``."""

from kcensus.prompts.script import script

script("patches")
