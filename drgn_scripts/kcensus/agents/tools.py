# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools that agents see: names, descriptions, and the types of their arguments."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kcensus.analyses import Analysis, analyses
from kcensus.results import Severity

MAX_ROWS = 500
DEFAULT_ROWS = 50
_MAX_OFFSET = 1 << 40
_MAX_NAME = 4096
_MAX_LIST = 64

Name = Annotated[str, Meta(min_length=1, max_length=_MAX_NAME)]
TargetName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=_MAX_NAME,
        description="A target that the tool `targets` lists: a path, or a sample such as `sample`.",
    ),
]
Offset = Annotated[int, Meta(ge=0, le=_MAX_OFFSET, description="Rows to skip.")]
Limit = Annotated[int, Meta(ge=1, le=MAX_ROWS, description="Most rows to return.")]
Where = Annotated[
    str,
    Meta(
        min_length=1,
        description='Condition of the rows, such as `state == "D" and seconds > 10`. Operators: == '
        "!= < <= > >= in, and or not, + - * // % & | ^ << >>; functions of a column and a text: "
        "contains, startswith, endswith; isnull(column). Addresses are numbers or strings (0x…).",
    ),
]
AnalysisName = Annotated[str, Meta(description="An analysis, such as `slab`, or `patches`.")]
Names = Annotated[list[Name], Meta(max_length=_MAX_LIST)]


class _Arguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Arguments of a tool; unknown ones are refused."""


class _Page(_Arguments, kw_only=True):
    offset: Offset = 0
    limit: Limit = DEFAULT_ROWS


class _Rows(_Page, kw_only=True):
    where: Where | None = None
    sort: Annotated[
        Name | None, Meta(description="Column to sort by, ascending; with a leading -, descending.")
    ] = None


class _OfTarget(_Arguments, kw_only=True):
    target: TargetName


class _Report(_OfTarget, kw_only=True):
    severity: Annotated[
        Literal["info", "notice", "warning", "critical"],
        Meta(description="Least severity of the findings."),
    ] = "info"


class _Table(_Rows, kw_only=True):
    target: TargetName
    analysis: AnalysisName
    table: Annotated[
        Name,
        Meta(description="A table that the analysis lists; also `checks`, `findings` and `gaps`."),
    ]
    columns: Annotated[Names | None, Meta(description="Columns to return; all by default.")] = None


class _Explain(_Arguments, kw_only=True):
    word: Annotated[
        str,
        Meta(
            max_length=_MAX_NAME,
            description="The id of a finding, a term of the kernel or of kcensus, or a column; "
            "empty to list all findings and terms.",
        ),
    ] = ""


class _Patches(_OfTarget, kw_only=True):
    prices: Annotated[
        bool, Meta(description="Run the analyses that measure what absent patches cost.")
    ] = True


class _Patch(_Arguments, kw_only=True):
    id: Annotated[Name, Meta(description="The id of a patch, as in the table `patches`.")]


class _Diff(_Rows, kw_only=True):
    before: TargetName
    after: TargetName
    analyses: Annotated[Names | None, Meta(description="Analyses to compare; all by default.")] = (
        None
    )
    table: Annotated[
        Name, Meta(description="The table of the comparison whose rows to return.")
    ] = "figures"


class _Objects(_Page, kw_only=True):
    target: TargetName
    type: Annotated[
        Name, Meta(description="Type of the objects, such as `struct dentry`, or a slab cache.")
    ]
    members: Annotated[
        Names,
        Meta(
            description="Member paths, such as `d_lockref.count`, that are returned and that "
            "`where` can use."
        ),
    ] = []
    cache: Annotated[Name | None, Meta(description="Slab cache, if not that of the type.")] = None
    where: Where | None = None
    group_by: Annotated[
        Name | None,
        Meta(description="Member: count the objects by its values instead of returning them."),
    ] = None
    memcg: Annotated[
        bool, Meta(description="Return the memory cgroup charged for each object, too.")
    ] = False


@dataclass(frozen=True)
class Tool:
    """A tool: what the protocol lists, and the work behind it."""

    name: str
    title: str
    description: str
    arguments: type[msgspec.Struct]
    work: str
    """Name of the function in ``works`` that answers."""
    targets: tuple[str, ...] = ()
    """Arguments that name targets."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """More arguments of the work."""

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        _, components = msgspec.json.schema_components([self.arguments])
        schema = dict(components[self.arguments.__name__])
        schema.pop("title", None)
        return schema


@functools.cache
def tools() -> Mapping[str, Tool]:
    """Return all tools by name."""
    every = (
        Tool(
            "targets",
            "Targets",
            "List the dumps, capsules and saved reports that can be asked about, with the samples "
            "that come with kcensus.",
            _Page,
            "targets",
        ),
        Tool(
            "report",
            "What is wrong here?",
            "Run all analyses: the findings, most severe first, with evidence and remedies; the "
            "figures of each analysis; and how many checks and gaps it has. The first thing to "
            "ask about a target.",
            _Report,
            "report",
            ("target",),
        ),
        *map(_analysis, analyses().values()),
        Tool(
            "table",
            "Rows of a table",
            "Return rows of a table of an analysis, filtered, sorted and page by page, with the "
            "unit and meaning of each column.",
            _Table,
            "table",
            ("target",),
        ),
        Tool(
            "patches",
            "Kernel patches",
            "Detect which known kernel patches this kernel has, and what the absent ones cost. The "
            "tool `table` has the rows, with analysis `patches`.",
            _Patches,
            "patches",
            ("target",),
        ),
        Tool(
            "patch",
            "One kernel patch",
            "Everything that the catalogue says about one patch: symptom, remedy, commits, "
            "detection. It is about the patch, and needs no target.",
            _Patch,
            "patch",
        ),
        Tool(
            "diff",
            "What grew?",
            "Compare two targets: findings about growth, and rows of one table of differences. "
            "Give the older one as `before`.",
            _Diff,
            "diff",
            ("before", "after"),
        ),
        Tool(
            "objects",
            "Objects of a slab cache",
            "Read members of the allocated objects of any slab cache: rows, or with `group_by` the "
            "number of objects by value. `matched` counts all objects that meet `where`.",
            _Objects,
            "objects",
            ("target",),
        ),
        Tool(
            "explain",
            "Explanations",
            "Explain a finding (what it means, how it was determined, what to do), a term, or a "
            "column.",
            _Explain,
            "explain",
        ),
    )
    return {tool.name: tool for tool in every}


def tool_name(analysis: str) -> str:
    """Return the name of the tool of an analysis: ``list_lru``."""
    return analysis.replace("-", "_")


def _analysis(analysis: Analysis) -> Tool:
    """Return the tool of an analysis; its options are arguments, unless they name files."""
    params = [each for each in analysis.params if each.name not in analysis.without_target]
    fields = [
        (
            each.name,
            Annotated[_optional(each.type, each.default), Meta(description=each.help)],
            each.default,
        )
        for each in params
    ]
    arguments = msgspec.defstruct(
        f"_{tool_name(analysis.name)}", fields, bases=(_OfTarget,), module=__name__, kw_only=True,
        forbid_unknown_fields=True,
    )  # fmt: skip
    text = " ".join(analysis.description.split())
    return Tool(
        tool_name(analysis.name),
        analysis.question,
        f"{analysis.question} Returns the summary, findings, checks against the kernel's own "
        f"counters, gaps, and the tables that the tool `table` has. {text}",
        arguments,
        "analysis",
        ("target",),
        {"analysis": analysis.name, "params": tuple(each.name for each in params)},
    )


def _optional(kind: Any, default: object) -> Any:
    if kind is str:
        kind = Annotated[str, Meta(max_length=_MAX_NAME)]
    return kind | None if default is None else kind


def severity_of(name: str) -> Severity:
    """Return the severity of a name."""
    return Severity[name.upper()]
