# SPDX-License-Identifier: LGPL-2.1-or-later
"""Values that shells complete: names of tables, patches, findings and analyses.

A shell waits for them, so that nothing here imports NumPy, drgn or their users: names of tables and
patches are read from source text and file names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem

from kcensus.analyses import analyses
from kcensus.samples import CAPSULES, PATCHES

Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_TABLE = re.compile(r"\bTableSpec\(\s*\"([a-z_]+)\"")
_VALIDATION = re.compile(r"^\[validate\b", re.MULTILINE)


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the bundled capsules; a target can also be a file."""
    names = [name for name in CAPSULES if incomplete and name.startswith(incomplete)]
    return [*files(ctx, param, incomplete), *map(CompletionItem, names)]


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a path."""
    # The script for bash loses the text before an item for files.
    return [CompletionItem(incomplete, type="file")]


def one_of(names: Callable[[], Iterable[str]]) -> Completer:
    """Return a completer for one of some names."""
    return lambda ctx, param, incomplete: _items(names(), incomplete)


def several_of(names: Callable[[], Iterable[str]]) -> Completer:
    """Return a completer for names separated by commas."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, _ = incomplete.rpartition(",")
        more = [name for name in names() if name not in before.split(",")]
        return _items((f"{before}{comma}{name}" for name in more), incomplete)

    return complete


def tables(place: str) -> list[str]:
    """Return the names of the tables declared at ``module:TABLES``.

    They are those of the whole package of an analysis, and otherwise of the module.
    """
    module = place.partition(":")[0]
    parent, _, _ = module.rpartition(".")
    is_of_analysis = parent.startswith("kcensus.analyses.")
    # Finding a module imports the packages above it, which is quick for an analysis only.
    spec = find_spec(parent if is_of_analysis else "kcensus")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent
    inside = module.removeprefix("kcensus.").replace(".", "/")
    files = sorted(folder.rglob("*.py")) if is_of_analysis else [folder / f"{inside}.py"]
    return [name for file in files if file.is_file() for name in _TABLE.findall(_text(file))]


def patches(*, validated: bool = False) -> list[str]:
    """Return the ids of the patches in the catalogue.

    :param validated: only those that ``kcensus validate`` takes
    """
    files = sorted(PATCHES.rglob("*.toml"), key=lambda file: file.stem)
    return [file.stem for file in files if not validated or _VALIDATION.search(_text(file))]


def patch_words(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return what the words of ``kcensus patches`` can be: a target, or ``show`` and an id."""
    given = ctx.params.get(param.name or "") or ()
    if tuple(given) == ("show",):
        return _items(patches(), incomplete)
    return [*targets(ctx, param, incomplete), *_items(["show"], incomplete)]


def explained(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return ids of findings, and the next words of terms."""
    from kcensus import explain

    before = "".join(f"{word} " for word in ctx.params.get(param.name or "") or ())
    words = (word.removeprefix(before) for word in explain.words() if word.startswith(before))
    return _items((word.partition(" ")[0] for word in words), incomplete)


def notebooks() -> list[str]:
    """Return the names of the notebooks."""
    from kcensus.commands.notebook.library import PACKAGED

    return sorted(path.stem for path in PACKAGED.glob("*.py"))


def analyses_and_targets(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the first word of `kcensus watch`, analyses separated by commas, or targets."""
    several = several_of(names_of_analyses) if not ctx.params.get(param.name or "") else None
    found = several(ctx, param, incomplete) if several else []
    return [*targets(ctx, param, incomplete), *found]


def names_of_analyses() -> list[str]:
    """Return the names of all analyses."""
    return [*analyses()]


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")
