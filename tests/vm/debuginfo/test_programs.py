# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs of drgn without debug info: the types of the kernel stay those of the first analysis."""

from __future__ import annotations

import drgn
import pytest

from kcensus.sources import TargetError, open_target
from kcensus.sources.opened import adopt
from tests.lab import Dump, build


@pytest.mark.newest
def test_a_program_keeps_its_types(mixed_dump: Dump) -> None:
    prog = drgn.Program()
    prog.set_core_dump(mixed_dump.core)
    first = adopt(prog)
    assert first.types == "BTF"
    assert first.need_modules("dm_mod") == []
    second = adopt(prog)
    assert second.types == "BTF"
    assert second.need_modules("dm_mod", "dm_snapshot") == []
    assert prog.type("struct dm_kcopyd_client").has_member("complete_jobs")
    # Debug info comes before them.
    assert adopt(prog, (mixed_dump.vmlinux,)).types == "DWARF"


def test_files_of_modules_complete_a_kernel_without_their_types() -> None:
    dump = build("5.10", "mixed")
    target = open_target(str(dump.core), dump.debug[1:])
    assert target.types == "BTF"
    assert target.need_modules("dm_mod", "xfs") == []
    assert target.prog.type("struct dm_kcopyd_client").has_member("complete_jobs")


def test_a_vmlinux_in_the_environment_is_for_its_kernel_only(
    mixed_dump: Dump, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = build({"7.3": "6.1"}.get(mixed_dump.kernel, "7.3"), "mixed")
    monkeypatch.setenv("KCENSUS_SYMBOLS", str(other.vmlinux))
    assert open_target(str(mixed_dump.core)).types == "BTF"
    monkeypatch.delenv("KCENSUS_SYMBOLS")
    with pytest.raises(TargetError, match="does not belong to this kernel"):
        open_target(str(mixed_dump.core), [other.vmlinux])
