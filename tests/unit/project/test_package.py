# SPDX-License-Identifier: LGPL-2.1-or-later
"""The repository as a stranger gets it."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.catalogue import load
from tests.running import recorded_analyses

ROOT = Path(__file__).parents[3]
LOCKS = tuple(path.name for path in sorted(ROOT.glob("requirements*.lock")))

# Put together here so that this file does not find itself.
MACHINE_PATHS = re.compile("/(?:" + "|".join(("work", "root")) + ")/")
_DOMAINS = {
    "org": ("pypi", "pythonhosted", "npmjs", "golang", "maven.apache", "debian"),
    "io": ("crates",),
    "com": ("npmjs",),
}
_HOSTS = (re.escape(f"{name}.{top}") for top, names in _DOMAINS.items() for name in names)
REGISTRIES = re.compile(rf"\b(?:[a-z0-9-]+\.)*(?:{'|'.join(_HOSTS)})\b")

LICENCE = re.compile(r"^\W*SPDX-License-Identifier: ([\w.-]+)", re.MULTILINE)


def tracked() -> list[Path]:
    """The files under version control, or all files where there is none, as in an sdist."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"], cwd=ROOT, capture_output=True
    )
    if listed.returncode == 0:
        names = [Path(name) for name in listed.stdout.decode().split("\0") if name]
    else:
        found = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
        names = [name for name in found if name.parts[0] != ".venv"]
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


@pytest.mark.slow
def test_what_is_imported_is_declared() -> None:
    """Whatever brings an undeclared package today may stop to do so."""
    lines = text_of(ROOT / "pyproject.toml").partition("\ntest = ")[0].splitlines()
    declared = {found[1] for line in lines for found in re.finditer(r'"([a-z0-9-]+)[>\[]', line)}
    nodes = (
        node
        for path in (ROOT / "drgn_scripts").rglob("*.py")
        for node in ast.walk(ast.parse(text_of(path)))
    )
    modules: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add((node.module or "").partition(".")[0])
    owners = packages_distributions()
    undeclared = {
        module
        for module in modules - {*sys.stdlib_module_names, "kcensus", "tomli"}
        if not declared & {re.sub("[_.]", "-", name.lower()) for name in owners[module]}
    }
    assert undeclared == set()


def test_every_source_file_names_its_licence() -> None:
    heads = {
        path.relative_to(ROOT): text_of(path).splitlines()[:3]
        for path in tracked()
        if path.suffix in (".py", ".c", ".h", ".toml", ".sh")
    }
    assert len(heads) > 20
    # An empty file has nothing to license.
    marked = {path for path, head in heads.items() if LICENCE.search("\n".join(head))}
    assert {path for path, head in heads.items() if head} == marked


def test_licence_texts_are_there_in_full() -> None:
    identifiers = {found for path in tracked() for found in LICENCE.findall(text_of(path))}
    assert "LGPL-2.1-or-later" in identifiers
    texts = {path.stem for path in (ROOT / "LICENSES").glob("*.txt")}
    assert identifiers - texts == set()


@pytest.mark.parametrize("name", LOCKS)
def test_locked_packages_have_hashes(name: str) -> None:
    text = (ROOT / name).read_text().replace("\\\n", " ")
    entries = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(entries) > 10
    assert all(re.match(r"[\w-]+==\S+ .*--hash=sha256:", entry) for entry in entries)
    # Neither an index nor an address: any mirror will do.
    assert "://" not in text
    assert "index" not in text


def locked(name: str) -> set[str]:
    return {*re.findall(r"^(\S+==\S+)", (ROOT / name).read_text(), re.MULTILINE)}


def test_each_lock_is_part_of_the_next() -> None:
    """What users run is what was tested."""
    minimal, store, notebook, everything = map(
        locked, (f"requirements{kind}.lock" for kind in ("-minimal", "", "-notebook", "-dev"))
    )
    assert minimal < store < notebook < everything
    assert not [name for name in minimal if re.match("pyarrow|deltalake|scipy", name)]


def test_python_m_is_the_command() -> None:
    command = [sys.executable, "-m", "kcensus", "--help"]
    shown = subprocess.check_output(command, cwd=ROOT, text=True)
    assert shown.startswith("Usage: kcensus COMMAND")


def test_run_explains_itself() -> None:
    script = ROOT / "run"
    done = subprocess.run([script, "help"], check=True, capture_output=True, text=True)
    for target in ("demo", "test", "lint", "bench", "lab", "lock", "ci"):
        assert f"\n  {target} " in done.stdout
    wrong = subprocess.run([script, "nonsense"], capture_output=True, text=True)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == done.stdout


def fake_python(path: Path, version: str) -> Path:
    """Write a Python that knows its version; one from 3.10 on has a venv module that fails."""
    status = 0 if version.startswith("3.14") else 1
    path.write_text(f"""#!/bin/sh
case $1 in
-V) echo Python {version} ;;
-m) exit 7 ;;
*) exit {status} ;;
esac
""")
    path.chmod(0o755)
    return path


def run_lint(environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "run", "lint"], env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_run_says_that_a_python_is_too_old(tmp_path: Path) -> None:
    old = fake_python(tmp_path / "old", "3.9.2")
    done = run_lint({"PYTHON": str(old)})
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{old} is Python 3.9.2" in done.stderr
    assert done.stderr.count("\n") == 1


def test_run_passes_over_a_python_that_is_too_old(tmp_path: Path) -> None:
    fake_python(tmp_path / "python3", "3.9.2")
    fake_python(tmp_path / "python3.14", "3.14.0")
    done = run_lint({"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": ""})
    assert (done.returncode, done.stdout) == (7, "")
    assert "Python 3.14.0" in done.stderr


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("machine", "lines"), [("x86_64", 0), ("aarch64", 1)])
def test_run_says_what_pip_compiles_drgn_with(machine: str, lines: int, tmp_path: Path) -> None:
    for name in ("run", "pyproject.toml", "requirements-dev.lock"):
        shutil.copy(ROOT / name, tmp_path)
    write_program(tmp_path / "uname", f"echo {machine}")
    # Its pip fails.
    write_program(
        tmp_path / "python",
        f"""case $1,$2 in
-m,venv) mkdir -p .venv/bin; ln -s {tmp_path}/python .venv/bin/python ;;
-m,pip) exit 1 ;;
esac""",
    )
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": str(tmp_path / "python")}
    done = subprocess.run(
        [tmp_path / "run", "demo"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("apt install gcc") == lines
    assert not (tmp_path / ".venv/complete").exists()


@dataclass(frozen=True)
class Installed:
    wheel: Path
    place: Path

    def run(self, command: str, *arguments: str) -> str:
        done = subprocess.run(
            [self.place / "bin" / command, *arguments],
            cwd=self.place,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build a wheel and install it; the packages it needs are those of this environment."""
    made = tmp_path_factory.mktemp("wheel")
    place = made / "venv"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = made.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "install", *options, str(wheel)], check=True, capture_output=True)
    (site,) = place.glob("lib/python*/site-packages")
    # Only now, so that pip sees nothing else. Files *.pth of that directory, such as the one of an
    # editable install, are not read.
    (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(wheel, place)


@pytest.mark.slow
def test_the_wheel_has_one_import_package_and_the_catalogue(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = [Path(name) for name in archive.namelist()]
    folders = {name.parts[0] for name in names}
    packages = {each for each in folders if not each.endswith((".dist-info", ".data"))}
    assert packages == {"kcensus", "kcensus_drgn.py"}
    assert len(folders) == 4
    checkout = {path.name for path in (ROOT / "kernel_patches/catalogue").rglob("*.toml")}
    assert len(checkout) > 40
    shipped = {name.name for name in names if name.suffix == ".toml" and "patches" in name.parts}
    assert shipped == checkout
    data = {"py.typed", "sample.capsule", "explain.toml", "frozen.toml", "glossary.toml"}
    data |= {"distributions.toml"}
    data |= {"page.html", "page.css", "page.js"}
    assert data <= {name.name for name in names}
    notebooks = {path.name for path in (ROOT / "notebooks").glob("*.py")}
    assert notebooks <= {name.name for name in names if name.parts[:2] == ("kcensus", "notebooks")}


@pytest.mark.slow
def test_the_wheel_has_man_pages_and_completion(installed: Installed) -> None:
    share = installed.place / "share"
    pages = {path.name for path in share.glob("man/man1/*")}
    assert {"kcensus.1", "kcensus-report.1"} | {f"kcensus-{name}.1" for name in analyses()} <= pages
    shells = ("bash-completion/completions/kcensus", "zsh/site-functions/_kcensus")
    for script in (*shells, "fish/vendor_completions.d/kcensus.fish"):
        assert "_KCENSUS_COMPLETE" in (share / script).read_text()


@pytest.mark.slow
def test_the_wheel_reports_on_the_sample(installed: Installed) -> None:
    report = json.loads(installed.run("kcensus", "report", "sample", "--json"))
    assert {*report["failed"]} <= {*analyses()} - {*recorded_analyses()}
    assert report["findings"]
    assert "Findings" in installed.run("kcensus", "report", "sample", "--top", "1")


@pytest.mark.slow
def test_the_wheel_is_usable_in_python_and_finds_the_same_patches(installed: Installed) -> None:
    code = (
        "import sys, kcensus; light = 'numpy' not in sys.modules; "
        "result = kcensus.slab(kcensus.open_target('sample')); "
        "from kcensus.catalogue import load; patches = load(entry_points=False).patches; "
        "print(kcensus.__file__, light, len(result.tables['caches']) > 100, *patches)"
    )
    place, *checks = installed.run("python", "-c", code).split()
    assert Path(place).is_relative_to(installed.place)
    assert checks == ["True", "True", *load(entry_points=False).patches]
