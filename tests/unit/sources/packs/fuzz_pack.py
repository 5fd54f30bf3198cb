# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open corrupt and hostile type packs, and use each as analyses do.

``python -m tests.unit.sources.packs.fuzz_pack CAPSULE SEED FIRST END`` runs cases FIRST to END - 1,
as ``tests.unit.fuzz_capsule`` does: the last line is the tally as JSON, or the number of the case
that failed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import drgn

from kcensus.analyses.runner import Context
from kcensus.reports import examine
from kcensus.sources import TargetError
from kcensus.sources.debuginfo.packs.file import Pack
from kcensus.sources.debuginfo.packs.loaded import PackDebugInfo
from kcensus.sources.model import Target
from tests.catalogue import CATALOGUE
from tests.unit.fuzz_capsule import (
    EVERY,
    MAX_SECONDS,
    Choice,
    _expected,
    _use_object,
    _use_type,
    change_bytes,
    change_json,
    change_types,
    grow_types,
    one_sentence,
)
from tests.unit.fuzzing import peak_bytes
from tests.unit.sources.packs.synthetic import LOW, pack_of, program, put_together, take_apart


def case(choose: Choice, good: bytes) -> bytes:
    """Return one corrupt or hostile pack."""
    if choose.randrange(6) == 0:
        return change_bytes(choose, good)
    about, parts = take_apart(good)
    document = json.loads(parts["types"])
    scope = document["scopes"][0]
    del about["parts"]
    changes: list[Callable[[], Any]] = [
        lambda: change_json(choose, document),
        *4 * [lambda: change_types(choose, document)],
        lambda: grow_types(choose, document),
        lambda: change_json(choose, scope["types"]),
        lambda: change_json(choose, scope["objects"]),
        *6 * [lambda: change_objects(choose, scope["objects"])],
        lambda: parts.update({"symbols:": change_bytes(choose, parts["symbols:"])}),
        lambda: change_json(choose, about),
    ]
    for change in choose.sample(changes, choose.choice((1, 1, 1, 2, 4))):
        with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
            change()
    parts["types"] = json.dumps(document).encode(errors="replace")
    return put_together(about, parts)


def change_objects(choose: Choice, objects: list[Any]) -> None:
    """Give objects the types and places of others."""
    for _ in range(choose.choice((1, 1, 4, 40))):
        row, other = choose.choice(objects), choose.choice(objects)
        what = choose.randrange(3)
        if what == 0 and row[5] is None:
            row[3] = other[3]
        elif what == 1:
            row[4] = choose.choice((other[4], 0, LOW, 1 << 63, (1 << 64) - 1))
        else:
            row[2] = choose.choice(("variable", "constant", "function"))


def use(prog: drgn.Program, good: dict[str, Any], tally: Counter[str]) -> None:
    """Use all types, objects and symbols of the valid pack."""
    scope = good["scopes"][0]
    for label, _ in scope["types"]:
        with _expected(tally):
            _use_type(prog.type(label))
    for name, *_ in scope["objects"]:
        with _expected(tally):
            _use_object(prog[name])
    for wanted in ("first", "value", "no such symbol", LOW + 0x18, LOW + 0x1004, 0x44, 0):
        with _expected(tally):
            prog.symbol(wanted)
    with _expected(tally):
        for symbol in prog.symbols()[:1000]:
            str(symbol.name)


def run(capsule: Path, seed: int, first: int, end: int) -> Counter[str]:
    good, tally = pack_of(capsule), Counter[str]()
    document = json.loads(take_apart(good)[1]["types"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "case.kctypes")
        for number in range(first, end):
            print(number, flush=True)
            faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
            choose = random.Random(f"{seed} {number}")
            path.write_bytes(case(choose, good))
            prog = program(capsule)
            try:
                info = PackDebugInfo(prog, Pack(path), choose.choice((0, 0x1000000)))
            except TargetError as error:
                one_sentence(error)
                tally["refused"] += 1
                continue
            info.register()
            tally["opened"] += 1
            use(prog, document, tally)
            if number % EVERY == 0:
                target = Target(prog, "case", "vmcore", "synthetic", False, "0.0.0", modules=info)
                report = examine(Context.of(target, jobs=1), CATALOGUE)
                tally["failed analyses"] += len(report.errors)
                tally["reports"] += 1
    faulthandler.cancel_dump_traceback_later()
    tally["peak_bytes"] = peak_bytes()
    return tally


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
