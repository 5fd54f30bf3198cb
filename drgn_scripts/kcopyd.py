# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus kcopyd` as a script of drgn: ``drgn -c vmcore drgn_scripts/kcopyd.py [OPTIONS]``."""

from kcensus.prompts.script import script

script("kcopyd")
