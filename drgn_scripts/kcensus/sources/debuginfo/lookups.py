# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names that kcensus, and drgn on its behalf, looks up in debug info; ``lookups.json`` has them.

``python -m tests.lookups`` records them from dumps.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drgn import TypeKind

from kcensus.sources.types.nodes import COMPOUND, Node

_PATH = Path(__file__).with_name("lookups.json")

KINDS = ("variables", "constants", "functions", "objects", "symbols", "modules")
"""Kinds of names besides types. ``objects`` are asked for as any of the first three, and no
recorded kernel has them. A name in a given file is ``NAME FILE``."""


@dataclass
class Lookups:
    """Names by kind."""

    types: dict[str, set[str]] = field(default_factory=dict)
    """Members by type, such as ``struct page``: those that some kernel has of a used type, and none
    for a type that is only looked up or that no recorded kernel has."""
    variables: set[str] = field(default_factory=set)
    constants: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)
    symbols: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)

    def names(self, kind: str) -> set[str]:
        """Return the set of one of :data:`KINDS`."""
        names: set[str] = getattr(self, kind)
        return names

    def add(self, other: Lookups) -> None:
        """Add the names of ``other``."""
        for type_, members in other.types.items():
            self.types.setdefault(type_, set()).update(members)
        for kind in KINDS:
            self.names(kind).update(other.names(kind))
        self.objects -= self.variables | self.constants | self.functions

    def missing(self, other: Lookups) -> list[str]:
        """Return the names of ``other`` that are missing here, members as ``TYPE.MEMBER``."""
        names = [type_ for type_ in other.types if type_ not in self.types]
        for type_, members in other.types.items():
            unknown = members - self.types.get(type_, set())
            names += [f"{type_}.{member or '(anonymous)'}" for member in unknown]
        objects = self.variables | self.constants | self.functions | self.objects
        for kind in KINDS:
            known = self.names(kind) if kind in ("symbols", "modules") else objects
            names += [f"{kind}: {name}" for name in other.names(kind) - known]
        return sorted(names)

    def count(self) -> int:
        """Return the number of names, members included."""
        members = sum(map(len, self.types.values()))
        return len(self.types) + members + sum(len(self.names(kind)) for kind in KINDS)

    def to_json(self) -> dict[str, Any]:
        """Return the names in alphabetical order."""
        types = {name: sorted(members) for name, members in sorted(self.types.items())}
        return {"types": types, **{kind: sorted(self.names(kind)) for kind in KINDS}}


def label_of(node: Node) -> str:
    """Return the name of a type for a lookup, such as ``struct page``; empty without a name."""
    if node.kind in (*COMPOUND, TypeKind.ENUM):
        return f"{node.kind.name.lower()} {node.tag}" if node.tag else ""
    return node.name or ""


def lookups() -> Lookups:
    """Return the recorded names."""
    if not _PATH.exists():
        return Lookups()
    document = json.loads(_PATH.read_text())
    types = {name: set(members) for name, members in document["types"].items()}
    return Lookups(types, **{kind: set(document[kind]) for kind in KINDS})


_OF_HELPERS = """
task_state_array avenrun taint_flags uidhash_table swap_info nr_swapfiles sysctl_overcommit_kbytes
sysctl_overcommit_memory sysctl_overcommit_ratio total_swap_pages
hugetlb_max_hstate hstates default_hstate_idx vm_committed_as sysfs_root_kn
saved_command_line userspace_init_fs
"""


def of_helpers() -> Lookups:
    """Return names that kcensus does not use, but drgn's helpers at a prompt do: those for paths,
    control groups, the states and load of tasks, taints, page flags, users and swap."""
    tags = ("kernfs_root", "user_struct", "swap_info_struct", "taint_flag", "hstate")
    constants = {"__NR_PAGEFLAGS", "CSS_ONLINE", "CSS_RELEASED", "SWP_USED", "SWP_WRITEOK"}
    return Lookups({f"struct {tag}": set() for tag in tags}, set(_OF_HELPERS.split()), constants)


def save(names: Lookups) -> None:
    """Write the recorded names, one a line."""
    document = names.to_json()
    types = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(members)}"
        for name, members in document.pop("types").items()
    )
    rest = json.dumps(document, indent=1)[1:]
    _PATH.write_text('{\n "types": {\n' + types + "\n }," + rest + "\n")
