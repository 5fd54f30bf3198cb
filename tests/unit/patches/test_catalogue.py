# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files of the catalogue, and how wrong and hostile files are refused."""

from __future__ import annotations

import importlib.metadata
import os
import re
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kcensus.catalogue import CatalogueError, Kind, State, Status, load
from kcensus.catalogue.model import FindingRule, Patch
from kcensus.catalogue.schema import MAX_FILE_BYTES, read_file
from kcensus.samples import PATCHES, packaged_directory
from kcensus.text import printable
from tests.catalogue import CATALOGUE

ROOT = Path(__file__).parents[3]

# Ids that findings of the analyses refer to.
PROMISED = """
    bfq-injection bfq-wakers cfq-async-starvation cfq-removal dm-kcopyd-callback-list
    dm-snapshot-cow-in-progress dm-snapshot-cow-semaphore list-lru-on-demand
    list-lru-per-memcg-arrays list-lru-xarray mq-deadline-prio-aging negative-dentry-dir-limit
    negative-dentry-hash-limit negative-dentry-sysctl-limit slab-objcg-controller
"""

GOOD = """
id = "ours"
title = "A patch"
subsystem = "mm"
status = "merged"
summary = "It does something."
symptom = "Something was slow."
[detect]
[[detect.rules]]
state = "present"
has = [{ symbol = "ours" }]
"""
HEAD = GOOD[: GOOD.index("[detect]")]


def patch_file(directory: Path, text: str = GOOD, name: str = "ours") -> Path:
    path = directory / f"{name}.toml"
    path.write_text(text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(CatalogueError) as caught:
        read_file(path)
    sentence = str(caught.value)
    assert sentence == printable(sentence)
    assert sentence.startswith(str(path))
    assert len(sentence) < 600
    return sentence.removeprefix(f"{path}: ")


def test_patches_that_analyses_refer_to_exist() -> None:
    assert set(CATALOGUE.patches) >= {*PROMISED.split()}


def test_every_patch_is_complete() -> None:
    for patch in CATALOGUE.patches.values():
        assert patch.summary.endswith("."), patch.id
        assert patch.symptom.endswith("."), patch.id
        if patch.status in (Status.MERGED, Status.REWORKED):
            assert patch.commits or patch.stages, patch.id
            assert patch.release or "release" in patch.summary or not patch.stages, patch.id
        if patch.status is Status.NEVER_MERGED:
            assert patch.postings, patch.id
            assert not patch.release, patch.id
        if patch.status is Status.DISTRIBUTION:
            assert patch.backports, patch.id
    assert {path.stem for path in PATCHES.rglob("*.toml")} == set(CATALOGUE.patches)


def test_markers_are_merged_patches_without_cost() -> None:
    markers = [patch for patch in CATALOGUE.patches.values() if patch.kind is Kind.MARKER]
    assert len(markers) == 18
    for patch in markers:
        assert patch.is_upstream, patch.id
        assert (patch.costs, patch.saves, patch.validation) == (None, None, None), patch.id


@pytest.mark.parametrize(
    ("patch", "history"),
    [
        ("list-lru-memory", "merged in 5.18"),
        ("dm-snapshot-cow-semaphore", "merged in 5.0"),
        ("memcg-objcg-per-node", "merged in 7.1"),
        ("negative-dentry-bloat", "RFC 2021, unmerged"),
        ("dentry-limit-sysctl", "2026, unmerged"),
        ("negative-dentry-unlink-drop", "reverted"),
        ("negative-dentry-fs-klimit", "distribution only"),
    ],
)
def test_history(patch: str, history: str) -> None:
    assert CATALOGUE.patches[patch].history == history


def test_every_merged_patch_has_its_release() -> None:
    merged = [patch for patch in CATALOGUE.patches.values() if patch.is_upstream]
    assert [patch.id for patch in merged if not patch.release] == []
    assert replace(merged[0], release="").history == "merged"


def test_supersedes_and_superseded_by_agree() -> None:
    for patch in CATALOGUE.patches.values():
        for other in patch.supersedes:
            assert patch.id in CATALOGUE.patches[other].superseded_by
        for rule in patch.detection.rules:
            assert rule.state is not State.SUPERSEDED or rule.by in patch.superseded_by


def test_a_file_of_a_user(tmp_path: Path) -> None:
    patch_file(tmp_path)
    # Other files are ignored.
    (tmp_path / "README.md").write_text("words")
    (tmp_path / ".hidden.toml").write_text("nonsense")
    catalogue = load([tmp_path], entry_points=False)
    assert set(catalogue.patches) == {*CATALOGUE.patches, "ours"}
    assert catalogue.patches["ours"].status is Status.MERGED


def test_paragraphs_are_joined_lines(tmp_path: Path) -> None:
    text = GOOD.replace('"It does something."', '"""\nOne\n line.\n\n\nAnother.\n"""')
    patch = read_file(patch_file(tmp_path, text))
    assert isinstance(patch, Patch)
    assert patch.summary == "One line.\n\nAnother."


RULE = """
[[rules]]
severity = "warning"
title = "{value} are wasted"
at-least = 1
metric = { analysis = "slab", key = "slab_bytes", what = "all slabs" }
"""


def test_a_file_with_rules_alone(tmp_path: Path) -> None:
    (rule,) = read_file(patch_file(tmp_path, RULE, "rules"))  # type: ignore[misc]
    assert isinstance(rule, FindingRule)
    assert (rule.patch, rule.severity, rule.at_least) == ("", "warning", 1)
    assert len(load([tmp_path], entry_points=False).rules) == len(CATALOGUE.rules) + 1


FIGURE = '[[figures]]\nname = "a"\nwhat = "b"\nvalue = 1\nunit = "KiB"\n'
WRONG_PATCHES = [
    ("status =", "statsu =", "statsu: unknown key (did you mean 'status'?)"),
    ('status = "merged"\n', "", "status: is missing"),
    ('"merged"', '"merged?"', "status: 'merged?' is unknown (choose from merged, reworked"),
    ('"merged"', '"matching regex"', "status: 'matching regex' is unknown"),
    ('"merged"', "true", "status: is a boolean; it must be text"),
    ('"A patch"', "1", "title: '1' is a number; it must be text"),
    ('"A patch"', "1.5", "title: '1.5' is a number; it must be text"),
    ('"A patch"', "2020-01-01", "title: is a date or time; it must be text"),
    ('"A patch"', '["A patch"]', "title: is a list; it must be text"),
    ('"A patch"', '{ a = "A patch" }', "title: is a table; it must be text"),
    ('"A patch"', '" "', "title: is empty"),
    ('"A patch"', '"\\u001b[31mred"', "title: contains unprintable characters"),
    ('"A patch"', '"a\\u202eb"', "title: contains unprintable characters"),
    ('"ours"\ntitle', '"other"\ntitle', "id: 'other' must be the name of the file, 'ours'"),
    ('"ours"\ntitle', '"../ours"\ntitle', "id: '../ours' is not an id such as"),
    ('"present"', '"partially applied"', "[0].state: 'partially applied' is only for a series"),
    ('"present"', '"superseded"', "detect.rules[0].by: is required for the state superseded"),
    ('"present"', '"undetermined"', "detect.rules[0].why: is missing"),
    ("has = [{ symbol", "has = [{ simbol", "detect.rules[0].has[0].simbol: unknown key (did you"),
    ("has = [{ symbol", 'has = [{ type = "x", symbol', "has[0]: must have exactly one key"),
    ('[{ symbol = "ours" }]', "[]", "rules[0].has: is missing: a rule needs"),
    ('[{ symbol = "ours" }]', '"ours"', "has: 'ours' is text; it must be a list"),
    ('[{ symbol = "ours" }]', '["ours"]', "has[0]: 'ours' is text; it must be a table"),
    ('symbol = "ours"', 'symbol = "a b"', "has[0].symbol: 'a b' is not a C identifier"),
    ('symbol = "ours"', 'member = "struct x"', "has[0].member: 'struct x' is not a member such"),
    ('symbol = "ours"', "symbol = 1", "has[0].symbol: '1' is a number; it must be text"),
    ("[detect]", "[detect]\nmodules = [1]", "detect.modules[0]: '1' is a number; it must be"),
    *(
        ("[detect]", f"{added}\n[detect]", complaint)
        for added, complaint in (
            ('file = "x"', "file: must be left out"),
            ('"a b" = 1', "'a b' is not a key"),
            ('titel = "x"', "titel: unknown key (did you mean 'title'?)"),
            ('author = ["x"]', "author: unknown key (did you mean 'authors'?)"),
            ('release = "5"', "release: '5' is not a release such as '5.18'"),
            ('related = ["a", "a"]', "related: 'a' is listed twice"),
            ('[[commits]]\nhash = "xyz"', "commits[0].hash: 'xyz' is not"),
            ('[[commits]]\nnote = "x"', "commits[0]: needs a subject or a hash"),
            ('[[posted]]\ndate = "May"', "posted[0].date: 'May' is not"),
        )
    ),
]
WRONG_FIGURES = [
    ("value = 1", "value = nan", "figures[0].value: must be a finite number"),
    ("value = 1", "value = 1e300", "figures[0].value: must be a finite number"),
    ("value = 1", f"value = 1{'0' * 400}", "figures[0].value: must be a finite number"),
    ("value = 1", f"value = 0x{'f' * 999}", "figures[0].value: must be a finite number"),
    ("value = 1", "value = true", "figures[0].value: is a boolean; it must be a number"),
    ("value = 1", "value = 1\nto = 0", "figures[0].to: '0' must be above value, 1"),
    ('"KiB"', '"kB"', "figures[0].unit: 'kB' is unknown (choose from bytes, KiB"),
    ('"KiB"', '"KiB"\ngiven = { A = 1 }', "figures[0].given.A: 'A' is not a key such as"),
    ('"KiB"', '"KiB"\ngiven = { a = "1" }', "figures[0].given.a: '1' is text; it must be"),
    ('"KiB"', f'"KiB"\n{FIGURE}', "figures: the name 'a' is used twice"),
    ("[[figures]]", "[[rules]]\n[[figures]]", "rules[0].severity: is missing"),
    ("[[figures]]", "[costs]\nkey = 1\n[[figures]]", "costs.key: '1' is a number; it must be"),
]
WRONG_RULES = [
    ("{value}", "{value.__class__}", "title: must not contain braces other than {value}"),
    ("{value}", "{value}{0}", "title: must not contain braces other than {value}"),
    ('"warning"', '"fatal"', "severity: 'fatal' is unknown (choose from critical, info"),
    ("at-least = 1", "", "at-least: is missing: a rule needs at-least or at-most"),
    ('key = "slab_bytes"', 'key = "a-b"', "metric.key: 'a-b' is not a key such as"),
]


@pytest.mark.parametrize(
    ("name", "good", "old", "new", "complaint"),
    [
        *(("ours", GOOD, *row) for row in WRONG_PATCHES),
        *(("ours", GOOD + FIGURE, *row) for row in WRONG_FIGURES),
        *(("rules", RULE, *row) for row in WRONG_RULES),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, name: str, good: str, old: str, new: str, complaint: str
) -> None:
    assert old in good
    assert complaint in refusal(patch_file(tmp_path, good.replace(old, new, 1), name))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        *(
            (text, "is not TOML")
            for text in (
                *(b"id: ours\nstatus: merged\n", b"a: &a [*a, *a]\n", b"%YAML 1.1\n---\n"),
                *(b"a = " + b"9" * 10_000, b"title = 'a'\ntitle = 'b'\n"),
                b"!!python/object/apply:os.system ['true']\n",
            )
        ),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"a = " + b"[" * 100_000, "is"),  # nested too deeply, or an error before that
        (b"", "id: is missing"),
        (b"[id]\n", "id: is a table; it must be text"),
        (b"#" * (MAX_FILE_BYTES + 1), f"is larger than {MAX_FILE_BYTES >> 10} KiB"),
        (b"id = '" + b"x" * 9000 + b"'", "id: is longer than 8192 characters"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = tmp_path / "ours.toml"
    path.write_bytes(data)
    assert complaint in refusal(path)


def test_lists_without_end(tmp_path: Path) -> None:
    names = ", ".join(f'"a-{at}"' for at in range(1000))
    text = with_line(f"related = [{names}]")
    assert "related: has more than 512 items" in refusal(patch_file(tmp_path, text))


@given(data=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode()))
def test_arbitrary_bytes_are_at_most_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "ours.toml"
    path.write_bytes(GOOD.encode() + data)
    # The bytes may happen to be valid, such as a comment.
    with suppress(CatalogueError):
        assert isinstance(read_file(path), Patch)


def test_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.toml")
    with pytest.raises(CatalogueError, match=r"fifo\.toml: is not a file"):
        load([tmp_path], entry_points=False)
    with pytest.raises(CatalogueError, match="gone: is not a directory of patch files"):
        load([tmp_path / "gone"], entry_points=False)


def with_line(line: str) -> str:
    return GOOD.replace("[detect]\n", f"{line}\n[detect]\n", 1)


STAGE = '[[stages]]\npatch = "list-lru-memory"\nwhat = "x"\n'


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a\x1b[31m", "", r"a\\x1b\[31m\.toml: id: is missing"),
        (
            "cfq-removal",
            GOOD.replace('"ours"\ntitle', '"cfq-removal"\ntitle'),
            r"id: 'cfq-removal' is already used by .*cfq-removal\.toml",
        ),
        ("ours", with_line('related = ["gone"]'), "related: unknown patch 'gone'"),
        ("ours", with_line('fixes = ["ours"]'), "fixes: 'ours' refers to itself"),
        ("ours", with_line('superseded-by = ["gone"]'), "superseded-by: unknown patch 'gone'"),
        ("ours", HEAD + STAGE, "stages: 'list-lru-memory' is a series itself"),
        (
            "rules",
            RULE.replace("at-least", 'patch = "gone"\nat-least'),
            r"/rules\.toml: rules\.patch: unknown patch 'gone'",
        ),
    ],
)
def test_files_that_do_not_fit_the_others(
    tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    patch_file(tmp_path, text, name)
    with pytest.raises(CatalogueError, match=complaint):
        load([tmp_path], entry_points=False)


def offering(**load: object) -> Any:
    point = mock.Mock(load=mock.Mock(**load))
    point.name = "theirs"
    return mock.patch.object(importlib.metadata, "entry_points", return_value=[point])


def test_entry_points(tmp_path: Path) -> None:
    patch_file(tmp_path)
    package = ModuleType("theirs")
    package.__path__ = [str(tmp_path)]
    for offered in (tmp_path, str(tmp_path), lambda: tmp_path, package):
        with offering(return_value=offered):
            assert "ours" in load().patches


def test_entry_points_that_fail() -> None:
    problem = r"theirs of kcensus\.patches: is not usable \(ImportError: no module \\x1b\)"
    with (
        offering(side_effect=ImportError("no module \x1b")),
        pytest.raises(CatalogueError, match=problem),
    ):
        load()


def test_the_catalogue_is_beside_the_code_of_a_wheel_and_at_the_top_of_a_checkout(
    tmp_path: Path,
) -> None:
    checkout = tmp_path / "drgn_scripts" / "kcensus" / "catalogue"
    checkout.mkdir(parents=True)
    assert packaged_directory(checkout) == tmp_path / "kernel_patches" / "catalogue"
    wheel = tmp_path / "site-packages" / "kcensus" / "catalogue"
    (wheel / "patches").mkdir(parents=True)
    assert packaged_directory(wheel) == wheel / "patches"


def test_the_examples_of_the_readme_are_valid(tmp_path: Path) -> None:
    readme = (ROOT / "kernel_patches/README.md").read_text()
    blocks = [
        block.replace("\n    ", "\n")
        for block in re.findall(r"(?:\n    .*|\n(?=\n    ))+", readme)
        if "[[" in block or "[detect" in block
    ]
    parts = [block.replace("predicted = { … }", "") for block in blocks]
    assert len(parts) == 5
    figures = FIGURE + 'run = "mounts"\n'
    text = "\n".join((HEAD, *parts[:3], figures, parts[4]))
    assert read_file(patch_file(tmp_path, text)).detection.undetectable.shown_by  # type: ignore[union-attr]
    assert read_file(patch_file(tmp_path, parts[3], "rules"))
