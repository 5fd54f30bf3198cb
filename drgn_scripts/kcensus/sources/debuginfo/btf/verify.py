# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hold types against the sizes and offsets in VMCOREINFO: BTF does not name its kernel."""

from __future__ import annotations

import re

import drgn
from drgn import TypeKind

from kcensus.sources.debuginfo.btf.format import BadBtf
from kcensus.sources.debuginfo.btf.types import Btf
from kcensus.sources.types.nodes import build

_LINE = re.compile(r"(SIZE|OFFSET)\((\w{1,64})(?:\.(\w{1,64}))?\)=(\d{1,9})\s*")
_LEAST = 8
"""VMCOREINFO of all kernels since 3.10 has more than twenty of these lines."""


def verify(prog: drgn.Program, btf: Btf) -> None:
    """Raise :class:`BadBtf` unless types have the sizes and offsets that VMCOREINFO says."""
    compared = 0
    for line in prog["VMCOREINFO"].string_().decode(errors="replace").split("\n"):
        match = _LINE.fullmatch(line)
        kinds = (TypeKind.STRUCT, TypeKind.TYPEDEF)
        ref = next((ref for kind in kinds if match and (ref := btf.find(kind, match[2]))), None)
        if not match or ref is None:
            continue
        type_ = build(prog, ref)
        try:
            found = drgn.offsetof(type_, match[3]) if match[3] else drgn.sizeof(type_)
        except (LookupError, TypeError):
            raise BadBtf(f"they lack {match[2]}.{match[3]}, which VMCOREINFO has") from None
        if found != int(match[4]):
            what = f"{match[1].lower()} of {match[2]}{'.' if match[3] else ''}{match[3] or ''}"
            raise BadBtf(f"they are of another kernel: the {what} is {found}, not {match[4]}")
        compared += 1
    if compared < _LEAST:
        raise BadBtf("VMCOREINFO has too few sizes to tell that they are of this kernel")
