# SPDX-License-Identifier: LGPL-2.1-or-later
"""Record needs from dumps, after :func:`tests.inventory.noting.install`."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from typing import Any

from kcensus.analyses.runner import Context
from kcensus.catalogue import load
from kcensus.render.json import write_json
from kcensus.reports import examine
from kcensus.sources import open_target
from tests.inventory.noting import NOTES
from tests.inventory.tables import NEEDS
from tests.lookups import dumps


def record(words: list[str]) -> None:
    """Write the needs of all analyses on these dumps."""
    kernels: dict[str, dict[tuple[str, str], tuple[set[Any], dict[str, bool]]]] = defaultdict(dict)
    for name, core, debug in dumps(words):
        target = open_target(core, debug)
        context = Context.of(target, jobs=1)
        write_json(examine(context, load()), io.StringIO())
        found = kernels[target.prog["UTS_RELEASE"].string_().decode()]
        for key, needs, asks in NOTES.take():
            known = found.setdefault(key, (set(), {}))
            known[0].update(needs)
            known[1].update(asks)
        print(f"{name}: {len(found):,} needs", flush=True)
    variants: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for _, found in sorted(kernels.items()):
        for key, (needs, asks) in found.items():
            variant = [sorted(map(list, needs)), dict(sorted(asks.items()))]
            if (needs or any(asks)) and variant not in variants[key]:
                variants[key].append(variant)
    rows = [json.dumps([*key, each]) for key, each in sorted(variants.items()) if each]
    NEEDS.write_text("[\n" + ",\n".join(rows) + "\n]\n")
