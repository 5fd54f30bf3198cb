# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus kcopyd` in drgn: ``drgn -c vmcore drgn_scripts/kcopyd.py [OPTIONS]``, or ``--help``."""

from kcensus.prompts.script import script

script("kcopyd")
