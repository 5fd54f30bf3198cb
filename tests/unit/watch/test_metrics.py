# SPDX-License-Identifier: LGPL-2.1-or-later
"""Metrics, read by both parsers of ``prometheus_client``; dashboard and rules use no others."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from kcensus.analyses import analyses
from kcensus.outputs import OutputError
from kcensus.results import Unit
from kcensus.watch import MAX_ROWS, exposition
from kcensus.watch import metrics as exported
from kcensus.watch.exposition import MetricsFile, serving, text
from kcensus.watch.metrics import MAX_SERIES, Metrics, name_of
from kcensus.watch.samples import Sample
from tests.unit.watch import making
from tests.unit.watch.making import START, state

Parse = Callable[[str], Iterable[Metric]]

HOSTILE = [
    *("new\nline", "carriage\rreturn", 'quo"te', "back\\slash", "back\\nslash", "\\"),
    *("\x1b[31mred\x1b]0;title\x07", "\udc80\udcff", "\ud800", "\0", "\u202egnp.exe", "\u2028"),
    *('{a="b"} 1\n# EOF\nkcensus_up 7', "", " ", "n" * 4096, "n" * 4095 + "m"),
]


def metrics_of(
    sample: Sample, labels: dict[str, str] | None = None, rows: int = MAX_ROWS
) -> Metrics:
    made = Metrics(labels, rows=rows)
    made.set(sample, every=10, cpu_seconds=1.5, resident_bytes={"anonymous": 1 << 20})
    return made


@pytest.fixture(params=[text_string_to_metric_families, openmetrics.text_string_to_metric_families])
def parse(request: pytest.FixtureRequest) -> Parse:
    chosen: Parse = request.param
    return chosen


def values(parse: Parse, metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in parse(text(metrics).decode()):
        assert family.type == "gauge"
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


@pytest.mark.parametrize(
    ("words", "unit", "name"),
    [
        (("slab", "slab_bytes"), Unit.BYTES, "kcensus_slab_slab_bytes"),
        (("slab", "utilization"), Unit.RATIO, "kcensus_slab_utilization_ratio"),
        (("slab", "objects_total"), Unit.COUNT, "kcensus_slab_total_objects"),
        (("list-lru", "lrus", "row", "items"), Unit.COUNT, "kcensus_list_lru_lrus_row_items"),
        (("waits", "longest_wait"), Unit.SECONDS, "kcensus_waits_longest_wait_seconds"),
        (("memcgs", "swapped_pages"), Unit.PAGES, "kcensus_memcgs_swapped_pages_bytes"),
    ],
)
def test_names(words: tuple[str, ...], unit: Unit, name: str) -> None:
    assert name_of(*words, unit=unit) == name


def test_figures_health_and_findings(parse: Parse) -> None:
    state.findings = ("full:a", "full:b")
    found = values(parse, metrics_of(making.sampler().take()))
    plain = {name: value for (name, labels), value in found.items() if not labels}
    assert plain["kcensus_made_up_nr_made"] == 100
    assert plain["kcensus_made_up_used_bytes"] == 4096
    assert plain["kcensus_made_up_total_objects"] == 7
    assert plain["kcensus_made_up_share_ratio"] == 0.25
    assert plain["kcensus_made_up_oldest_seconds"] == 12.5
    assert plain["kcensus_made_up_is_limited"] == 1
    assert not any("mechanism" in name or "unknown" in name for name in plain)
    assert plain["kcensus_up"] == 1
    assert plain["kcensus_interval_seconds"] == 10
    assert plain["kcensus_last_sample_timestamp_seconds"] == START
    assert plain["kcensus_last_census_timestamp_seconds"] == START + 3
    # The counters are read before and after.
    assert plain["kcensus_census_cpu_seconds"] == pytest.approx(2.02)
    assert found["kcensus_resident_bytes", (("kind", "anonymous"),)] == 1 << 20

    analysis = ("analysis", "made-up")
    assert found["kcensus_findings", (analysis, ("severity", "warning"))] == 2
    assert found["kcensus_findings", (analysis, ("severity", "critical"))] == 0
    assert found["kcensus_gaps", (analysis,)] == 1
    assert found["kcensus_checks_differ", (analysis,)] == 1
    assert found["kcensus_analysis_up", (analysis,)] == 1


def test_hostile_names_survive(parse: Parse) -> None:
    state.rows = {name: 1000 + number for number, name in enumerate(HOSTILE)}
    state.findings = tuple(HOSTILE)
    sample = making.sampler().take()
    found = values(parse, metrics_of(sample, {"guest": "".join(HOSTILE)}))
    places = {
        dict(labels)["place"]: value
        for (name, labels), value in found.items()
        if name == "kcensus_made_up_rows_row_bytes"
    }
    assert sorted(places.values()) == [1000.0 + number for number in range(len(HOSTILE))]
    assert all(len(place) <= 200 and place.isprintable() for place in places)
    assert {len(dict(labels)["guest"]) for _, labels in found} == {200}
    assert [value for (name, _), value in found.items() if name == "kcensus_up"] == [1]


def test_equal_names_are_added(parse: Parse) -> None:
    state.rows = {"a\n": 1, "a\\x0a": 2}
    found = values(parse, metrics_of(making.sampler().take()))
    rows = {key[1]: value for key, value in found.items() if key[0].endswith("rows_row_bytes")}
    assert rows == {(("place", "a\\x0a"),): 3}


def test_rows_are_bounded_and_the_rest_is_counted(
    parse: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.rows = {f"/{number}": 1 + number for number in range(1000)}
    sample = making.sampler().take()
    for limit, wanted, rows in (
        *((MAX_SERIES, MAX_ROWS, MAX_ROWS), (7, MAX_ROWS, 7)),
        *((MAX_SERIES, 3, 3), (MAX_SERIES, 0, 0)),
    ):
        monkeypatch.setattr(exported, "MAX_SERIES", limit)
        found = values(parse, metrics_of(sample, rows=wanted))
        kept = [value for (name, _), value in found.items() if name.endswith("rows_row_bytes")]
        assert sorted(kept) == list(range(1001 - rows, 1001))
        left_out = {key[1]: found[key] for key in found if key[0] == "kcensus_rows_left_out"}
        labels = (("analysis", "made-up"), ("table", "rows"))
        assert left_out == ({labels: 1000 - rows} if wanted else {})


@pytest.mark.slow
def test_pages_are_exported_in_bytes(parse: Parse) -> None:
    sample = making.sampler(analyses()["dentries"]).take()
    assert sample.census is not None
    pages = sample.census.results["dentries"].summary["pages_freeable"]
    assert pages.unit is Unit.PAGES
    assert isinstance(pages.value, int)
    assert sample.page_bytes == 4096
    found = values(parse, metrics_of(sample))
    assert found["kcensus_dentries_pages_freeable_bytes", ()] == pages.value * 4096
    unknown = values(parse, metrics_of(replace(sample, page_bytes=None)))
    assert ("kcensus_dentries_pages_freeable_bytes", ()) not in unknown


def test_two_metrics_of_one_name_are_refused() -> None:
    sample = making.sampler().take()
    twice = sample.last_gauges["made-up"] * 2
    with pytest.raises(ValueError, match="kcensus_made_up_nr_made"):
        metrics_of(replace(sample, last_gauges={"made-up": twice}))


def test_a_kernel_that_cannot_be_read_has_no_figures(parse: Parse) -> None:
    # Before the first sample, it is not up.
    found = values(parse, Metrics({"guest": "a"}))
    assert found == {("kcensus_up", (("guest", "a"),)): 0}
    sampler = making.sampler()
    made = metrics_of(sampler.take())
    sample = Sample(2, START, 10, unreadable="it ended")
    made.set(sample, every=10, cpu_seconds=1)
    found = values(parse, made)
    assert found["kcensus_up", ()] == 0
    assert not any(name.startswith("kcensus_made_up") for name, _ in found)
    assert found["kcensus_analysis_up", (("analysis", "made-up"),)] == 0


def test_failures_are_counted(parse: Parse) -> None:
    sampler, made = making.sampler(census=0), Metrics()
    for fault in (None, ValueError("torn"), ValueError("torn")):
        state.gauge_fault = fault
        making.clock.now += 1000  # so long that reading them again costs next to nothing
        made.set(sampler.take(), every=10, cpu_seconds=1)
    found = values(parse, made)
    labels = (("analysis", "made-up"),)
    assert found["kcensus_analysis_failures", labels] == 2
    assert found["kcensus_analysis_up", labels] == 0


@pytest.mark.slow
def test_every_figure_of_every_analysis_has_a_name_of_its_own(parse: Parse) -> None:
    sampler = making.sampler(*analyses().values())
    sample = sampler.take()
    made = metrics_of(sample)
    assert sample.census is not None
    results = sample.census.results.items()
    names = [
        *(
            name_of(analysis, gauge.key, unit=gauge.unit)
            for analysis, gauges in sample.gauges.items()
            for gauge in gauges
        ),
        *(
            name_of(analysis, key, unit=figure.unit)
            for analysis, each in results
            for key, figure in each.summary.items()
            if isinstance(figure.value, bool | int | float)
        ),
        *(
            name_of(analysis, rows.spec.name, "row", metric, unit=column.unit)
            for analysis, each in results
            for rows in each.tables
            for metric, column in rows.columns.items()
        ),
    ]
    assert len({*names}) == len(names) > 100
    assert {*names} < {family.name for family in made.collect()}
    rows = [key for key in values(parse, made) if key[1] and key[1][0][0] != "analysis"]
    assert 200 < len(rows) <= MAX_SERIES


def test_a_file_is_replaced_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "kcensus.prom"
    made = metrics_of(making.sampler().take())
    file = MetricsFile(path)
    file.write(made)
    first = path.stat().st_ino
    file.write(made)
    assert path.read_bytes() == text(made)
    assert path.stat().st_ino != first
    assert [*tmp_path.iterdir()] == [path]
    file.remove()
    file.remove()
    assert not path.exists()
    # A file of another process stays.
    path = tmp_path / "kcensus.prom"
    made = metrics_of(making.sampler().take())
    path.write_text("older")
    mine = MetricsFile(path)
    mine.remove()
    assert path.read_text() == "older"
    mine.write(made)
    for _ in range(2):  # the second one may have the inode that the first one was given
        MetricsFile(path).write(made)
        mine.remove()
        assert path.exists()


def scraped(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        found: bytes = answer.read()
    return found


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_a_port_serves_the_last_sample() -> None:
    made = metrics_of(making.sampler().take())
    threads = threading.active_count()
    with serving(made, "127.0.0.1", 0) as port:
        assert b"kcensus_up 1.0" in scraped(port)
        with pytest.raises(OutputError, match=str(port)), serving(made, "127.0.0.1", port):
            pass
    wait_for(lambda: threading.active_count() == threads)


@pytest.mark.slow
def test_idle_and_slow_clients_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 16
    monkeypatch.setattr(exposition, "_MAX_CONNECTIONS", most)
    monkeypatch.setattr(exposition, "_MAX_SECONDS", 3600)
    monkeypatch.setattr(exposition._Handler, "timeout", 3600)
    with ExitStack() as stack:
        port = stack.enter_context(serving(Metrics(), "127.0.0.1", 0))

        def connected() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))

        threads, size = threading.active_count(), private_bytes()
        idle = [connected() for _ in range(most)]
        wait_for(lambda: threading.active_count() == threads + most)
        assert private_bytes() - size < most << 20
        assert scraped(port)
        assert idle[0].recv(1) == b"", "the oldest had to go"
        for each in idle[1:]:
            each.send(b"G")
            each.close()
        wait_for(lambda: threading.active_count() == threads)
        slow = connected()
        slow.send(b"GET /metrics HTTP/1.0\r\n")
        wait_for(lambda: threading.active_count() > threads)
        monkeypatch.setattr(exposition, "_MAX_SECONDS", 0)
        with suppress(BrokenPipeError, ConnectionResetError):
            while True:  # less than the time-out apart, and for ever
                slow.send(b"X: y\r\n")
                time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "value", ["\xff", "application/openmetrics-text;version=\xff", ";q=", "a" * 9000]
)
def test_a_strange_accept_gets_metrics(value: str) -> None:
    with serving(Metrics(), "127.0.0.1", 0) as port:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/metrics", headers={"Accept": value})
        assert connection.getresponse().status == 200


def private_bytes() -> int:
    (size,) = re.findall(r"^VmData:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    return int(size) << 10


@pytest.mark.slow
def test_nothing_is_said_of_clients_that_go_away(capfd: pytest.CaptureFixture[str]) -> None:
    with serving(Metrics(), "127.0.0.1", 0) as port:
        threads = threading.active_count()
        with socket.create_connection(("127.0.0.1", port)) as client:
            wait_for(lambda: threading.active_count() > threads)
            client.send(b"GET /metr")
            reset = struct.pack("ii", 1, 0)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        wait_for(lambda: threading.active_count() == threads)
    assert capfd.readouterr() == ("", "")


MONITORING = Path(__file__).parents[3] / "docs" / "monitoring"


@pytest.fixture(scope="module")
def names() -> set[str]:
    made = Metrics(rows=1)
    sample = making.sampler(*analyses().values()).take()
    made.set(sample, every=10, cpu_seconds=1, resident_bytes={"anonymous": 1})
    return {family.name for family in made.collect()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kcensus.json", "alerts.yml", "README.md"])
def test_metrics_exist(name: str, names: set[str]) -> None:
    named = {*re.findall(r"\bkcensus_[a-z0-9_]+\b", (MONITORING / name).read_text())}
    assert len(named) > 6
    assert named - names == set()


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads((MONITORING / "kcensus.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    for panel in panels:
        assert panel["description"]
        assert all("$instance" in target["expr"] for target in panel["targets"])
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
