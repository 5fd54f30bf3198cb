# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps of real kernels for the tests that ask for them.

A dump that cannot be made is an error of the test that needs it, never a skip. To run without the
lab, name the other tests: ``pytest tests/unit tests/sample``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from kcensus.sources import Target
    from tests.lab import Dump

_TESTS = Path(__file__).parent

# The time of an example depends on the load of the machine more than on the code.
settings.register_profile("kcensus", deadline=None)
settings.load_profile("kcensus")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bench-smoke", action="store_true", help="measure briefly, on small inputs only"
    )
    parser.addoption(
        "--all", action="store_true", help="also run what is usually run on some kernels only"
    )
    parser.addoption(
        "--repetitions", type=int, default=1, help="of each analysis under load (default: 1)"
    )
    parser.addoption(
        "--fuzz-cases", type=int, default=1000, help="damaged capsules to open (default: 1000)"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kernel" in metafunc.fixturenames:
        from tests.lab import kernels

        marker = metafunc.definition.get_closest_marker("kernels")
        metafunc.parametrize("kernel", marker.args if marker else kernels(), scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all"):
        rare = [item for item in items if _is_rare(item)]
        config.hook.pytest_deselected(items=rare)
        items[:] = [item for item in items if item not in rare]
    for item in items:
        for name in ("vm", "bench"):
            if item.path.is_relative_to(_TESTS / name):
                item.add_marker(name)


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Let one process run the tests of a file for one kernel: they share what is slow to make."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    from tests.lab import kernels

    known = set(kernels())

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            words = known.intersection(re.split(r"[][ -]", test))
            return " ".join([file, *sorted(words)])

    return Scheduling(config, log)


def _is_rare(item: pytest.Item) -> bool:
    """Return whether a test is for other parameters than those of its mark ``usually``.

    An argument of the mark is one parameter, or several with blanks between them, all of which the
    test must have.
    """
    usually = item.get_closest_marker("usually")
    if usually is None or not isinstance(item, pytest.Function):
        return False
    values = {str(each) for each in item.callspec.params.values() if isinstance(each, str | int)}
    return not any({*str(each).split()} <= values for each in usually.args)


@pytest.fixture(scope="session")
def bench_smoke(request: pytest.FixtureRequest) -> bool:
    """Whether benchmarks run briefly, to show that they work, instead of measuring well."""
    return bool(request.config.getoption("--bench-smoke"))


@pytest.fixture(scope="session")
def mixed_dump(kernel: str) -> Dump:
    """A dump of each kernel of the lab whose workload has something for every analysis."""
    from tests.lab import build

    return build(kernel, "mixed")


@pytest.fixture(scope="session")
def mixed_target(mixed_dump: Dump) -> Target:
    """The same dump, opened as the command opens it."""
    from kcensus.sources import open_target

    return open_target(str(mixed_dump.formats["elf"]), mixed_dump.debug)
