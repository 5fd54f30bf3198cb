# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus dentries` in drgn: ``drgn -c vmcore drgn_scripts/dentries.py [OPTIONS]``, or ``--help``."""

from kcensus.prompts.script import script

script("dentries")
