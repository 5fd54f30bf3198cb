# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands of kcensus in sentences, with the words that open the target of the result.

Findings say ``kcensus waits TARGET``, so that a dump and its capsule have equal documents; a screen
or page shows the command to paste.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from kcensus.results import Finding, Remedy

_COMMAND = re.compile(r"(?<![^\s(])`kcensus [^`]*`")
"""A backtick inside of a word, as in a file name, opens no command."""


def addressed(
    named: Iterable[tuple[str, Finding]], placeholders: Mapping[str, str]
) -> list[tuple[str, Finding]]:
    """Return findings with the words for placeholders in their commands.

    :param named: findings, each with the name of its analysis
    """
    return [(name, _addressed(finding, placeholders)) for name, finding in named]


def _addressed(finding: Finding, placeholders: Mapping[str, str]) -> Finding:
    def filled(text: str) -> str:
        return _COMMAND.sub(lambda found: command(found[0], placeholders), text)

    def of_remedy(remedy: Remedy) -> Remedy:
        lines = [
            command(line, placeholders) if line.startswith("kcensus ") else line
            for line in remedy.command.splitlines()
        ]
        effect, risk = filled(remedy.effect), filled(remedy.risk)
        return replace(remedy, effect=effect, command="\n".join(lines), risk=risk)

    return replace(
        finding,
        title=filled(finding.title),
        evidence=filled(finding.evidence),
        story=tuple(map(filled, finding.story)),
        no_remedy=filled(finding.no_remedy),
        remedies=tuple(map(of_remedy, finding.remedies)),
    )


def command(text: str, placeholders: Mapping[str, str]) -> str:
    """Return a command with the words for placeholders; unknown ones stay."""
    if not placeholders:
        return text
    names = "|".join(map(re.escape, placeholders))
    # At once: a path that was put in may contain the name of another placeholder.
    return re.sub(rf" ({names})\b", lambda found: f" {placeholders[found[1]]}".rstrip(), text)
