# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bundled capsules, by name: ``sample`` and what else lies in ``drgn_scripts/samples``."""

from __future__ import annotations

import os
from pathlib import Path

from kcensus.sources.capsule import open_capsule
from kcensus.sources.model import Request, Source, Target

SAMPLES = Path(__file__).parents[1] / "samples"
"""Where the capsules lie; ``tests/lab/samples.py`` makes them."""


def _path(spec: str | None) -> Path | None:
    """The capsule of that name; a file of the user's own wins."""
    # Not Path.exists(), which raises where a name is too long.
    if spec is None or not spec.replace("-", "").isalnum() or os.path.lexists(spec):
        return None
    path = SAMPLES / f"{spec}.capsule"
    return path if os.path.isfile(path) else None


def _open(request: Request) -> Target:
    return open_capsule(str(_path(request.spec)), request.spec or "")


SOURCE = Source(lambda spec: _path(spec) is not None, _open)
