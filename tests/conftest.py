# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps of real kernels for the tests that ask for them.

A dump that cannot be made is an error of the test that needs it, never a skip. To run without the
lab, name the other tests: ``pytest tests/unit tests/sample``.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from kcensus.sources import Target
    from tests.lab import Dump

_TESTS = Path(__file__).parent

# The time of an example depends on the load of the machine more than on the code.
settings.register_profile("fast", deadline=None, max_examples=15)
settings.register_profile("slow", deadline=None, max_examples=200)
settings.load_profile("fast")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bench-smoke", action="store_true", help="measure briefly: not what is marked long"
    )
    parser.addoption(
        "--slow", action="store_true", help="also run what takes seconds: tests marked slow"
    )
    parser.addoption(
        "--all", action="store_true", help="--slow, and what is usually run on some kernels only"
    )
    parser.addoption(
        "--repetitions", type=int, help="of each analysis under load (default: none; --all: 1)"
    )
    parser.addoption(
        "--fuzz-cases", type=int, default=25, help="damaged capsules to open (default: 25)"
    )


# Settings of the user that change what a command prints or where it looks.
_SETTINGS = re.compile(
    "_?KCENSUS_(?!LAB_|BENCH_).*|DRGN_.*|DEBUGINFOD_URLS|PAGER|LESS.*|COLUMNS|LINES|LANG|LANGUAGE|LC_.*"
    "|NO_COLOR|FORCE_COLOR|TTY_.*"
    "|PYTHON(DONTWRITEBYTECODE|IOENCODING|UNBUFFERED|UTF8|WARNINGS|STARTUP|_.*)"
)


def pytest_configure(config: pytest.Config) -> None:
    """Give tests, and the commands that they start, the same environment wherever they run."""
    if config.getoption("--slow") or config.getoption("--all"):
        settings.load_profile("slow")
    for name in [name for name in os.environ if _SETTINGS.fullmatch(name)]:
        del os.environ[name]
    os.environ |= {"LC_ALL": "C.UTF-8", "TERM": "xterm"}
    sys.dont_write_bytecode = False  # many processes are started
    # A shell has what it starts in the background ignore SIGINT and SIGQUIT; nohup, SIGHUP.
    # A handler that does nothing ignores a signal here, and not in the processes that tests start.
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _samples_are_parsed_once() -> Iterator[None]:
    """Let a process parse the types of a capsule once; tests open samples 500 times."""
    from kcensus.samples import DIRECTORY
    from kcensus.sources.capsule.container import Reader
    from kcensus.sources.capsule.lookups import Lookups

    read, parse = Reader.json_section, Lookups.from_json
    documents: dict[str, dict[str, Any]] = {}
    lookups: dict[int, Lookups] = {}

    def json_section(self: Reader, name: str) -> dict[str, Any]:
        path = self._file.name
        if name != "lookups" or Path(path).parent not in (DIRECTORY, _TESTS / "unit" / "data"):
            return read(self, name)
        if path not in documents:
            documents[path] = read(self, name)
        return documents[path]

    def from_json(document: dict[str, Any], lacking: Callable[[str], Exception]) -> Lookups:
        if not any(document is each for each in documents.values()):
            return parse(document, lacking)
        if id(document) not in lookups:
            lookups[id(document)] = parse(document, lacking)
        # A program adds to its lookups.
        return Lookups(**{name: dict(each) for name, each in vars(lookups[id(document)]).items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reader, "json_section", json_section)
        patch.setattr(Lookups, "from_json", staticmethod(from_json))
        yield


@pytest.fixture(scope="session")
def one_cpu() -> Iterator[None]:
    """Read compressed samples in this process: it is large, and takes 40 ms to fork."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        yield


_WORKERS_BEGIN = ("_TRIAL_SECONDS", "_GAIN_SECONDS")


@pytest.fixture(scope="session", autouse=True)
def _workers_at_once() -> Iterator[dict[str, float]]:
    """Let worker processes do all tasks but the first, however little these are."""
    from kcensus.engine import memory

    before = {name: getattr(memory, name) for name in _WORKERS_BEGIN}
    with pytest.MonkeyPatch.context() as patch:
        for name in before:
            patch.setattr(memory, name, 0)
        yield before


@pytest.fixture
def workers_that_gain(_workers_at_once: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let worker processes begin as a user sees it."""
    for name, seconds in _workers_at_once.items():
        monkeypatch.setattr(f"kcensus.engine.memory.{name}", seconds)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kernel" in metafunc.fixturenames:
        from tests.lab import alike, kernels

        marker = metafunc.definition.get_closest_marker("kernels")
        names = list(marker.args if marker else kernels())
        machines = metafunc.definition.get_closest_marker("machines")
        if marker is None and machines:
            names += machines.args or [other for name in kernels() for other in alike(name)]
        metafunc.parametrize("kernel", names, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    with_all = config.getoption("--all")
    # What is named runs, too.
    with_slow = with_all or config.getoption("--slow") or any("::" in each for each in config.args)
    left_out = {item for item in items if _is_impossible(item) or (not with_all and _is_rare(item))}
    if config.getoption("--bench-smoke"):
        left_out.update(item for item in items if item.get_closest_marker("long"))
    if not with_slow:
        left_out.update(item for item in items if item.get_closest_marker("slow"))
        left_out.update(_between([item for item in items if item.get_closest_marker("ends")]))
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        folder = item.path.relative_to(_TESTS).parts[0]
        if folder in ("vm", "bench"):
            item.add_marker(folder)
            if folder == "bench" and isinstance(item, pytest.Function):
                item.fixturenames.insert(0, "workers_that_gain")
        elif isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "one_cpu")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep modules and tests out of what the garbage collector looks at again and again."""
    gc.collect()
    gc.freeze()
    # Dumps of kernels leave more behind.
    if not any(item.get_closest_marker("vm") for item in session.items):
        gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Let one process run the tests of a file for one kernel: they share what is slow to make."""
    from xdist.scheduler import LoadScopeScheduling

    from tests.lab import kernels

    known = set(kernels(every=True))

    # xdist publishes no types.
    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            if file.startswith("tests/sample/") and not file.startswith("tests/sample/docs/"):
                file = "tests/sample"  # which examines each sample once
            words = known.intersection(re.split(r"[][ -]", test))
            return " ".join([file, *sorted(words)])

    return Scheduling(config, log)


def _between(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield all cases of each test but the first and the last one."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for each in cases.values():
        yield from each[1:-1]


def _is_impossible(item: pytest.Item) -> bool:
    """Return whether the kernel of another machine that a test is for cannot run its scenario."""
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    words = {each for each in params if isinstance(each, str)}
    if not any("-arm64" in word for word in words):
        return False
    from tests.lab import kernels_of, scenarios

    return any(not words & {*kernels_of(name)} for name in words.intersection(scenarios()))


def _is_rare(item: pytest.Item) -> bool:
    """Return whether a test is for other parameters than those of its mark ``usually``.

    An argument of the mark is one parameter, or several with blanks between them, all of which the
    test must have. Without the mark, a test is usually run on the oldest and the newest kernel, and
    with the mark ``newest`` on the latter; of those of other machines, on what is built unasked.
    """
    from tests.lab import alike, kernels, usual_scenarios

    usually = item.get_closest_marker("usually") or item.get_closest_marker("kernels")
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if usually is None and "kernel" not in params:
        return False
    oldest, *_, newest = kernels()
    ends = [newest] if item.get_closest_marker("newest") else [oldest, newest]
    ends += [other for name in kernels() for other in alike(name) if usual_scenarios(other)]
    wanted = usually.args if usually else ends
    values = {str(each) for each in params.values() if isinstance(each, str | int)}
    return not any({*str(each).split()} <= values for each in wanted)


@pytest.fixture(scope="session")
def bench_smoke(request: pytest.FixtureRequest) -> bool:
    """Whether benchmarks run briefly, to show that they work, instead of measuring well."""
    return bool(request.config.getoption("--bench-smoke"))


@pytest.fixture
def without_btf(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of kernels has no types."""
    from kcensus.sources.debuginfo import kallsyms

    def load(prog: object) -> None:
        raise kallsyms.BadKallsyms("the page at 0x1000 is not in the dump")

    monkeypatch.setattr(kallsyms, "load", load)


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
