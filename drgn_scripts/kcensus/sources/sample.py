# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bundled capsules, by name: ``sample``, and the others in ``samples``."""

from __future__ import annotations

import os
from pathlib import Path

from kcensus.sources.capsule import open_capsule
from kcensus.sources.model import Request, Source, Target

SAMPLES = Path(__file__).parents[1] / "samples"
"""Directory of the capsules; ``tests/lab/samples.py`` records them."""


def _path(spec: str | None) -> Path | None:
    """Return the bundled capsule of that name, unless a file has the same name."""
    # Not Path.exists(), which raises if the name is too long.
    if spec is None or not spec.replace("-", "").isalnum() or os.path.lexists(spec):
        return None
    path = SAMPLES / f"{spec}.capsule"
    return path if os.path.isfile(path) else None


def _open(request: Request) -> Target:
    return open_capsule(str(_path(request.spec)), request.spec or "")


SOURCE = Source(lambda spec: _path(spec) is not None, _open)
