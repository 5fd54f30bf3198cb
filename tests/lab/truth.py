# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the guest's program did, summed up."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

# File systems that forget a name as soon as it turns out not to exist.
_FORGETFUL = ("tmpfs", "ramfs")


def created(notes: str) -> str:
    """Sum up the notes of the guest's program, as JSON.

    ``names`` has, per directory, name pattern and memcg, how many files exist
    (``positive``), how many names were left behind that do not (``negative``), and how many
    files are held open. Paths and names that are no UTF-8 hold surrogates (PEP 383).
    """
    names: dict[tuple[str, str, str], Counter[str]] = {}
    memcgs: dict[str, dict[str, Any]] = {}
    lists: dict[str, list[Any]] = {"mounts": [], "watches": [], "device-writes": [], "churn": []}
    totals: Counter[str] = Counter()
    for note in json.loads(f"[{notes}]"):
        do = note.pop("do")
        if do in ("files", "missing", "remove", "hold"):
            key = note["dir"], note["pattern"], note.get("memcg", "")
            _count(names.setdefault(key, Counter()), do, note["count"], note["fs"])
        elif do == "memcg":
            memcgs[note["path"]] = {**note, "state": "alive", "pids": []}
        elif do == "rmcgroup":
            memcgs[note["path"]]["state"] = "removed"
        elif do == "process":
            memcgs[note["memcg"]]["pids"].append(note["pid"])
        elif do in ("pipes", "sockets", "anon"):
            totals[do] += note.get("count", note.get("bytes"))
        else:
            kind = {"mount": "mounts", "watch": "watches", "device-write": "device-writes"}
            lists[kind.get(do, do)].append(note)
    summary = {
        "names": [
            {"dir": where, "pattern": pattern, "memcg": memcg}
            | {kind: counts[kind] for kind in ("positive", "negative", "open")}
            for (where, pattern, memcg), counts in names.items()
        ],
        "memcgs": list(memcgs.values()),
        **lists,
        **totals,
    }
    return json.dumps(summary, indent=1)


def _count(counts: Counter[str], do: str, count: int, file_system: str) -> None:
    remembered = 0 if file_system in _FORGETFUL else count
    if do == "files":
        counts["positive"] += count
    elif do == "missing":
        counts["negative"] += remembered
    elif do == "remove":
        counts["positive"] -= count
        counts["negative"] += remembered
    else:
        counts["open"] += count
