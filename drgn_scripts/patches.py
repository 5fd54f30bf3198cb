# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus patches` as a script of drgn: ``drgn -c vmcore drgn_scripts/patches.py [OPTIONS]``."""

from kcensus.prompts.script import script

script("patches")
