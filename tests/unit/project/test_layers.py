# SPDX-License-Identifier: LGPL-2.1-or-later
"""Imports point downwards only, and every folder can be taken in at a glance."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

import kcensus

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "drgn_scripts" / "kcensus"

LAYERS = (
    # From the bottom to the top: a module imports from its own layer and those below.
    *("text", "arch", "samples", "progress", "outputs", "results", "human", "charts", "limits"),
    *("sources", "engine", "kernel"),
    *("analyses", "explain", "catalogue", "redaction", "reports", "capsule"),
    *("render", "compare", "saved", "store", "watch", "fleets", "api", "plots", "agents"),
    *("commands", "cli", "prompts", "__main__"),
)
KERNEL_LAYERS = (
    # The rooms of kernel/: first the ground, then subsystems, and waiting on top.
    *("names", "size", "lists", "idr", "kernel", "log", "symbols", "clock", "knobs"),
    *("mm", "machine", "arch", "tasks", "locking", "code"),
    *("dm", "workqueues", "vfs", "memcg", "slab", "net", "block", "xfs", "waiting"),
)
_MAX_FILES = 12


def layer_of(module: str) -> str:
    """The layer of ``kcensus.LAYER.…``; the package itself offers the public API, lazily."""
    return module.split(".")[1] if "." in module else "api"


def name_of(path: Path) -> str:
    """The module of a file, or the package of an ``__init__.py``."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports() -> list[tuple[Path, str]]:
    """The modules of the package that each file imports, also in functions, or for types only."""
    paths = sorted(PACKAGE.rglob("*.py"))
    modules = {name_of(path) for path in paths}
    return [
        (path, module)
        for path in paths
        if path != PACKAGE / "__init__.py"
        for module in imported(path.read_text(), modules)
    ]


def imported(source: str, modules: set[str]) -> Iterator[str]:
    """``from kcensus.kernel import vfs`` imports a module, ``from … import Kernel`` a name of one.

    :param modules: all modules of the package
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            if (node.module or "").split(".")[0] == "kcensus":
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                yield from (name if name in modules else name.rpartition(".")[0] for name in names)
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from (name for name in names if name.split(".")[0] == "kcensus")


def layer_at(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_a_module_is_found_behind_its_package() -> None:
    modules = {"kcensus", "kcensus.kernel", "kcensus.kernel.vfs"}
    source = "from kcensus.kernel import Kernel, vfs\nfrom kcensus import kernel\nimport kcensus\n"
    found = ["kcensus.kernel", "kcensus.kernel.vfs", "kcensus.kernel", "kcensus"]
    assert [*imported(source, modules)] == found


def test_every_module_has_a_layer() -> None:
    layers = {layer_at(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert layers <= set(LAYERS)


def test_imports_point_downwards() -> None:
    found = list(imports())
    assert len(found) > 300
    upwards = [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path, module in found
        if LAYERS.index(layer_at(path)) < LAYERS.index(layer_of(module))
    ]
    assert upwards == []


def test_imports_inside_kernel_point_downwards() -> None:
    rooms = {path.stem for path in (PACKAGE / "kernel").iterdir()} - {"__init__", "__pycache__"}
    assert rooms == set(KERNEL_LAYERS)
    found = [
        (path.relative_to(PACKAGE / "kernel"), module.split(".")[2])
        for path, module in imports()
        if layer_at(path) == "kernel" and module.startswith("kcensus.kernel.")
    ]
    assert len(found) > 100
    upwards = [
        f"{path} imports {room}"
        for path, room in found
        if KERNEL_LAYERS.index(path.with_suffix("").parts[0]) < KERNEL_LAYERS.index(room)
    ]
    assert upwards == []


def test_no_imports_go_in_circles() -> None:
    graph = nx.DiGraph((name_of(path), module) for path, module in imports())
    assert len(graph) > 200
    circles = [sorted(ring) for ring in nx.strongly_connected_components(graph) if len(ring) > 1]
    assert circles + list(nx.selfloop_edges(graph)) == []


def test_no_analysis_knows_another() -> None:
    folders = {path.name for path in (PACKAGE / "analyses").iterdir() if path.is_dir()}
    across = [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path, module in imports()
        if layer_at(path) == "analyses"
        and (own := path.relative_to(PACKAGE).parts[1]) in folders
        and module.startswith("kcensus.analyses.")
        and module.split(".")[2] in folders - {own}
    ]
    assert across == []


def test_no_folder_has_more_files_than_fit_on_a_screen() -> None:
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-coz", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("there is no version control here, as in an sdist")
    folders = Counter(str(Path(name).parent) for name in listed.stdout.split("\0") if name)
    assert {folder: count for folder, count in folders.items() if count > _MAX_FILES} == {}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda path: path.stem
)
def test_notebooks_use_public_names_only(path: Path) -> None:
    """README calls the names of ``kcensus`` itself and ``kcensus.plots`` public, and no others."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name for name in modules if name.partition(".")[0] == "kcensus"} <= {
        "kcensus",
        "kcensus.plots",
    }
    names = {
        alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "kcensus"
        for alias in node.names
    }
    names |= {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "kcensus"
    }
    assert names <= {*dir(kcensus), "plots"}
