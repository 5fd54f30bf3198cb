# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pictures of the documentation, made of the bundled samples.

Pictures of a terminal are equal to the last byte wherever they are drawn. A browser's differ from
version to version, so ``pages.json`` has the SHA-256 of each HTML page that was photographed.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO
from unittest import mock

from rich.console import Console
from rich.text import Text

from kcensus import cli
from kcensus.render import screen
from tests.pages import ROOT
from tests.sample.docs.consoles import recorded_only

PICTURES = ROOT / "docs" / "pictures"
HASHES = PICTURES / "pages.json"
_COLUMNS = 100
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True)
class Terminal:
    command: str
    lines: int = 45
    """Lines of the output to show."""


@dataclass(frozen=True)
class Page:
    command: str
    width: int = 1200
    height: int = 900
    scheme: str = "light"
    place: str = ""
    """Selector of the element to scroll to."""


TERMINALS = {"report": Terminal("report sample", 33), "waits": Terminal("waits sample-waits", 32)}
PAGES = {
    "page": Page("report sample"),
    "page-dark": Page("report sample", scheme="dark"),
    "graph": Page("waits sample-waits", width=900, height=396, place="figure.ring"),
}
CHARTS = {"growth": "trend sample-series"}
"""Commands with ``--svg``."""


def chart(command: str) -> str:
    """Return the picture that a command writes."""
    with tempfile.TemporaryDirectory() as directory, redirect_stdout(io.StringIO()):
        path = Path(directory) / "chart.svg"
        assert cli.main([*command.split(), "--svg", str(path)]) == 0
        return path.read_text("utf-8")


def terminal(picture: Terminal) -> str:
    """Return what a terminal shows of a command, as SVG."""
    consoles: list[Console] = []

    def console_for(stream: IO[str], **_: object) -> Console:
        consoles.append(_recorder())
        return consoles[-1]

    with recorded_only(), mock.patch.object(screen, "console_for", console_for):
        assert cli.main(picture.command.split()) == 0
    (console,) = consoles
    shown = console.export_text(styles=True).splitlines()
    recorder = _recorder()
    recorder.print(Text(f"$ kcensus {picture.command}"))
    for line in _without_version("\n".join(shown)).splitlines()[: picture.lines]:
        recorder.print(Text.from_ansi(line), soft_wrap=True)
    svg = recorder.export_svg(title="kcensus", unique_id="kcensus")
    # Rich loads its font from a server.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", _FONT)


def _recorder() -> Console:
    return Console(
        file=io.StringIO(), width=_COLUMNS, record=True, force_terminal=True, highlight=False,
        color_system="truecolor", markup=False, emoji=False, legacy_windows=False, _environ={},
    )  # fmt: skip


def html(picture: Page, directory: Path) -> Path:
    """Write the HTML page of a command."""
    path = directory / "page.html"
    with recorded_only(), redirect_stdout(io.StringIO()):
        assert cli.main([*picture.command.split(), "--html", str(path)]) == 0
    return path


def fingerprint(page: Path) -> str:
    """Return the SHA-256 of an HTML page, without the version of kcensus."""
    return hashlib.sha256(_without_version(page.read_text("utf-8")).encode()).hexdigest()


def _without_version(text: str) -> str:
    return text.replace(version("kcensus"), "0.2.0")


def fingerprints() -> Mapping[str, str]:
    """Return the fingerprint of each page of today."""
    made: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        for command in dict.fromkeys(page.command for page in PAGES.values()):
            made[command] = fingerprint(html(Page(command), Path(directory)))
    return {name: made[page.command] for name, page in PAGES.items()}


def draw() -> None:
    """Draw all pictures again."""
    from tests.browser.chromium import chromium

    PICTURES.mkdir(exist_ok=True)
    for name, picture in TERMINALS.items():
        (PICTURES / f"{name}.svg").write_text(terminal(picture), "utf-8")
    for name, command in CHARTS.items():
        (PICTURES / f"{name}.svg").write_text(chart(command), "utf-8")
    with tempfile.TemporaryDirectory() as directory, chromium() as tab:
        for name, page in PAGES.items():
            path = html(page, Path(directory))
            tab.show(page.width, page.scheme)
            tab.open(path)
            top = 0
            if page.place:
                place = f"document.querySelector({json.dumps(page.place)})"
                top = tab.evaluate(f"{place}.getBoundingClientRect().top + scrollY - 12")
            clip = {"x": 0, "y": top, "width": page.width, "height": page.height, "scale": 1}
            options = {"format": "webp", "quality": 80, "clip": clip}
            shot = tab.send("Page.captureScreenshot", captureBeyondViewport=True, **options)
            (PICTURES / f"{name}.webp").write_bytes(base64.b64decode(shot["data"]))
    HASHES.write_text(json.dumps(fingerprints(), indent=2) + "\n")
