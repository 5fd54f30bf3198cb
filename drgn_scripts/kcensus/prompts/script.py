# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands as scripts of drgn: ``drgn -c vmcore drgn_scripts/slab.py --top 5``."""

from __future__ import annotations

import re
import sys
from typing import NoReturn

import drgn

_MIN_PYTHON = (3, 10)
_MIN_DRGN = (0, 3)


def script(*command: str) -> NoReturn:
    """Run a command on drgn's open program, and exit with its status.

    :param command: words of the command line, before the arguments of the script
    """
    if sys.version_info[:2] < _MIN_PYTHON or _version(drgn.__version__) < _MIN_DRGN:
        python, needed, least = (
            ".".join(map(str, each)) for each in (sys.version_info[:2], _MIN_PYTHON, _MIN_DRGN)
        )
        sys.exit(
            f"kcensus: needs Python {needed} and drgn {least} or newer, but {sys.executable} is "
            f"Python {python} with drgn {drgn.__version__}; install newer ones in a virtual "
            "environment"
        )
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
            f"kcensus: {sys.executable}, the Python of this drgn, lacks {error.name!r}; run "
            f"`{sys.executable} -m pip install -r requirements.lock` in the clone"
        )
    with session(lambda request: adopt(prog, request.symbols, request.shared)):
        sys.exit(main([*command, *sys.argv[1:]]))


def _version(text: str) -> tuple[int, ...]:
    """Return major and minor version; drgn's own can end in ``.0+12.g0123abc``."""
    return tuple(map(int, re.findall(r"\d+", text)[:2]))
