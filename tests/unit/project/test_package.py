# SPDX-License-Identifier: LGPL-2.1-or-later
"""The repository as a stranger gets it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOCKS = ("requirements.lock", "requirements-dev.lock")

# Put together here so that this file does not find itself.
MACHINE_PATHS = re.compile("/(?:" + "|".join(("work", "root")) + ")/")
REGISTRIES = re.compile(
    r"\b(?:[a-z0-9-]+\.)*(?:"
    + "|".join(
        re.escape(f"{name}.{domain}")
        for name, domain in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("crates", "io"),
            ("npmjs", "org"),
            ("npmjs", "com"),
            ("golang", "org"),
            ("maven.apache", "org"),
            ("debian", "org"),
        )
    )
    + r")\b"
)

LICENCE = re.compile(r"^\W*SPDX-License-Identifier: ([\w.-]+)", re.MULTILINE)


def tracked() -> list[Path]:
    """The files under version control, or all files where there is none, as in an sdist."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"], cwd=ROOT, capture_output=True
    )
    if listed.returncode == 0:
        names = [Path(name) for name in listed.stdout.decode().split("\0") if name]
    else:
        names = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def text_of(path: Path) -> str:
    data = path.read_bytes()
    return "" if b"\0" in data else data.decode("utf-8", "replace")


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]


def test_nothing_names_a_path_of_one_machine() -> None:
    assert MACHINE_PATHS.search("/".join(("see ", "root", "notes")))
    assert lines_matching(MACHINE_PATHS) == []


def test_nothing_names_the_host_of_a_registry() -> None:
    assert REGISTRIES.search(".".join(("from files", "pythonhosted", "org")))
    assert lines_matching(REGISTRIES) == []


def test_every_source_file_names_its_licence() -> None:
    heads = {
        path.relative_to(ROOT): text_of(path).splitlines()[:3]
        for path in tracked()
        if path.suffix in (".py", ".c", ".h", ".toml", ".sh")
    }
    assert len(heads) > 20
    # An empty file has nothing to license.
    unmarked = [
        path for path, head in heads.items() if head and not LICENCE.search("\n".join(head))
    ]
    assert unmarked == []


def test_licence_texts_are_there_in_full() -> None:
    identifiers = {found for path in tracked() for found in LICENCE.findall(text_of(path))}
    assert "LGPL-2.1-or-later" in identifiers
    assert (
        sorted(
            identifier
            for identifier in identifiers
            if not (ROOT / "LICENSES" / f"{identifier}.txt").is_file()
        )
        == []
    )


@pytest.mark.parametrize("name", LOCKS)
def test_locked_packages_have_hashes(name: str) -> None:
    text = (ROOT / name).read_text().replace("\\\n", " ")
    entries = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(entries) > 10
    assert [
        entry for entry in entries if not re.match(r"[\w-]+==\S+ .*--hash=sha256:", entry)
    ] == []
    # Neither an index nor an address: any mirror will do.
    assert "://" not in text
    assert "index" not in text


def test_both_locks_agree() -> None:
    small, large = (
        set(re.findall(r"^(\S+==\S+)", (ROOT / name).read_text(), re.M)) for name in LOCKS
    )
    assert small < large


def test_python_m_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kcensus", "--help"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("Usage: kcensus ANALYSIS")


def test_run_explains_itself() -> None:
    script = ROOT / "run"
    done = subprocess.run([script, "help"], check=True, capture_output=True, text=True)
    for target in ("demo", "test", "lint", "bench", "lab", "lock", "ci"):
        assert f"\n  {target} " in done.stdout
    wrong = subprocess.run([script, "nonsense"], capture_output=True, text=True)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == done.stdout
