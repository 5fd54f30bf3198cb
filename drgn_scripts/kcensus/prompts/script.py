# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands as scripts of drgn: ``drgn -c vmcore drgn_scripts/slab.py --top 5``."""

from __future__ import annotations

import sys
from typing import NoReturn

import drgn


def script(*command: str) -> NoReturn:
    """Run a command on the program that drgn has open, and exit with its status.

    :param command: words of the command line, before those that the script was given
    """
    try:
        prog = drgn.get_default_prog()
    except drgn.NoDefaultProgramError:
        sys.exit(f"{sys.argv[0]}: is a script of drgn; run `drgn -c VMCORE {sys.argv[0]}`")
    try:
        from kcensus.cli import main
        from kcensus.sources.opened import adopt
        from kcensus.sources.session import session
    except ModuleNotFoundError as error:
        sys.exit(
            f"kcensus: {sys.executable}, the Python of this drgn, lacks {error.name!r}; install "
            "there what the pyproject.toml of kcensus lists as dependencies"
        )
    with session(lambda request: adopt(prog, request.symbols)):
        sys.exit(main([*command, *sys.argv[1:]]))
