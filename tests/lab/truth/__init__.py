# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the guest's program did, summed up."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

# File systems that forget a name as soon as it turns out not to exist.
_FORGETFUL = ("tmpfs", "ramfs")


def read(path: Path) -> dict[str, str]:
    """What :func:`write` has kept, with ``created.json`` in place of the program's notes."""
    reports: dict[str, str] = json.loads(path.read_text())
    return {**reports, "created.json": _created(reports.pop("notes"))}


def write(path: Path, reports: dict[str, str]) -> None:
    """Keep what a guest reported as it came; how it is summed up may change."""
    path.write_text(json.dumps(reports, indent=1))


def _created(notes: str) -> str:
    """Sum up the notes of the guest's program, as JSON.

    ``names`` has, per directory, name pattern and memcg, how many files exist
    (``positive``), how many names were left behind that do not (``negative``), and how many
    files are held open. Paths and names that are not UTF-8 hold surrogates (PEP 383).
    """
    names: dict[tuple[str, str, str], Counter[str]] = {}
    memcgs: list[dict[str, Any]] = []
    by_path: dict[str, dict[str, Any]] = {}
    lists: dict[str, list[Any]] = {"mounts": [], "watches": [], "device-writes": [], "churn": []}
    totals: Counter[str] = Counter()
    for raw in json.loads(f"[{notes}]"):
        note = {key: _text(value) for key, value in raw.items()}
        do = note.pop("do")
        if do in ("files", "missing", "remove", "hold"):
            key = note["dir"], note["pattern"], note.get("memcg", "")
            _count(names.setdefault(key, Counter()), do, note["count"], note["fs"])
        elif do == "memcg":
            # One path may have had several, one after the other.
            by_path[note["path"]] = {**note, "state": "alive", "pids": []}
            memcgs.append(by_path[note["path"]])
        elif do == "rmcgroup":
            by_path[note["path"]]["state"] = "removed"
        elif do == "process":
            by_path[note["memcg"]]["pids"].append(note["pid"])
        elif do in ("pipes", "sockets", "anon"):
            totals[do] += note["bytes" if do == "anon" else "count"]
        else:
            kind = {"mount": "mounts", "watch": "watches", "device-write": "device-writes"}
            lists[kind.get(do, do)].append(note)
    summary = {
        "names": [
            {"dir": where, "pattern": pattern, "memcg": memcg}
            | {kind: counts[kind] for kind in ("positive", "negative", "open")}
            for (where, pattern, memcg), counts in names.items()
        ],
        "memcgs": memcgs,
        **lists,
        **totals,
    }
    return json.dumps(summary, indent=1)


def _text(value: Any) -> Any:
    """The guest escapes every byte beyond ASCII; put together what is UTF-8."""
    if not isinstance(value, str):
        return value
    return value.encode(errors="surrogateescape").decode(errors="surrogateescape")


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
