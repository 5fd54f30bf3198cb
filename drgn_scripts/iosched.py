# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus iosched` as a script of drgn: ``drgn -c vmcore drgn_scripts/iosched.py [OPTIONS]``."""

from kcensus.prompts.script import script

script("iosched")
