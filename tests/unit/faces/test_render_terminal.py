# SPDX-License-Identifier: LGPL-2.1-or-later
"""The screen: order, widths, units, bars, and hostile names."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from kcensus.human import counted, human, human_bytes, human_ratio
from kcensus.render.html import write_html
from kcensus.render.screen import Screen, console_for
from kcensus.render.screen.wrapping import continued, wrapped
from kcensus.render.terminal import print_findings, write_terminal
from kcensus.results import Bound, Check, Figure, Gap, Machine, Result, Severity, Unit
from kcensus.results.tables import Column, Show, Table
from tests.running import document
from tests.unit.synthetic import HOSTILE, LONG_NAME, synthetic_result


def on_terminal(
    result: Result,
    width: int,
    top: int = 0,
    tables: Sequence[str] = (),
    first: Sequence[str] = (),
    terminal: bool = True,
    every: bool = False,
) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=terminal, color_system=None, highlight=False,
        markup=False, emoji=False,
    )  # fmt: skip
    write_terminal(result, console, top, tables, first, every=every)
    return out.getvalue()


def in_pipe(result: Result) -> str:
    out = io.StringIO()
    write_terminal(result, console_for(out), 0)
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_every_line_fits_the_terminal(width: int) -> None:
    lines = on_terminal(synthetic_result(), width).splitlines()
    assert {line.strip() for line in lines if cell_len(line.rstrip()) > width} == set()


@pytest.mark.parametrize("width", [40, 80])
def test_commands_are_whole_lines(width: int) -> None:
    lines = [line.strip() for line in on_terminal(synthetic_result(), width).splitlines()]
    first = lines.index("echo 1 > /proc/sys/synthetic")
    assert lines[first - 1 : first + 2] == [
        "Frees the empty ones:",
        "echo 1 > /proc/sys/synthetic",
        "echo 2 > /proc/sys/synthetic",
    ]
    assert "Undo: echo 0 > /proc/sys/synthetic" in lines


@pytest.mark.parametrize("width", [20, 48, 60, 80, 200])
def test_a_shell_reads_the_words_of_a_command_on_several_lines(width: int) -> None:
    command = "echo 'options a b=1' > /etc/modprobe.d/long_name.conf && update-grub"
    pieces = continued(command, width)
    assert shlex.split("\n".join(pieces).replace("\\\n", "")) == shlex.split(command)
    # Only a single argument is wider.
    assert all(len(each) <= width or len(shlex.split(each.rstrip("\\"))) == 1 for each in pieces)
    assert len(continued(command, len(command))) == 1
    for whole in ("a  'b", "a  b # c", "a b # c"):  # a shell would read these lines differently
        assert continued(whole, 2) == [whole]


def test_the_machine_is_named() -> None:
    result = synthetic_result()
    result.machine = Machine(
        host="web1", time=0.0, uptime_seconds=90.0, ram_bytes=1 << 30, cpus=1, nodes=2,
        kernel="6.1", version="#1", build_id="abcd", taken_by="panic: \x1b",
        architecture="ppc64le", page_size_bytes=65536,
    )  # fmt: skip
    assert [line.strip() for line in on_terminal(result, 100).splitlines()[1:4]] == [
        "Machine  web1, ppc64le, 64 KiB pages, 1.0 GiB RAM, 1 CPU, 2 NUMA nodes, up 1 min 30 s",
        "Kernel   Linux 6.1 #1, build ID abcd",
        "Dump     1970-01-01 00:00:00 UTC, panic: \\x1b",
    ]


@pytest.mark.parametrize(
    ("pressure", "line"),
    [
        ({"io_some": 0.99, "io_full": 0.05, "memory_some": 0.02, "cpu_some": 0.4}, ""),
        (
            {"io_some": 0.99, "io_full": 0.6, "memory_some": 0.0},
            "some task lacked I/O 99.0% of the last 10 s (all tasks 60.0%)",
        ),
        (
            {"memory_some": 0.05, "io_full": 0.05, "cpu_some": 0.7},
            "some task lacked a CPU 70.0% of the last 10 s",
        ),
    ],
)
def test_pressure_is_shown_where_it_is_more_than_usual(
    pressure: dict[str, float], line: str
) -> None:
    result = synthetic_result()
    result.machine = Machine(kernel="6.1", pressure=pressure)
    head = on_terminal(result, 200).splitlines()[1].strip()
    assert head == (f"Pressure  {line}" if line else "Kernel   Linux 6.1")


def test_the_header_names_limits() -> None:
    result, plain = synthetic_result(), synthetic_result()
    plain.machine = Machine(taken_by="kernel BUG")
    result.machine = Machine(taken_by="kernel BUG", is_panic=True, has_pseudonyms=True)
    result.live = True
    changed, pseudonyms = "figures changed while they were read", "names are pseudonyms (redacted"
    for words in ("does not analyse panics", pseudonyms, changed):
        assert words in on_terminal(result, 100)
        assert words not in on_terminal(plain, 100)


def test_what_is_zero_is_counted_not_shown() -> None:
    zeros = {f"zero_{number}": Figure(0, Unit.BYTES) for number in range(9)}
    result = Result("synthetic", "t", "k", summary=zeros | {"one": Figure(1, Unit.BYTES)})
    columns = {"name": (["a"], Column(Unit.TEXT)), "bytes": ([0], Column(Unit.BYTES))}
    result.tables["nothing"] = Table.of("No bytes", columns)
    screen = on_terminal(result, 80)
    assert "zero 2" in screen
    assert "zero 3" not in screen
    assert "Other figures: 6 are 0 (--all shows them)" in screen
    assert "No bytes" not in screen
    assert "(--all): nothing" in screen
    screen = on_terminal(result, 80, every=True)
    assert "zero 3" in screen
    assert "No bytes" in screen


@pytest.mark.parametrize("width", [40, 80, 120])
def test_order_of_sections(width: int) -> None:
    screen = on_terminal(synthetic_result(), width)
    head = ("synthetic on synthetic vmcore", "Linux 6.1.0-synthetic", "Findings", "CRITICAL")
    rest = ("Summary", "Caches by memory", "Checks against", "Gaps", "1,024 slab pages")
    places = [screen.index(section) for section in (*head, "NOTICE", *rest)]
    assert places == sorted(places)


@pytest.mark.parametrize("width", [40, 80, 120, None])
def test_nothing_from_the_dump_reaches_the_terminal_as_a_command(width: int | None) -> None:
    result = synthetic_result("\x1b]0;title\x07 on \u202ea target")
    screen = on_terminal(result, width) if width else in_pipe(result)
    assert [char for char in screen if not char.isprintable() and char != "\n"] == []
    # Folded names are whole once the lines are put together again.
    folded = "".join(line.split("  ")[1] if line[:2] == "  " else "" for line in screen.split("\n"))
    for name in HOSTILE.values():
        assert name.replace(" ", "") in folded.replace(" ", "")


def test_a_pipe_gets_whole_names_and_all_columns() -> None:
    text = in_pipe(synthetic_result())
    row = next(line for line in text.splitlines() if LONG_NAME in line)
    assert row.split()[1:] == ["9,876,536", "75.0%", "4.0", "GiB", "5", "8"]
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert text.isascii() is False  # the name in Japanese
    assert "─" not in text
    # Sentences are wrapped.
    result = synthetic_result()
    result.tables.clear()
    result.gaps[0] = type(result.gaps[0])("pages", "lost " * 60, 1, "none")
    lines = in_pipe(result).splitlines()
    assert 80 < max(map(len, lines)) <= 100


def test_numbers_for_unknown_ones_are_dashes_on_screens_and_numbers_in_data(tmp_path: Path) -> None:
    column = Column(Unit.NONE, "PID", Show.ALWAYS, unknown=(-1, 0))
    result = Result("synthetic", "t", "k", summary={"highest": Figure(-1, Unit.NONE, "highest id")})
    result.tables["tasks"] = Table.of("Tasks", {"pid": ([-1, 0, 77], column)})
    screen = on_terminal(result, 80)
    assert re.findall(r"^  +(\S+) *$", screen, re.MULTILINE)[-3:] == ["-", "-", "77"]
    assert re.search(r"^  highest id +-$", screen, re.MULTILINE)
    (page,) = write_html(result, tmp_path / "page.html")
    assert ">-1<" not in page.read_text()
    data = json.loads(document(result))
    assert [row["pid"] for row in data["tables"]["tasks"]] == [-1, 0, 77]
    assert data["summary"] == {"highest": -1}


def test_what_gaps_affect_is_marked() -> None:
    result = synthetic_result()
    result.summary["jobs"] = Figure(0, Unit.COUNT, "jobs", Bound.AT_LEAST)
    result.summary["other"] = Figure(None, Unit.COUNT, "other jobs", Bound.AT_LEAST)
    empty = result.tables["empty"]
    result.tables["lost"] = replace(empty, is_known=False)
    shown = on_terminal(result, 100)
    assert re.search(r"^  jobs +none found$", shown, re.MULTILINE)
    # Two with the one that has no value at all.
    assert "2 are unknown (--all shows them)" in shown
    assert re.search(r"^  other jobs +-$", on_terminal(result, 100, every=True), re.MULTILINE)
    assert "Unknown (see Gaps): lost" in shown
    assert "Empty or zero (--all): empty" in shown


def test_optional_columns_of_blanks_are_left_out(tmp_path: Path) -> None:
    result = synthetic_result()
    texts = {"x": [1, 2], "vacant": ["", ""], "whole": ["", ""], "partly": ["", "here"]}
    shows = {"vacant": Show.WIDE, "whole": Show.ALWAYS, "partly": Show.WIDE}
    columns = {name: Column(Unit.TEXT, show=show) for name, show in shows.items()}
    result.tables = {"t": Table(pd.DataFrame(texts), {"x": Column(), **columns})}
    write_html(result, page := tmp_path / "page.html")
    for shown in (on_terminal(result, 100), page.read_text()):
        assert ("vacant" in shown, "whole" in shown, "partly" in shown) == (False, True, True)


def test_dropped_columns_are_named() -> None:
    narrow, wide = (on_terminal(synthetic_result(), width) for width in (40, 160))
    assert "no room for" not in wide
    for heading in ("cache", "allocated objects", "utilization", "slab memory", "change"):
        assert re.search(rf"^ .*{heading}", wide, re.MULTILINE)
    shown, remark = narrow.split("no room for: ")
    assert " ".join(remark.split()).startswith("utilization, change, slab pages (widen")
    table = shown[shown.index("Caches by memory") :]
    assert re.search(r"cache +allocated +slab *\n +objects +memory", table)
    for heading in ("utilization", "change", "pages"):
        assert heading not in table
    # Show.DATA is never on a screen.
    assert "kmem_cache" not in wide + narrow


def test_numbers_are_never_cut() -> None:
    column = ([1234567890123], Column(Unit.COUNT, show=Show.ALWAYS))
    wide = Table.of("", dict.fromkeys("abcdef", column))
    screen = on_terminal(Result("synthetic", "t", "k", tables={"wide": wide}), 40)
    row = screen[screen.index("─\n") : screen.index("Checks")]
    # Every cell is folded into a column of its own; read down, its digits are all there.
    starts = [found.start() for found in re.finditer(r"\S+", row.splitlines()[1])]
    ends = [*starts[1:], None]
    cells = [
        "".join(line[start:end] for line in row.splitlines()[1:])
        for start, end in zip(starts, ends, strict=True)
    ]
    assert [re.sub(r"\s", "", cell) for cell in cells] == ["1,234,567,890,123"] * 6


def test_top_cuts_rows_and_says_how_many() -> None:
    screen = on_terminal(synthetic_result(), 100, top=2)
    assert "... and 7 more rows (use --top 0 or --json)" in screen
    assert LONG_NAME[:20] not in screen
    for top in (0, len(HOSTILE)):
        assert "more rows" not in on_terminal(synthetic_result(), 100, top=top)


def test_a_table_of_details_is_named_but_not_shown() -> None:
    result = synthetic_result()
    result.tables["caches"].detail = True
    screen = on_terminal(result, 80)
    assert "Caches by memory" not in screen
    assert "--json): caches\n" in re.sub(" +\n", "\n", screen)
    assert "Caches by memory" not in on_terminal(result, 80, first=["caches", "empty"])
    assert "Caches by memory" in on_terminal(result, 80, tables=["caches"])


def test_tables_are_shown_as_asked_for() -> None:
    empty = "Nothing at all\n  (no rows)"
    assert empty not in on_terminal(synthetic_result(), 80)
    assert empty in on_terminal(synthetic_result(), 80, every=True)
    screen = on_terminal(synthetic_result(), 80, tables=["empty", "absent"])
    assert empty in screen
    assert "Caches by memory" not in screen
    assert "Table absent: not part of this result" in screen
    assert "--json): caches\n" in re.sub(" +\n", "\n", screen)


def shares(width: int, show: Show = Show.ALWAYS, terminal: bool = True) -> list[str]:
    columns = {"name": Column(Unit.TEXT, show=Show.ALWAYS), "share": Column(Unit.RATIO, show=show)}
    frame = pd.DataFrame({"name": list("abcde"), "share": [0.0, 1e-5, 0.5, 1.0, float("nan")]})
    result = Result("synthetic", "t", "k", tables={"t": Table(frame, columns)})
    lines = on_terminal(result, width, terminal=terminal).splitlines()
    return [line.rstrip() for line in lines if re.match("  [a-e]  ", line)]


def test_bars_on_a_terminal_with_room() -> None:
    assert shares(40) == [
        "  a       0.0%",
        "  b      <0.1% ▏",
        "  c      50.0% ████",
        "  d     100.0% ████████",
        "  e          -",
    ]
    for rows in (shares(20), shares(40, Show.WIDE), shares(40, terminal=False)):
        assert rows[3] == "  d     100.0%"


def test_checks_that_agree_are_counted_and_the_others_shown() -> None:
    screen = on_terminal(synthetic_result(), 100)
    checks = screen[screen.index("Checks against") : screen.index("Gaps")]
    lines = [line.split(None, 1) for line in checks.splitlines()[1:] if line.strip()]
    assert [" ".join(line[1].split()) if len(line) > 1 else line for line in lines[:2]] == [
        "9 of 12 figures",
        "sheaves: 7 counted, 10 in the kernel (+3)",
    ]
    assert "3 are parked." in checks
    assert "jobs: 10 counted, 18,446,744,073,709,551,615 in the kernel" in checks
    assert "this kernel has no counter for: uncounted" in checks
    assert "agreeing 3" not in checks


def test_few_agreeing_checks_are_named_and_empty_sections_say_so() -> None:
    result = Result("synthetic", "t", "k", checks=[Check("dentries", 5, 5)])
    assert "1 of 1 figures: dentries" in on_terminal(result, 80)
    screen = on_terminal(Result("synthetic", "t", "k"), 80)
    for section in ("Findings: none\n", "Checks: none", "Gaps: none"):
        assert section in screen
    with_gap = Result("synthetic", "t", "k", gaps=[Gap("pages", "torn", 2, "x")])
    assert "Findings: none in the readable part (see Gaps)" in on_terminal(with_gap, 80)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        *((None, Unit.BYTES, "-"), (0, Unit.BYTES, "0 B"), (1023, Unit.BYTES, "1,023 B")),
        *((1024, Unit.BYTES, "1.0 KiB"), (1024**2 - 1, Unit.BYTES, "1.0 MiB")),
        *((-1536, Unit.BYTES, "-1.5 KiB"), (256 * 1024**3, Unit.BYTES, "256.0 GiB")),
        *((2**64 - 1, Unit.BYTES, "16.0 EiB"), ("name", Unit.BYTES, "name")),
        *((0.0, Unit.RATIO, "0.0%"), (0.0004, Unit.RATIO, "<0.1%"), (0.5, Unit.RATIO, "50.0%")),
        *((0.9996, Unit.RATIO, ">99.9%"), (1, Unit.RATIO, "100.0%")),
        *((0, Unit.SECONDS, "0 s"), (2.5e-5, Unit.SECONDS, "25 us")),
        *((0.25, Unit.SECONDS, "250.0 ms"), (59.94, Unit.SECONDS, "59.9 s")),
        *((59.96, Unit.SECONDS, "1 min 0 s"), (3725, Unit.SECONDS, "1 h 2 min")),
        *((-90000, Unit.SECONDS, "-1 d 1 h"), (1234567, Unit.COUNT, "1,234,567")),
        *((0.5, Unit.COUNT, "0.50"), (1, Unit.PAGES, "1 page"), (4711, Unit.PAGES, "4,711 pages")),
        *((4711, Unit.NONE, "4711"), (True, Unit.NONE, "yes")),
        (0xFFFF888000000000, Unit.ADDRESS, "0xffff888000000000"),
    ],
)
def test_units(value: float | str | None, unit: Unit, shown: str) -> None:
    assert human(value, unit) == shown


def test_a_counted_noun_and_its_verb_have_one_number() -> None:
    shown = [counted(number, "job", "wait") for number in (0, 1, 4711)]
    assert shown == ["0 jobs wait", "1 job waits", "4,711 jobs wait"]
    assert counted(2, "analysis", plural="analyses") == "2 analyses"


@given(st.integers(-(2**64), 2**64))
def test_scaled_bytes_are_right_to_the_last_digit_shown(value: int) -> None:
    number, suffix = human_bytes(value).replace(",", "").split()
    scale = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].index(suffix)
    assert abs(float(number) * scale - value) <= 0.0501 * scale
    assert abs(float(number)) < 1024 or suffix == "EiB"


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_a_part_is_never_shown_as_none_or_all(value: float) -> None:
    assert human_ratio(value) not in ("0.0%", "100.0%")


def test_a_name_is_broken_only_where_it_is_wider_than_its_share() -> None:
    patch, reason = "negative-dentry-unlink-sysctl", "struct list_lru has no ext, " * 5
    always = Column(Unit.TEXT, show=Show.ALWAYS)
    row = {"patch": ([patch], always), "because": ([reason], always)}
    table = Table.of("", row | {"mainline": (["RFC 2021, unmerged"], Column(Unit.TEXT))})
    result = Result("synthetic", "t", "k", tables={"patches": table})
    for width in (60, 80, 100):
        assert patch in on_terminal(result, width)
    assert patch not in on_terminal(result, 30)


def test_a_path_is_broken_between_its_names() -> None:
    path, version = "/var/crash/list-lru-5.10/vmcore.elf", "2026-10-19T12:00:01+00:00"
    always = Column(Unit.TEXT, show=Show.ALWAYS)
    row = {name: ([path], always) for name in ("before", "after")} | {"of": ([version], always)}
    result = Result("synthetic", "t", "k", tables={"pairs": Table.of("", row)})
    shown = on_terminal(result, 48)
    parts = re.findall(r"\S+", shown[shown.index("/var/") :].partition("\n\n")[0])
    ends = [part for part in parts if part[-1] in "/.-" or part in ("elf", "vmcore.elf")]
    assert len(parts) - len(ends) == 2  # of the time alone
    assert "".join(parts[::3]) == path


def test_a_folded_line_of_a_tree_keeps_its_guide() -> None:
    lines = ["task", "├─ mutex of a long name", "│  └─ waiter of a long name", "└─ last one"]
    drawn = Column(Unit.TEXT, show=Show.ALWAYS, is_drawn=True)
    long = ["", "", "", "several words beside it"]
    table = Table.of(
        "", {"line": (lines, drawn), "more": (long, Column(Unit.TEXT, "", Show.ALWAYS))}
    )
    screen = on_terminal(Result("synthetic", "t", "k", tables={"tree": table}), 34)
    shown = [line.rstrip() for line in screen.splitlines() if re.search("[│├└]", line)]
    begins = [re.sub("[^ │├└─].*", "", line.strip()).rstrip() for line in shown]
    assert begins == ["├─", "│", "│  └─", "│", "│", "└─"]


def test_a_lesser_finding_names_its_explanation() -> None:
    result = synthetic_result()
    finding = replace(result.findings[0], severity=Severity.INFO)
    out = io.StringIO()
    screen = Screen(Console(file=out, width=80))
    print_findings([("", finding)], screen, short=True, head=result)
    assert f"kcensus explain {finding.kind}" in out.getvalue()


def test_commands_with_pseudonyms_have_a_warning_each() -> None:
    result = synthetic_result()
    warning = "Do not run this as it is"
    assert warning not in on_terminal(result, 100)
    result.machine = Machine(has_pseudonyms=True)
    commands = [
        remedy.command
        for finding in result.findings
        for remedy in finding.remedies
        if remedy.command and not remedy.command.startswith("kcensus ")
    ]
    assert on_terminal(result, 100).count(warning) == len(commands) > 0


def test_a_finding_leads_those_it_explains() -> None:
    result = synthetic_result()
    result.findings[0] = replace(result.findings[0], part_of=result.findings[1].id)
    screen = on_terminal(result, 100)
    tags = re.findall(r"^ *(ALSO|[A-Z]{4,8})  ", screen, re.MULTILINE)
    assert tags[:2] == [result.findings[1].severity.name, "ALSO"]
    assert result.findings[0].severity.name not in screen
    assert "kcensus explain synthetic-waste" in screen
    # A part is shown where its leader is not.
    del result.findings[1]
    assert "A notice with" in on_terminal(result, 200)


_COMMAND = "`kcensus waits vmcore -s vmlinux --table stacks --top 0`"


def lines(text: str, width: int) -> list[str]:
    return [line.plain for line in wrapped(Text(text), width)]


@pytest.mark.parametrize("width", [10, 40, 72, 100])
def test_a_command_is_never_broken(width: int) -> None:
    made = lines(f"for developers: {_COMMAND}, and more words after the command", width)
    assert sum(_COMMAND in line for line in made) == 1
    assert all(len(line) <= width or line == f"{_COMMAND}," for line in made)


def test_a_backtick_in_a_file_name_opens_no_command() -> None:
    made = lines(f"/srv/a`b and /srv/`kcensus (3) are large: {_COMMAND}, and more words", 40)
    assert made[0] == "/srv/a`b and /srv/`kcensus (3) are"
    assert [line for line in made if "waits" in line] == [f"{_COMMAND},"]


def test_words_are_broken_only_if_no_line_holds_them() -> None:
    assert lines("one two", 3) == ["one", "two"]
    assert lines("a 0123456789 b", 4) == ["a", "0123", "4567", "89 b"]
    assert lines("", 4) == [""]
    assert lines("a\n\nb", 4) == ["a", "", "b"]
    # Styles stay.
    text = Text.assemble(("one two", "bold"), " three")
    assert [[str(span.style) for span in line.spans] for line in wrapped(text, 7)] == [["bold"], []]


@given(st.text(st.sampled_from("ab宽 \n"), max_size=40), st.integers(2, 12))
def test_no_word_is_lost_and_every_line_fits(text: str, width: int) -> None:
    made = lines(text, width)
    assert "".join("".join(made).split()) == "".join(text.split())
    assert max(map(cell_len, made)) <= width


def test_a_cell_of_many_names_does_not_fill_the_screen() -> None:
    names = ", ".join(f"worker {number}" for number in range(100_000))
    table = Table.of("", {"names": ([names], Column(Unit.TEXT, show=Show.ALWAYS))})
    screen = on_terminal(Result("synthetic", "t", "k", tables={"long": table}), 80)
    assert len(screen) < 4000
    assert "worker 0, worker 1" in screen


@pytest.mark.parametrize("columns", ["0", "00", ""])
def test_a_screen_of_no_width_is_no_screen(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    console = console_for(io.StringIO())
    monkeypatch.delenv("COLUMNS")
    assert console.width == console_for(io.StringIO()).width > 80
