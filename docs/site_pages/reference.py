# SPDX-License-Identifier: LGPL-2.1-or-later
"""The reference: commands, findings, terms, tables, JSON and Python, made of the program."""

from __future__ import annotations

from collections.abc import Mapping


def pages() -> Mapping[str, str]:
    """Return the text of each page, by its name."""
    return {"reference/index": "# Reference\n"}
