# SPDX-License-Identifier: LGPL-2.1-or-later
"""`kcensus fleet run` on real Dask clusters: on this machine, and over TCP with workers killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import kcensus
from kcensus.cli import run as command
from kcensus.fleets import store as stored
from kcensus.fleets.tables import SCHEMAS
from kcensus.samples import capsule
from tests.machines import ENVIRONMENT, Machines, until
from tests.varied import Varied

distributed = pytest.importorskip("distributed")

# One cheap analysis: 0.2 s for a capsule.
ANALYSIS = "list-lru"
POISON = {
    "corrupt.capsule": "analyse", "empty": "content", "fifo": "content", "loop": "content",
    "missing": "content", "socket": "content", "text": "open", "truncated.capsule": "open",
}  # fmt: skip


@pytest.fixture(scope="module")
def capsules(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("fleet")
    paths = []
    for number in range(14):
        path = place / f"{number:02}.capsule"
        Varied.of("sample-waits").write(path, f"host{number % 7}", number + 1, number * 3600)
        paths.append(path)
    return paths


@pytest.fixture(scope="module")
def poison(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("poison")
    sample = capsule("sample-waits")
    assert sample
    data = sample.read_bytes()
    half = len(data) // 2
    (place / "corrupt.capsule").write_bytes(data[:half] + bytes(4096) + data[half + 4096 :])
    (place / "truncated.capsule").write_bytes(data[:half])
    (place / "empty").touch()
    (place / "text").write_text("no dump\n")
    (place / "loop").symlink_to("loop")
    os.mkfifo(place / "fifo")
    with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(place):
        listening.bind("socket")
        yield place


def rows(store: Path, table: str = "targets") -> pd.DataFrame:
    frame: pd.DataFrame = stored.read(store, table).to_pandas()
    return frame


def without_orphans(store: Path) -> None:
    """Check that all rows belong to a target that counts, once the store is opened to write."""
    with stored.writer(store) as writer:
        known = set(writer.targets()["attempt"].to_pylist())
        for name in SCHEMAS:
            assert {*writer._read(name, ["attempt"])["attempt"].to_pylist()} <= known


@pytest.mark.slow
def test_each_target_of_a_cluster_has_one_row(
    capsules: list[Path], poison: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    copies = [Path(shutil.copy(path, tmp_path)) for path in capsules[:2]]
    paths = [*capsules, *copies, *(poison / name for name in POISON)]
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        workers = {f"{socket.gethostname()}:{each}" for each in client.run(os.getpid).values()}
        made = kcensus.fleet(paths, store=store, client=client, analyses=[ANALYSIS])
        again = kcensus.fleet(paths, store=store, client=client, analyses=[ANALYSIS])
    assert [*made["target"]] == [*map(str, paths)]
    assert made["state"].value_counts().to_dict() == {"done": 14, "failed": 8, "duplicate": 2}
    failed = made[made["state"] == "failed"]
    assert dict(zip(failed["target"].map(os.path.basename), failed["step"], strict=True)) == POISON
    assert failed["error"].str.len().min() > 10
    done = made[made["state"] == "done"]
    assert done["host"].nunique() == 7
    assert {*done["worker"]} <= workers  # one may have done all before the other is ready
    assert done["peak_bytes"].between(50 << 20, 1 << 30).all()
    # What is done is not done again: its rows are the same.
    same = made["state"] != "failed"
    assert {*made["attempt"][same]} == {*again["attempt"][again["state"] != "failed"]}
    assert len(again) == len(made)
    without_orphans(store)
    assert set(rows(store, "checks")["attempt"]) == {*done["attempt"]}
    assert kcensus.history(store, part="summary")["host"].nunique() == 7
    assert command(["trend", str(store), "--json"]) == 0


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nowhere", "tcp://[::1"])
def test_a_scheduler_that_does_not_answer_is_a_sentence(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcensus.fleets.clients.PATIENCE", 0.3)
    lines: list[str] = []
    words = ["fleet", "run", "sample", "--store", str(tmp_path / "x"), "--scheduler", address]
    assert command(words, lines.append) == 3
    assert len(lines) == 1
    assert f"'{address}'" in lines[0]
    assert not (tmp_path / "x").exists()


# Batches of few targets, slowly, so that some but not all are written before the client is killed.
CLIENT = """
import time
from kcensus.fleets import run, store
run._BATCH = 3
add = store.Writer.add
def slow(self, batch):
    add(self, batch)
    time.sleep(0.3)
store.Writer.add = slow
from kcensus.__main__ import main
raise SystemExit(main())
"""


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    try:
        yield made
    finally:
        made.close()


def started(store: Path, paths: list[Path], *words: str) -> subprocess.Popen[bytes]:
    """Start a run in a process group of its own."""
    common = ["fleet", "run", *map(str, paths), "--store", str(store), "--analyses", ANALYSIS]
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, *common, "--no-progress", *words],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
    )  # fmt: skip


def client(machines: Machines, store: Path, paths: list[Path]) -> subprocess.Popen[bytes]:
    return started(store, paths, "--scheduler", machines.address)


def number(store: Path) -> int:
    with contextlib.suppress(kcensus.FleetError):
        return len(stored.read(store, "targets"))
    return 0


@pytest.mark.slow
def test_killed_workers_and_clients_lose_no_target(
    machines: Machines, capsules: list[Path], poison: Path, tmp_path: Path
) -> None:
    store, paths = tmp_path / "store", [*capsules, *(poison / name for name in POISON)]
    running = client(machines, store, paths)
    until(lambda: number(store) >= 3, running)
    with distributed.Client(machines.address) as view:
        view.wait_for_workers(2, timeout=20)
        workers = view.run(os.getpid)
    os.kill(next(iter(workers.values())), signal.SIGKILL)
    until(lambda: number(store) >= 8, running)
    running.kill()
    running.communicate()
    assert 8 <= number(store) < len(paths)

    running = client(machines, store, paths)
    before = number(store)
    until(lambda: number(store) > before, running)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=20)
    assert (running.returncode, b"interrupted" in errors) == (130, True)

    running = client(machines, store, paths)
    output, errors = running.communicate(timeout=60)
    assert (running.returncode, b"22 targets" in output) == (6, True), errors
    made = rows(store)
    assert sorted(made["target"]) == sorted(map(str, paths))
    assert made["state"].value_counts().to_dict() == {"done": 14, "failed": 8}
    without_orphans(store)
    of_each = rows(store, "checks").groupby("attempt").size()
    assert of_each.index.isin(made["attempt"]).all()
    assert (len(of_each), of_each.nunique()) == (14, 1)
    assert (
        not rows(store, "figures")
        .duplicated(["record", "analysis", "part", "subject", "metric"])
        .any()
    )


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_ends_a_local_cluster_without_a_traceback(
    capsules: list[Path], poison: Path, tmp_path: Path
) -> None:
    paths = [*capsules, *(poison / name for name in POISON)]
    running = started(tmp_path / "store", paths, "--workers", "1")
    until(lambda: number(tmp_path / "store") >= 3, running)
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=20)  # all processes have closed stderr
    lines = [line for line in errors.splitlines() if not line.startswith(b"kcensus: dashboard")]
    assert (running.returncode, len(lines)) == (130, 2), errors
    assert 3 <= number(tmp_path / "store") < len(paths)
