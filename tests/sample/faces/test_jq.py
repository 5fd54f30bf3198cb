# SPDX-License-Identifier: LGPL-2.1-or-later
"""The examples with jq in documentation and help run on samples, and rows come out unrounded."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import subprocess

import pytest

from kcensus import cli
from kcensus.analyses import analyses
from tests.pages import pages

pytestmark = pytest.mark.slow

_HELP = [line for analysis in analyses().values() for line, _ in analysis.examples]
_EXAMPLE = re.compile(r"kcensus (\S+) \S+ --json \| jq ((?:-[cr]+ )?)('[^']*'|\S+)")
EXAMPLES = sorted(
    {
        match.groups()
        for text in [*(path.read_text("utf-8") for path in pages()), *_HELP]
        for match in _EXAMPLE.finditer(text)
    }
)


def jq(document: str, *words: str) -> str:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    done = subprocess.run(["jq", *words], input=document, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def json_of(command: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main([command, "sample-waits", "--json"]) == 0
    return out.getvalue()


@pytest.mark.parametrize(("command", "options", "program"), EXAMPLES)
def test_examples_print_something(command: str, options: str, program: str) -> None:
    assert jq(json_of(command), *options.split(), program.strip("'")).strip() != ""


def test_there_are_examples() -> None:
    assert {"slab", "waits", "dentries"} <= {command for command, _, _ in EXAMPLES}


def test_jq_rounds_no_value() -> None:
    document = json_of("waits")
    assert json.loads(jq(document, ".")) == json.loads(document)
