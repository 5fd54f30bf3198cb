# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory that cgroups leave, from trees of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kcensus.limits.cgroups import available_bytes

_V1 = "memory/docker/ab/memory"
_NO_LIMIT = "9223372036854771712"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("", {}, None),
        ("0::/\n", {"memory.max": "500", "memory.current": "100"}, 400),
        # Nobody but the root of the machine has no file.
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/b/memory.current": "7"}, None),
        # The least of all above counts, and cache is not in the way.
        (
            "0::/a/b\n",
            {
                "a/b/memory.max": "900", "a/b/memory.current": "100",
                "a/memory.max": "1000", "a/memory.current": "900",
                "a/memory.stat": "anon 1\nactive_file 100\ninactive_file 200\nslab_reclaimable 50",
            },
            450,
        ),
        ("0::/a\n", {"a/memory.max": "10", "a/memory.current": "90"}, 0),
        (
            "5:cpu,cpuacct:/x\n4:memory:/docker/ab\n0::/init\n",
            {
                f"{_V1}.limit_in_bytes": "800", f"{_V1}.usage_in_bytes": "300",
                f"{_V1}.stat": "inactive_file 9\ntotal_inactive_file 50\ntotal_active_file 50\n",
                "cpu,cpuacct/x/memory.max": "1", "cpu,cpuacct/x/memory.current": "1",
            },
            600,
        ),
        # A container that has the path of the host, and its own directory mounted.
        (
            "4:memory:/kubepods/pod1\n",
            {"memory/memory.limit_in_bytes": "80", "memory/memory.usage_in_bytes": "30"},
            50,
        ),
        ("0::/../../outside\n", {"memory.max": "70", "memory.current": "30"}, 40),
        (
            "4:memory:/\n",
            {"memory/memory.limit_in_bytes": _NO_LIMIT, "memory/memory.usage_in_bytes": "12"},
            int(_NO_LIMIT) - 12,
        ),
    ],
)  # fmt: skip
def test_the_least_room(
    tmp_path: Path, own: str, files: Mapping[str, str], expected: int | None
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert available_bytes(tmp_path / "own", tmp_path / "fs") == expected


def test_a_sandbox_without_the_files(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "absent", tmp_path) is None
