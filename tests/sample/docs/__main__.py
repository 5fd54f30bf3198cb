# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write the outputs and pictures of today into the documentation.

``./run docs --update`` is ``python -m tests.sample.docs update [PAGE…]``; ``--pictures`` likewise.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.pages import ROOT, pages
from tests.sample.docs import consoles, pictures


def update(page: Path) -> bool:
    """Replace the outputs of a page that changed; return whether all of them are up to date.

    An output with `...` stays as it is: only its author knows which lines matter.
    """
    text = page.read_text("utf-8").splitlines(keepends=True)
    stale, moved = 0, 0
    with tempfile.TemporaryDirectory() as directory:
        for block, done in consoles.run_page(page, Path(directory)):
            made: list[str] = []
            for step, printed in done:
                shown = step.shown
                if not consoles.matches(shown, printed):
                    if consoles.is_elided(shown):
                        stale += 1
                        print(f"{block}: $ {step.command}: choose anew what `...` leaves out")
                    else:
                        print(f"{block}: $ {step.command}: updated")
                        shown = f"{printed}\n" if printed else ""
                command = step.command.replace("\n", "\n> ")
                made += f"$ {command}\n{shown}".splitlines(keepends=True)
            first, length = block.line - 1 + moved, block.text.count("\n")
            text[first : first + length] = made
            moved += len(made) - length
    page.write_text("".join(text), "utf-8")
    return stale == 0


def main(what: str, *names: str) -> int:
    if what == "pictures":
        pictures.draw()
        return 0
    chosen = [ROOT / name for name in names] or pages()
    return max([not update(page) for page in chosen])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
