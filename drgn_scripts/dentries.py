# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus dentries` as a script of drgn: ``drgn -c vmcore drgn_scripts/dentries.py [OPTIONS]``."""

from kcensus.prompts.script import script

script("dentries")
