# SPDX-License-Identifier: LGPL-2.1-or-later
"""Chromium without a window, driven through pipes by its DevTools protocol.

``python -m tests.browser.chromium PAGE DIRECTORY`` writes pictures of a page at three widths, light
and dark, and a PDF, for people to look at.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SWITCHES = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
_PROBLEMS = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
_REQUESTS = "Network.requestWillBeSent"
_WIDTHS = (1400, 800, 400)


class Tab:
    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._received = b""
        self._number = 0
        self._session = ""
        self.console: list[str] = []
        """What the console shows: messages, exceptions, violations of the policy."""
        self.requests: list[str] = []
        """Addresses that were loaded."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path) -> None:
        self.send("Page.navigate", url=path.resolve().as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def show(self, width: int, scheme: str = "light") -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def picture(self) -> bytes:
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def pdf(self) -> bytes:
        printed = self.send("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        return base64.b64decode(printed["data"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            chunk = os.read(self._answers, 1 << 16)
            if not chunk:
                raise RuntimeError("chromium has ended")
            self._received += chunk
        line, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") in _PROBLEMS:
            self.console.append(json.dumps(message["params"]))
        elif message.get("method") == _REQUESTS:
            self.requests.append(message["params"]["request"]["url"])
        return message


@contextmanager
def chromium() -> Iterator[Tab]:
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        raise FileNotFoundError("no Chromium; Debian has it in the package chromium")
    from_us, commands = os.pipe()
    answers, to_us = os.pipe()
    # Numbers that neither of the two below replaces.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (from_us, to_us)]

    def connect() -> None:
        # It reads commands from 3, and writes answers to 4.
        for end, descriptor in zip(ends, (3, 4), strict=True):
            os.dup2(end, descriptor)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *_SWITCHES, f"--user-data-dir={profile}", "--remote-debugging-pipe"],
            pass_fds=(3, 4),
            preexec_fn=connect,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (from_us, to_us, *ends):
            os.close(end)
        try:
            yield Tab(commands, answers)
        finally:
            os.close(commands)
            os.close(answers)
            process.terminate()
            process.wait()


def main(page: Path, directory: Path) -> None:
    with chromium() as tab:
        tab.open(page)
        for scheme in ("light", "dark"):
            for width in _WIDTHS:
                tab.show(width, scheme)
                (directory / f"{page.stem}-{width}-{scheme}.png").write_bytes(tab.picture())
        (directory / f"{page.stem}.pdf").write_bytes(tab.pdf())
        print(*tab.console, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
